"""Which recorded operator arguments a region's `updates` pick, and how a param becomes each of them."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from graphspec import spec as language
from graphspec.backends.base import Backend, Slot
from graphspec.errors import Diagnostic, HazardError, InputError, KeyPath
from graphspec.numbers import INTEGERS, leaves
from graphspec.plan import Plan
from graphspec.recording.calls import Call, Recording, Ref, map_parts


@dataclass(frozen=True)
class Binding:
    """One update slot and the param that feeds it. ``occurrence`` picks an item of the param's first axis."""

    slot: Slot
    param: str
    occurrence: int | None
    recorded: Any
    kind: str

    def convert(self, value: Any) -> Any:
        """The argument for a value of the param: a number, a list, or a tensor, as the operator takes it.

        Raises InputError for an integer that is too large for the argument.
        """
        if self.occurrence is not None:
            value = value[self.occurrence]
        self._refuse_large(value)
        if isinstance(self.recorded, Ref):
            return torch.as_tensor(value, dtype=self.recorded.dtype).reshape(self.recorded.size)
        if isinstance(self.recorded, tuple):
            return list(value) if isinstance(value, (list, tuple)) else [value]
        while isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        return float(value) if self.kind == "float" and isinstance(value, int) else value

    def _refuse_large(self, value: Any) -> None:
        dtype = str(self.recorded.dtype).removeprefix("torch.") if isinstance(self.recorded, Ref) else "int64"
        low, high = INTEGERS.get(dtype, INTEGERS["int64"])
        flat = value if isinstance(value, list) else [value]
        if flat and isinstance(flat[0], list):
            flat = list(leaves(flat))
        wide = next((each for each in flat if type(each) is int and not low <= each <= high), None)
        if wide is not None:
            message = (
                f"param '{self.param}' is {wide}, and an update hands it to an argument that holds {low} to {high}"
            )
            raise InputError(message, hint="give another value, or bound the param with `min` and `max`")


def bind_updates(
    region: language.Region,
    recording: Recording,
    values: Mapping[str, Any],
    alternatives: Mapping[str, Any],
    backend: Backend | None = None,
) -> list[Binding]:
    """The slots of every update of ``region``, with the values they are captured with.

    ``alternatives`` has another value in the range of each param, to see that an update changes no shape.
    ``backend`` says which arguments it can update; without one any can be.
    Raises HazardError: an operator that was not called, an argument it does not take, a value that does not fit.
    """
    can_update = backend.can_update if backend is not None else lambda _op, _arg: True
    found: list[Binding] = []
    for update in refreshed(region, can_update):
        calls = occurrences(region, update, recording)
        if update.each == "occurrence" and len(values[update.param]) != len(calls):
            _refuse(
                (region, update, "each"),
                f"'{update.param}' has {len(values[update.param])} items along its first axis for {len(calls)} "
                f"occurrences of {update.op}",
                "give the param one item for each occurrence, or pick occurrences with `at`",
            )
        for number, index in enumerate(calls):
            if backend is not None:
                _refuse_unsupported(region, update, recording, index, backend)
            occurrence = number if update.each == "occurrence" else None
            binding = _binding(region, update, recording, index, occurrence, values[update.param])
            _refuse_new_shapes(region, update, recording.calls[index], binding, alternatives[update.param])
            _refuse_second(region, update, recording.calls[index], binding, found)
            found.append(binding)
    return found


def _refuse_second(
    region: language.Region, update: language.Update, call: Call, binding: Binding, found: Sequence[Binding]
) -> None:
    """One argument has one source: of two, the last would win in silence."""
    place = (binding.slot.call, binding.slot.position)
    other = next((each for each in found if (each.slot.call, each.slot.position) == place), None)
    if other is not None:
        sources = " and ".join(f"'{each}'" for each in dict.fromkeys((other.param, binding.param)))
        _refuse(
            (region, update, "op"),
            f"two updates refresh '{update.arg}' of {call.name}, from {sources}, at {call.site}",
            "tell the calls apart with `at` or `within`, or keep one of the updates",
        )


