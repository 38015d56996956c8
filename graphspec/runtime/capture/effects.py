"""What a dry run changed besides its results, judged: what a graph repeats, would lose, or would freeze."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch

from graphspec import spec as language
from graphspec.errors import Diagnostic
from graphspec.runtime.capture.recording import Recording, written_refs
from graphspec.runtime.context import Context

if TYPE_CHECKING:
    from graphspec.runtime.holdings.preserve import Change, Session


def input_writes(context: Context, region: language.Region, recording: Recording) -> list[Diagnostic]:
    """A region that writes into an input buffer: eager would change the caller's tensor, a graph changes its own."""
    inputs = {
        buffer.whole.untyped_storage()._cdata: name
        for name, buffer in context.buffers.static.items()
        if buffer.spec.role == "input"
    }
    found = []
    for index in sorted(recording.written & recording.outside.keys()):
        name = inputs.get(recording.outside[index].storage._cdata)
        if name is None:
            continue
        call = next(c for c in recording.calls if any(ref.storage == index for ref in written_refs(c)))
        found.append(
            Diagnostic(
                "GS724",
                f"region '{region.name}' writes into its input '{name}': {call.name} at {call.site}; eager would "
                "change the caller's tensor, a graph only its own copy",
                file=call.site.file,
                line=call.site.line,
                hint=f"work on {name}.clone(), or make '{name}' a state",
            )
        )
    return found


Layout = tuple[torch.Size, tuple[int, ...], int]


def layouts(context: Context, region: str, env: Mapping[str, object]) -> dict[str, Layout]:
    """Shape, strides and address of each tensor that a region reads."""
    given = {wire.value: env.get(wire.value) for wire in context.plan.regions[region].reads}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    return {name: (value.shape, value.stride(), value.data_ptr()) for name, value in tensors.items()}


def input_shapes(region: str, before: Mapping[str, Layout], after: Mapping[str, Layout]) -> list[Diagnostic]:
    """A region that gives what it reads another shape or memory in place (``t_``, ``resize_``, ``set_``)."""
    found = []
    for name, layout in before.items():
        if after.get(name) != layout:
            now = after[name]
            what = f"the shape of '{name}' in place, from {list(layout[0])} to {list(now[0])}"
            if now[0] == layout[0]:
                what = f"the strides of '{name}' in place, from {list(layout[1])} to {list(now[1])}"
            if now[:2] == layout[:2]:
                what = f"the memory of '{name}' in place"
            message = f"region '{region}' changes {what}; a replay does not"
            found.append(Diagnostic("GS724", message, hint=f"work on {name}.clone()"))
    return found


def copy_writes(region: str, recording: Recording, copies: Mapping[int, str]) -> list[Diagnostic]:
    """A region that writes into what an eager region made: a graph has a copy of it, in a storage of ``copies``."""
    found = []
    for index in sorted(recording.written & recording.outside.keys()):
        name = copies.get(recording.outside[index].storage._cdata)
        if name is None:
            continue
        call = next(c for c in recording.calls if any(ref.storage == index for ref in written_refs(c)))
        message = (
            f"region '{region}' writes into '{name}', which an eager region made: {call.name} at {call.site}; a graph "
            "has a copy of it, and nobody else would see the change"
        )
        hint = f"work on {name}.clone(), or write it in the eager region"
        found.append(Diagnostic("GS729", message, file=call.site.file, line=call.site.line, hint=hint))
    return found


def changed_names(session: Session) -> set[str]:
    """What `host_changes` would report now, by name."""
    changes = session.changes()
    return {change.name for change in changes.rebound} | ({"host random"} if changes.host_random else set())


