"""What only a second value of a param can tell: whether an argument is the param, where symbols could not be followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphspec import spec as language
from graphspec.errors import Diagnostic
from graphspec.runtime.recording import Call, Recording, Ref
from graphspec.runtime.symbols.declared import decides_shape, numbers_of
from graphspec.runtime.symbols.judge import given, holds
from graphspec.runtime.symbols.trace import Passed
from graphspec.runtime.updates import Binding, refreshed

#: One thing of the first run, and of the second.
Both = tuple[Any, Any]


def unseen(
    region: str, passed: Sequence[Passed], recordings: tuple[Recording, Recording], second: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """GS722 where torch took a number, and no operator it called was given just that number in both runs.

    ``second`` has the params of the second run. Recordings of different lengths are compared elsewhere.
    """
    before, after = (recording.calls for recording in recordings)
    for one in passed:
        first, last = one.calls
        if first == last or len(before) != len(after) or one.node.origin is None:
            continue
        name, path = one.node.origin
        value = second[name]
        for index in path:
            value = value[index]
        pairs = zip(before[first:last], after[first:last], strict=True)
        if value == one.node.value or any(_follows(pair, (one.node.value, value)) for pair in pairs):
            continue
        message = f"region '{region}': {one.function} computes with the param '{one.node.text}' on the host, at {one.site}"
        hint = f"compute it outside and pass it as a param of its own, or make '{name}' a 0-d buffer `from: {name}`"
        yield Diagnostic("GS722", message, file=one.site.file, line=one.site.line, hint=hint)


def _follows(calls: Both, values: Both) -> bool:
    pairs = zip(given(calls[0]), given(calls[1]), strict=False)
    return any(holds(old, values[0]) and holds(new, values[1]) for old, new in pairs)


def unfit(
    region: language.Region,
    bindings: Sequence[Binding],
    recordings: tuple[Recording, Recording],
    params: tuple[Mapping[str, Any], Mapping[str, Any]],
    taken: frozenset[str],
) -> Iterator[Diagnostic]:
    """GS510 where an update would write over something else than the param it comes from.

    Only for params in ``taken``, which the region is given: what it is not given, it cannot pass on, and an update
    replaces what stands there.
    """
    calls = tuple(recording.calls for recording in recordings)
    if len(calls[0]) != len(calls[1]):
        return
    wrong = {
        (binding.slot.call, binding.slot.position): binding
        for binding in bindings
        if binding.param in taken and not all(_is(binding, calls[run], params[run]) for run in (0, 1))
    }
    for (index, position), binding in wrong.items():
        call = calls[1][index]
        name = call.op._schema.arguments[position].name
        message = (
            f"region '{region.name}': an update refreshes {call.name} '{name}' from the param '{binding.param}', which is "
            f"not what the model passes there, at {call.site}"
        )
        fits = [
            number
            for update in refreshed(region)
            if update.param == binding.param and update.arg == name
            for number, other in numbers_of(replace(update, at=None), region, recordings[1])
            if (other, position) not in wrong and any((b.slot.call, b.slot.position) == (other, position) for b in bindings)
        ]
        hint = (
            f"pick the calls that are given '{binding.param}' itself: at: {fits}"
            if fits
            else f"pass '{binding.param}' itself, or compute the value outside and declare it as a param of its own"
        )
        yield Diagnostic("GS510", message, file=call.site.file, line=call.site.line, hint=hint)


def _is(binding: Binding, calls: Sequence[Call], params: Mapping[str, Any]) -> bool:
    recorded = list(calls[binding.slot.call].arguments().values())[binding.slot.position]
    if isinstance(recorded, Ref):
        return False
    wanted = replace(binding, recorded=recorded).convert(params[binding.param])
    return bool((list(recorded) if isinstance(recorded, tuple) else recorded) == wanted)


def reshaping(region: str, bindings: Sequence[Binding], recording: Recording, others: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """GS510 where some value of a param would give a result another shape. ``others`` has values to try."""
    for binding in bindings:
        call = recording.calls[binding.slot.call]
        values = [binding.convert(value) for value in others.get(binding.param, ())]
        if isinstance(binding.recorded, Ref) or not decides_shape(call, binding.slot.position, values):
            continue
        name = call.op._schema.arguments[binding.slot.position].name
        message = f"region '{region}': '{name}' of {call.name} decides the shape of its result, at {call.site}"
        hint = "make the size a bucketed dim, or the param `specialize: true`"
        yield Diagnostic("GS510", message, file=call.site.file, line=call.site.line, hint=hint)