#: Whether a device can update an argument of an operator, by their names.
CanUpdate = Callable[[str, str], bool]


def refreshed(region: language.Region, can_update: CanUpdate) -> tuple[language.Update, ...]:
    """The updates that write an argument; the others keep a graph for each value of their param."""
    return tuple(update for update in region.updates if not _specializes(update, can_update))


def specialized(plan: Plan, can_update: CanUpdate) -> frozenset[str]:
    """The params that have graphs of their own for each value."""
    declared = {name for name, param in plan.params.items() if param.specialize}
    updates = (update for region in plan.regions.values() for update in region.updates)
    return frozenset(declared.union(update.param for update in updates if _specializes(update, can_update)))


def _specializes(update: language.Update, can_update: CanUpdate) -> bool:
    """`strategy: specialize` is for devices that cannot update the argument; where they can, they do."""
    return update.strategy == "specialize" and not can_update(update.op, update.arg)


def _refuse_unsupported(
    region: language.Region, update: language.Update, recording: Recording, index: int, backend: Backend
) -> None:
    call = recording.calls[index]
    accepted = backend.updatable(call)
    if accepted is None or update.arg in accepted:
        return
    if accepted:
        close = difflib.get_close_matches(update.arg, accepted, 1)
        mean = f" Did you mean {close[0]}?" if close else ""
        takes = f"this device updates {', '.join(accepted)} of it.{mean}"
        _refuse((region, update, "arg"), f"'{update.arg}' of {call.name} cannot be updated, at {call.site}", takes)
    others = {other.name: backend.updatable(other) for other in recording.calls}
    can = "; ".join(f"{', '.join(taken)} of {name}" for name, taken in others.items() if taken)
    here = f"here this device updates {can}. " if can else ""
    _refuse(
        (region, update, "arg"),
        f"{call.name} has no argument that this device can update, at {call.site}",
        f"{here}Keep the value in a device tensor (a buffer with `from:`), or write `strategy: specialize`",
    )


def occurrences(region: language.Region, update: language.Update, recording: Recording) -> list[int]:
    """The calls an update picks, in capture order. Raises HazardError: there are none, or not so many."""
    named = [i for i, call in enumerate(recording.calls) if _is(call, update.op)]
    if not named:
        called = sorted({call.name for call in recording.calls})
        close = difflib.get_close_matches(update.op, called, 3)
        have = ", ".join(close or called[:12]) or "nothing"
        _refuse(
            (region, update, "op"), f"it never calls {update.op}, which an update names", f"operators it calls: {have}"
        )
    if update.within is not None:
        inside = [i for i in named if any(fnmatch.fnmatchcase(m, update.within) for m in recording.calls[i].modules)]
        if not inside:
            where = sorted({module for i in named for module in recording.calls[i].modules[-1:]})
            have = ", ".join(where) or "no module"
            _refuse(
                (region, update, "within"),
                f"{update.op} is never called within {update.within}",
                f"it is called within {have}",
            )
        named = inside
    if update.at is None:
        return named
    if max(update.at) >= len(named):
        _refuse(
            (region, update, "at"),
            f"{update.op} is called {len(named)} times, and an update picks occurrence {max(update.at)}",
            f"occurrences count from 0 to {len(named) - 1}, in capture order",
        )
    return [named[position] for position in update.at]