def host_changes(
    region: str, session: Session, recording: Recording, seen: set[str], loaded: Collection[str]
) -> tuple[list[Diagnostic], list[str]]:
    """Errors and warnings for host state that changed since the session was last rewound, each name once.

    ``loaded`` are the names that the code of the regions loads.
    """
    errors: list[Diagnostic] = []
    warnings: list[str] = []
    changes = session.changes()
    for change in changes.rebound:
        if change.name in seen:
            continue
        seen.add(change.name)
        finding = _judged(region, change, recording, loaded)
        if isinstance(finding, Diagnostic):
            errors.append(finding)
        elif finding is not None:
            warnings.append(finding)
    if changes.host_random and "host random" not in seen:
        seen.add("host random")
        errors.append(
            Diagnostic(
                "GS727",
                f"region '{region}' draws random numbers from {' and '.join(changes.host_random)}: a graph freezes "
                "what it drew",
                hint="draw with torch, or pass the number in as a param",
            )
        )
    return errors, warnings


def _judged(region: str, change: Change, recording: Recording, loaded: Collection[str]) -> Diagnostic | str | None:
    if change.kind == "scalar":
        return Diagnostic(
            "GS725",
            f"region '{region}' changes {change.name} on the host, from {change.before!r} to {change.after!r}: a graph "
            "freezes the value it was captured with",
            hint="keep it as a tensor buffer that the region updates in place, or compute it outside and pass a param",
        )
    if change.kind in ("container", "memory"):
        what = "the members of" if change.kind == "container" else "the memory, shape or dtype of"
        return Diagnostic(
            "GS725" if change.kind == "container" else "GS726",
            f"region '{region}' changes {what} {change.name} on every call: a graph goes on with what it was captured "
            "with",
            hint="keep a tensor of full size that the region updates in place (copy_, index_copy_), or return it",
        )
    if change.name.endswith(".grad"):
        return Diagnostic(
            "GS726",
            f"region '{region}' leaves a gradient in {change.name}: a replay would neither add to it nor free it",
            hint="return it: torch.autograd.grad(loss, tensors); keeping gradients is not supported yet",
        )
    hooks = "_hooks[" in change.name
    if hooks or (change.kind == "object" and change.name.rpartition(".")[2] in loaded):
        what = "adds or removes a hook in" if hooks else "reads and replaces"
        return Diagnostic(
            "GS725",
            f"region '{region}' {what} {change.name} on every call: a graph goes on with what it was captured with",
            hint="do it once in __init__, or in an eager region",
        )
    before = change.before
    if change.kind == "tensor" and isinstance(before, torch.Tensor) and recording.knows(before):
        return Diagnostic(
            "GS726",
            f"region '{region}' reads {change.name} and then puts another tensor in its place: a graph goes on reading "
            "the old one",
            hint=f"write into it in place: {change.name.removeprefix('model.')}.copy_(...)",
        )
    return (
        f"region '{region}' puts something new in {change.name} on every call; a replay does not: return it as an "
        "output if it is needed"
    )


def unexplained(names: Collection[str]) -> list[Diagnostic]:
    """Findings for tensors that changed although no operator that ran says it writes them."""
    return [
        Diagnostic(
            "GS728",
            f"{name} changed in a way no operator says: by a kernel with a wrong schema, numpy, or another thread",
            hint="write through torch operators, or run it in an eager region",
        )
        for name in names
    ]


def result_writes(
    context: Context, region: language.Region, recording: Recording, origins: dict[int, str], results: Collection[str]
) -> list[Diagnostic]:
    """A region that writes into another region's result: the result was already copied out, eager would show it."""
    found = []
    for index in sorted(recording.written & recording.outside.keys()):
        name = origins.get(recording.outside[index].storage._cdata)
        buffer = context.spec.buffers.get(name or "")
        if name is None or name not in results or (buffer is not None and buffer.role == "state"):
            continue
        call = next(c for c in recording.calls if any(ref.storage == index for ref in written_refs(c)))
        found.append(
            Diagnostic(
                "GS729",
                f"region '{region.name}' writes into '{name}', a result of the run: {call.name} at {call.site}",
                file=call.site.file,
                line=call.site.line,
                hint=f"work on {name}.clone(), or return the new value under another name",
            )
        )
    return found
