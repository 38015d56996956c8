"""GS602 to GS607: what a region asks of a compiler, told without importing one."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.compilers import COMPILERS, Compiler, lacks
from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.nearest import did_you_mean
from graphspec.rules.walk import data_at
from graphspec.schema_messages import shown
from graphspec.spec import Compile, Region, Spec


def _compiled(spec: Spec) -> Iterator[tuple[Region, Compile, Compiler, KeyPath]]:
    for region in spec.regions.values():
        if region.compile is not None:
            yield region, region.compile, COMPILERS[region.compile.backend], ("regions", region.name, "compile")


def options(spec: Spec) -> Iterator[Diagnostic]:
    """GS602: an option that the compiler does not have. GS603: a value of another kind. GS604: one that is refused."""
    for _, asked, compiler, path in _compiled(spec):
        for name, value in asked.options.items():
            at: KeyPath = (*path, "options", name)
            option = compiler.options.get(name)
            if option is None:
                usual = [each.name for each in compiler.options.values() if each.refused is None]
                message = f"`{name}` is no option that graphspec hands to {compiler.name}"
                hint = did_you_mean(name, compiler.options, f"among those it hands on are {', '.join(usual[:6])}")
                yield finding(spec.document, "GS602", message, at, key=True, hint=hint)
            elif option.refused is not None:
                message = f"`{name}` of {compiler.name} is refused: {option.refused}"
                yield finding(spec.document, "GS604", message, at, key=True, hint=f"remove `{name}`")
            elif (wanted := option.wrong(value)) is not None:
                message = f"`{name}` of {compiler.name} takes {wanted}, and this is {shown(value)}"
                yield finding(spec.document, "GS603", message, at, hint=f"{option.meaning} Write {wanted}")


def modes(spec: Spec) -> Iterator[Diagnostic]:
    """GS602: a mode that the compiler does not have. GS604: one that is refused."""
    for _, asked, compiler, path in _compiled(spec):
        if asked.mode is None:
            continue
        at: KeyPath = (*path, "mode")
        if asked.mode not in compiler.modes:
            usual = ", ".join(name for name, why in compiler.modes.items() if why is None)
            message = f"{compiler.name} has no mode '{asked.mode}'"
            hint = did_you_mean(asked.mode, compiler.modes, f"it has {usual}")
            yield finding(spec.document, "GS602", message, at, hint=hint)
        elif (why := compiler.modes[asked.mode]) is not None:
            message = f"the mode '{asked.mode}' of {compiler.name} is refused: {why}"
            yield finding(spec.document, "GS604", message, at, hint="remove `mode`")


def devices(spec: Spec) -> Iterator[Diagnostic]:
    """GS605: a compiler that the declared device does not have. `auto` is told when the spec is opened."""
    kind = spec.device.partition(":")[0]
    for region, asked, _, path in _compiled(spec):
        why = None if kind == "auto" else lacks(region, kind)
        if why is not None:
            others = [each.name for each in COMPILERS.values() if kind in each.devices]
            hint = f"write `device: auto`, which captures uncompiled where {asked.backend} is not"
            if others:
                hint += f"; or take {' or '.join(others)}"
            yield finding(spec.document, "GS605", f"region '{region.name}': {why}", (*path, "backend"), hint=hint)


def engines(spec: Spec) -> Iterator[Diagnostic]:
    """GS606: `engine` without a compiler, or of one that does not capture by itself on the declared device."""
    kind = spec.device.partition(":")[0]
    for region in spec.regions.values():
        path: KeyPath = ("regions", region.name, "engine")
        if region.compile is None:
            if data_at(spec, path) is not None:
                message = f"`engine` has no effect in region '{region.name}', which is not compiled"
                yield finding(spec.document, "GS606", message, path, key=True, hint="remove it, or add `compile`",
                              severity="error" if region.engine == "compiled" else "warning")  # fmt: skip
        elif region.engine == "compiled":
            captures = COMPILERS[region.compile.backend].captures
            if not captures or (kind not in ("auto", *captures)):
                message = f"{region.compile.backend} does not capture by itself" + (f" on {kind}" if captures else "")
                yield finding(spec.document, "GS606", message, path, hint="remove `engine`: graphspec captures it")


def updates(spec: Spec) -> Iterator[Diagnostic]:
    """GS607: updates in a region that Inductor compiles: its kernels have no arguments to refresh."""
    for region, asked, _, _ in _compiled(spec):
        if asked.backend == "inductor" and region.updates:
            update = region.updates[0]
            message = f"region '{region.name}' is compiled by inductor, which would burn '{update.param}' in"
            hint = (
                f"declare the param with `specialize: true`, or read it from a buffer `from: {update.param}`; "
                "or remove `compile`"
            )
            yield finding(spec.document, "GS607", message, ("regions", region.name, "updates"), key=True, hint=hint)