def _binding(
    region: language.Region,
    update: language.Update,
    recording: Recording,
    index: int,
    occurrence: int | None,
    value: Any,
) -> Binding:
    call = recording.calls[index]
    arguments = call.op._schema.arguments
    names = [argument.name for argument in arguments]
    if update.arg not in names:
        close = difflib.get_close_matches(update.arg, names, 1)
        mean = f" Did you mean {close[0]}?" if close else ""
        _refuse(
            (region, update, "arg"),
            f"{call.name} has no argument '{update.arg}'",
            f"it takes {', '.join(names)}.{mean}",
        )
    position = names.index(update.arg)
    recorded = call.arguments()[update.arg]
    kind = str(arguments[position].type)
    if recorded is None:
        given = ", ".join(name for name, item in call.arguments().items() if item is not None)
        _refuse(
            (region, update, "arg"),
            f"{call.name} was captured without '{update.arg}', so there is nothing to update, at {call.site}",
            f"pass it in the model; captured with: {given}",
        )
    if not call.born and not call.writes:
        _refuse(
            (region, update, "arg"),
            f"{call.name} is a view: its '{update.arg}' is part of an address",
            "update another operator",
        )
    binding = Binding(Slot(index, position, None), update.param, occurrence, recorded, kind)
    try:
        first = binding.convert(value)
    except InputError as error:
        _refuse((region, update, "from"), error.message, error.hint or "")
    except (IndexError, TypeError, RuntimeError, ValueError) as error:
        fix = "give the param the shape that the argument has, or pick other calls with `at`"
        _refuse(
            (region, update, "from"),
            f"the value of '{update.param}' does not fit {call.name} '{update.arg}': {error}",
            fix,
        )
    if kind in {"int", "List[int]", "Optional[int]"} and isinstance(first, float):
        wrong = f"'{update.param}' is a float, and {call.name} takes an int as '{update.arg}'"
        _refuse((region, update, "from"), wrong, "declare the param `type: int`")
    return Binding(Slot(index, position, first), update.param, occurrence, recorded, kind)


def _refuse_new_shapes(
    region: language.Region, update: language.Update, call: Call, binding: Binding, other: Any
) -> None:
    """An argument that changes the shape of a result cannot be updated: addresses are laid out for one shape."""
    if isinstance(binding.recorded, Ref):
        return
    before = result_shapes(call, binding.slot.position, binding.slot.value)
    try:
        replaced = binding.convert(other)
    except InputError as error:
        _refuse((region, update, "from"), error.message, error.hint or "")
    after = result_shapes(call, binding.slot.position, replaced)
    if before is not None and after is not None and before != after:
        _refuse(
            (region, update, "arg"),
            f"'{update.arg}' of {call.name} decides the shape of its result, at {call.site}",
            "make the size a bucketed dim, or the param `specialize: true`",
        )


def result_shapes(call: Call, position: int, value: Any) -> list[Any] | None:
    """The result shapes of a recorded call with one argument replaced; None where it has no meta kernel."""
    args = list(call.arguments().values())
    args[position] = value
    schema = call.op._schema.arguments
    made = [map_parts(item, _meta) for item in args]
    positional = [item for item, argument in zip(made, schema, strict=True) if not argument.kwarg_only]
    keyword = {argument.name: item for item, argument in zip(made, schema, strict=True) if argument.kwarg_only}
    try:
        result = call.op(*positional, **keyword)
    except Exception:  # noqa: BLE001 - operators without a meta kernel fail in many ways; then nothing can be said
        return None
    results = result if isinstance(result, (tuple, list)) else (result,)
    return [tuple(item.shape) if isinstance(item, torch.Tensor) else None for item in results]


def _meta(ref: Ref) -> torch.Tensor:
    return torch.empty_strided(ref.size, ref.stride, dtype=ref.dtype, device="meta")


def _is(call: Call, op: str) -> bool:
    name = str(call.op._name)
    return op in {name, name.partition(".")[0], call.name}


def _refuse(place: tuple[language.Region, language.Update, str], message: str, hint: str) -> NoReturn:
    """Refuse at a key of an update. The finding has the path in the spec; who holds the document adds the line."""
    region, update, key = place
    index = next((number for number, each in enumerate(region.updates) if each is update), None)
    path: KeyPath = (
        ("regions", region.name, "updates") if index is None else ("regions", region.name, "updates", index, key)
    )
    raise HazardError([Diagnostic("GS510", f"region '{region.name}': {message}", path=path, hint=hint)])
