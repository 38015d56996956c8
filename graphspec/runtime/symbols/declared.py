"""What the updates of a region pick in a recording, and what they can pick."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from graphspec import spec as language
from graphspec.backends import updates
from graphspec.errors import HazardError
from graphspec.recording.calls import Call, Recording
from graphspec.runtime.symbols.node import Origin


def picked(region: language.Region, recording: Recording) -> dict[tuple[int, int], Origin]:
    """Each argument that an update refreshes, by call and position, and the param or item it comes from.

    An update that fits nothing picks nothing here: binding it says so.
    """
    found: dict[tuple[int, int], Origin] = {}
    for update in region.updates:
        try:
            calls = updates.occurrences(region, update, recording)
        except HazardError:
            continue
        for number, index in enumerate(calls):
            names = [argument.name for argument in recording.calls[index].op._schema.arguments]
            if update.arg in names:
                path = (number,) if update.each == "occurrence" else ()
                found[index, names.index(update.arg)] = (update.param, path)
    return found


def numbers_of(update: language.Update, region: language.Region, recording: Recording) -> list[tuple[int, int]]:
    """Each call an update picks, with its number among the calls of its operator."""
    return list(enumerate(updates.occurrences(region, update, recording)))


def calls_of(recording: Recording, op: str) -> list[int]:
    """The calls of an operator, as `at` counts them."""
    return [index for index, call in enumerate(recording.calls) if call.name == op]


def suggestion(op: str, argument: str, param: str, *, at: Sequence[int] | None = None, each: bool = False) -> str:
    """The update to declare, as YAML."""
    picks = f", at: {list(at)}" if at is not None else ", each: occurrence" if each else ""
    return f'updates: [{{op: "{op}", arg: {argument}, from: {param}{picks}}}]'


def is_view(call: Call) -> bool:
    """Whether a call makes another look at memory that exists: its arguments are part of an address."""
    return not call.born and not call.writes


def decides_shape(call: Call, position: int, values: Iterable[Any]) -> bool:
    """Whether the results of a call have another shape for one of these values of an argument."""
    argument = list(call.arguments().values())[position]
    before = updates.result_shapes(call, position, argument)
    if before is None:
        return False
    if isinstance(argument, tuple):
        values = [value if isinstance(value, (list, tuple)) else [value] for value in values]
    shapes = (updates.result_shapes(call, position, value) for value in values)
    return any(after is not None and after != before for after in shapes)
