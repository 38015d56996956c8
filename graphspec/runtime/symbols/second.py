"""What only a second value of a param can tell: whether an argument is the param, where no symbol could be followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphspec import spec as language
from graphspec.backends.updates import Binding
from graphspec.errors import Diagnostic, InputError
from graphspec.recording.calls import Call, Recording, Ref
from graphspec.runtime.symbols.declared import decides_shape, numbers_of
from graphspec.runtime.symbols.judge import given, holds
from graphspec.runtime.symbols.node import Origin
from graphspec.runtime.symbols.trace import Passed
from graphspec.runtime.symbols.tree import part

#: One thing of the first run, and of the second.
Both = tuple[Any, Any]


@dataclass(frozen=True)
class Runs:
    """Two runs of a region on plain numbers, the first with the values that were traced.

    ``taken`` are the params that the region is given, ``others`` further values of each param, ``passed`` what the
    trace left to be seen here.
    """

    region: language.Region
    recordings: tuple[Recording, Recording]
    params: tuple[Mapping[str, Any], Mapping[str, Any]]
    taken: frozenset[str]
    others: Mapping[str, Sequence[Any]]
    passed: Sequence[Passed]


def second_run(runs: Runs, bindings: Sequence[Binding]) -> list[Diagnostic]:
    """Everything that is found with a second run; ``bindings`` are its updates."""
    if len(runs.recordings[0].calls) != len(runs.recordings[1].calls):
        return []  # said elsewhere
    return [*_unfit(runs, bindings), *_unseen(runs), *_reshaping(runs, bindings)]


def _unseen(runs: Runs) -> Iterator[Diagnostic]:
    """GS722 where torch took a number, and no operator it called was given just that number in both runs."""
    before, after = (recording.calls for recording in runs.recordings)
    for one in runs.passed:
        first, last = one.calls
        if first == last or one.node.origin is None:
            continue
        name, value = one.node.origin[0], part(runs.params[1], one.node.origin)
        pairs = zip(before[first:last], after[first:last], strict=True)
        if value == one.node.value or any(_follows(pair, (one.node.value, value)) for pair in pairs):
            continue
        what = f"{one.function} computes with the param '{one.node.text}' on the host, at {one.site}"
        message = f"region '{runs.region.name}': {what}"
        hint = f"compute it outside and declare it as a param, or compute with a tensor: a buffer `from: {name}`"
        yield Diagnostic("GS722", message, file=one.site.file, line=one.site.line, hint=hint)


def _follows(calls: Both, values: Both) -> bool:
    pairs = zip(given(calls[0]), given(calls[1]), strict=False)
    return any(holds(old, values[0]) and holds(new, values[1]) for old, new in pairs)


def _unfit(runs: Runs, bindings: Sequence[Binding]) -> Iterator[Diagnostic]:
    """GS510 where an update would write over something else than the param it comes from.

    Only for params that the region is given: what it is not given, it cannot pass on, and an update replaces what
    stands there.
    """
    fit, wrong = set(), []
    for binding in bindings:
        runs_fit = (_is(binding, runs.recordings[run].calls, runs.params[run]) for run in (0, 1))
        if binding.param not in runs.taken or all(runs_fit):
            fit.add((binding.slot.call, binding.slot.position))
        else:
            wrong.append(binding)
    for binding in wrong:
        call = runs.recordings[1].calls[binding.slot.call]
        name = call.op._schema.arguments[binding.slot.position].name
        what = f"an update refreshes {call.name} '{name}' from the param '{binding.param}'"
        message = f"region '{runs.region.name}': {what}, which is not what the model passes there, at {call.site}"
        picks = [
            number
            for update in runs.region.updates
            if (update.param, update.arg) == (binding.param, name)
            for number, other in numbers_of(replace(update, at=None), runs.region, runs.recordings[1])
            if (other, binding.slot.position) in fit
        ]
        hint = (
            f"pick the calls that are given '{binding.param}' itself: at: {picks}"
            if picks
            else f"pass '{binding.param}' itself, or compute the value outside and declare it as a param of its own"
        )
        yield Diagnostic("GS510", message, file=call.site.file, line=call.site.line, hint=hint)


def changed_by_the_way(
    region: str, recording: Recording, picked: Mapping[tuple[int, int], Origin], params: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """GS510 where an argument that an update refreshes is not the param, for the values of this recording."""
    for (index, position), origin in picked.items():
        call = recording.calls[index]
        name, recorded = list(call.arguments().items())[position]
        if isinstance(recorded, Ref) or _loose(recorded) == _loose(part(params, origin)):
            continue
        what = f"an update refreshes {call.name} '{name}' from '{origin[0]}'"
        seen = f"for {params[origin[0]]} the model passes {recorded}"
        message = f"region '{region}': {what}, and {seen}, at {call.site}"
        hint = f"pass '{origin[0]}' itself, or compute the value outside and declare it as a param of its own"
        yield Diagnostic("GS510", message, file=call.site.file, line=call.site.line, hint=hint)


def _loose(value: Any) -> Any:
    """A value as an update converts it: a list of one is its item, a list is a tuple."""
    if isinstance(value, (list, tuple)):
        return _loose(value[0]) if len(value) == 1 else tuple(_loose(item) for item in value)
    return value


def _is(binding: Binding, calls: Sequence[Call], params: Mapping[str, Any]) -> bool:
    recorded = list(calls[binding.slot.call].arguments().values())[binding.slot.position]
    if isinstance(recorded, Ref):
        return False
    wanted = replace(binding, recorded=recorded).convert(params[binding.param])
    return bool((list(recorded) if isinstance(recorded, tuple) else recorded) == wanted)


def _converted(binding: Binding, value: Any) -> list[Any]:
    """The argument for a value; nothing for one that it cannot hold, which a run would refuse."""
    try:
        return [binding.convert(value)]
    except InputError:
        return []


def _reshaping(runs: Runs, bindings: Sequence[Binding]) -> Iterator[Diagnostic]:
    """GS510 where some value of a param would give a result another shape."""
    for binding in bindings:
        call = runs.recordings[1].calls[binding.slot.call]
        values = [each for value in runs.others.get(binding.param, ()) for each in _converted(binding, value)]
        if isinstance(binding.recorded, Ref) or not decides_shape(call, binding.slot.position, values):
            continue
        name = call.op._schema.arguments[binding.slot.position].name
        what = f"'{name}' of {call.name} decides the shape of its result"
        message = f"region '{runs.region.name}': {what}, at {call.site}"
        hint = "make the size a bucketed dim, or the param `specialize: true`"
        yield Diagnostic("GS510", message, file=call.site.file, line=call.site.line, hint=hint)
