"""What a region may not do that is compiled to one library. Its compiler has not run yet: the recording says it all."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.backends.cpu.compiling.lowering import draws, obstacles
from graphspec.compilers import lacks
from graphspec.errors import Diagnostic
from graphspec.recording.calls import Recording
from graphspec.recording.source import Site
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.rehearsal.observation import Observation
from graphspec.spec import Region


def random_numbers(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS770: random operators, which compiled kernels draw otherwise than eager."""
    region = opened.plan.regions[seen.region].declared
    if not _is_library(opened, region) or (
        region.compile is not None and region.compile.options.get("fallback_random")
    ):
        return
    for call in seen.recording.calls:
        if draws(call):
            yield _at(
                "GS770",
                f"region '{seen.region}' calls {call.name}, and a compiled kernel draws other numbers than eager",
                call.site,
                "add `options: {fallback_random: true}`: it draws what eager draws; or leave `compile` out",
            )
            return


def uncompilable(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS771: what cannot be an argument or a node of the graph that is compiled."""
    if seen.ended is None and _is_library(opened, opened.plan.regions[seen.region].declared):
        for obstacle in obstacles(seen.recording):
            message = f"region '{seen.region}' cannot be compiled: it {obstacle.what}"
            yield _at("GS771", message, obstacle.site, obstacle.hint)


def lost_updates(opened: Facts, uncompiled: Observation, seen: Observation) -> Iterator[Diagnostic]:
    """GS772: an updated operator that the compiler joined with another, or took away."""
    for number, update in enumerate(opened.plan.regions[seen.region].declared.updates):
        name = update.op.partition(".")[0]
        before, after = (_count(name, each.recording) for each in (uncompiled, seen))
        if before != after:
            message = (
                f"region '{seen.region}': {name} is called {before} times, and compiled {after} times: a pass of the "
                "compiler took it away, and with it the update"
            )
            path = ("regions", seen.region, "updates", number)
            yield Diagnostic("GS772", message, path=path, hint="switch that pass off under `compile: {options}`")


def _count(name: str, recording: Recording) -> int:
    return sum(call.name.partition(".")[0] == name for call in recording.calls)


def _is_library(opened: Facts, region: Region) -> bool:
    """Whether the region is compiled to one library here: by Inductor, on the CPU."""
    label = "cpu" if opened.label == "auto" else opened.label
    return region.compile is not None and label == "cpu" and lacks(region, label) is None


def _at(code: str, message: str, site: Site | None, hint: str) -> Diagnostic:
    known = site is not None and site.line
    file, line = (site.file, site.line) if site is not None and known else (None, None)
    return Diagnostic(code, message, file=file, line=line, hint=hint)
