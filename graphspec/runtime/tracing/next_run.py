"""A run right after the judged one, with no rewind between, and the very first one: as the capture compares them.

What one run leaves on the host must not show in the next, and a first call must not take a path of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphspec.errors import Diagnostic
from graphspec.runtime.capture import effects
from graphspec.runtime.capture.outputs import other_constants, trees_of
from graphspec.runtime.capture.proof import differences, first_call
from graphspec.runtime.context import Context
from graphspec.runtime.holdings.objects import Change
from graphspec.runtime.tracing import findings
from graphspec.runtime.tracing.host import HostState
from graphspec.runtime.tracing.trace import PassResult, RegionTrace


def other_next_run(
    context: Context, host: HostState, first: PassResult, following: PassResult, rebound: Sequence[tuple[str, Change]]
) -> Iterator[Diagnostic]:
    """Findings for what ``following`` did otherwise than ``first``. ``rebound`` is what a region put on the host."""
    params = first.params, following.params
    pairs = dict(_pairs(context, first, following))
    for name, (one, other) in pairs.items():
        for each in differences(name, one.recording, other.recording, (), params):
            yield findings.in_region(context.plan, name, each)
    yield from other_results(context, first, following)
    session: Any = host
    recordings = {name: other.recording for name, (_, other) in pairs.items()}
    for pair in rebound:
        for each in (*effects.kept_tensors([pair], recordings, session), *effects.other_contents([pair], session)):
            yield findings.in_region(context.plan, pair[0], each)


def other_first_call(context: Context, first: PassResult, later: PassResult) -> Iterator[Diagnostic]:
    """Findings for regions whose very first call, in the warm-up, took another path than later ones.

    Where params differ between the two, so may the calls.
    """
    if first.params:
        return
    for name, (one, other) in _pairs(context, first, later):
        for each in first_call(name, one.recording, other.recording):
            yield findings.in_region(context.plan, name, each)


def other_results(context: Context, first: PassResult, second: PassResult) -> Iterator[Diagnostic]:
    """Findings for numbers and text in results that another run changes."""
    for name, (one, other) in _pairs(context, first, second):
        for each in other_constants(name, _constants(name, one), _constants(name, other)):
            yield findings.in_region(context.plan, name, each)


def _pairs(
    context: Context, one: PassResult, other: PassResult
) -> Iterator[tuple[str, tuple[RegionTrace, RegionTrace]]]:
    for name, trace in one.regions.items():
        match = other.regions.get(name)
        captured = not context.plan.regions[name].eager
        if captured and match is not None and not trace.ended and not match.ended:
            yield name, (trace, match)


def _constants(region: str, trace: RegionTrace) -> Mapping[str, tuple[Any, ...]]:
    return {name: tree.constants for name, tree in trees_of(region, trace.outputs).items()}
