"""Two calls of a region held against each other: what differs is frozen in a graph, or has no place in one."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic
from graphspec.recording import comparison
from graphspec.runtime.laws.evidence import Facts, Pair
from graphspec.runtime.rehearsal.observation import Observation
from graphspec.runtime.symbols import Runs, second_run


def other_calls(_: Facts, pair: Pair) -> Iterator[Diagnostic]:
    """GS721, GS722 and GS511: other operators, or host values that a graph would freeze."""
    yield from comparison.differences(pair.region, *pair.recordings, pair.refreshed, pair.params)


def other_constants(_: Facts, pair: Pair) -> Iterator[Diagnostic]:
    """GS722: numbers and strings inside an output are part of the graph, so they must be the same on every run."""
    for name, output in pair.second.outputs.items():
        before = pair.first.outputs.get(name)
        if before is not None and before.constants != output.constants:
            message = f"region '{pair.region}': output '{name}' holds a host value that changes between runs"
            yield Diagnostic("GS722", message, hint="return it as a tensor, or leave it to an eager region")


def params_passed_on(opened: Facts, pair: Pair) -> Iterator[Diagnostic]:
    """GS510 and GS722: what a second value of a param shows, where symbols could not follow it."""
    declared = opened.plan.regions[pair.region].declared
    runs = Runs(declared, pair.recordings, pair.params, pair.taken, pair.probes, pair.passed)
    yield from second_run(runs, pair.bindings)


def fresh_memory(_: Facts, pair: Pair) -> Iterator[Diagnostic]:
    """GS720: an outside tensor that is other memory in each run, although no recorded call made it."""
    origins = [{**seen.origins, **seen.copies} for seen in (pair.first, pair.second)]
    yield from comparison.fresh_memory(pair.region, *pair.recordings, (origins[0], origins[1]))


def first_call_of_its_own(_: Facts, first: Observation, later: Observation) -> Iterator[Diagnostic]:
    """GS721: the very first call of a region takes another path than later ones."""
    yield from comparison.first_call(first.region, first.recording, later.recording)
