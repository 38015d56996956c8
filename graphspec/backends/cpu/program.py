"""A recorded region with every address filled in: what a replayer issues.

`link` is to a `Recording` what a linker is to an object file: it turns each (storage, offset, size, stride) into a
tensor at its final address. Tensors are detached aliases made for this program alone, so that nothing a user does to
their own tensor objects (``.data =``, ``requires_grad_``) can reach a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from graphspec.backends.cpu.issue import Issue, Number, map_refs
from graphspec.recording.calls import Ref

#: Where a storage lies: the real storage, and the byte at which the recorded one begins in it.
Location = tuple[torch.UntypedStorage, int]


@dataclass(frozen=True, slots=True)
class At:
    """A tensor argument: an index into ``Program.tensors``."""

    index: int


@dataclass(frozen=True, slots=True)
class SlotAt:
    """An argument that is refreshed before replays: an index into ``Program.values``."""

    index: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operator to issue. ``args`` is in schema order; ``copies`` pairs return values with destinations."""

    op: OpOverload
    args: tuple[Any, ...]
    copies: tuple[Any, ...]
    issue: Issue


@dataclass
class Program:
    """Everything a replay needs. ``values`` are the current values of the update slots, in slot order."""

    steps: tuple[Step, ...]
    tensors: tuple[torch.Tensor, ...]
    values: list[Any]
    outputs: tuple[torch.Tensor, ...]

    def write(self, slot: SlotAt | At, value: Any) -> None:
        """Refresh one updatable argument: a host value, a tensor, or the 0-d tensor that stands for a number."""
        if isinstance(slot, At):
            tensor = self.tensors[slot.index]
            tensor.copy_(value) if isinstance(value, torch.Tensor) else tensor.fill_(value)
        else:
            self.values[slot.index] = value


class Linker:
    """Collects the tensors of one program, one for each distinct place."""

    def __init__(self, locate: Callable[[int], Location]) -> None:
        self._locate = locate
        self.tensors: list[torch.Tensor] = []
        self._seen: dict[Ref, int] = {}

    def bind(self, value: Any) -> Any:
        """``value`` with each `Ref` and `Number` replaced by the place of its tensor."""
        return map_refs(value, self._place)

    def arguments(self, issue: Issue) -> list[Any]:
        """The arguments of a call; an offset that counts from the start of a storage begins where that begins now."""
        bound = [self.bind(value) for value in issue.args]
        for index, argument in enumerate(issue.op._schema.arguments):
            if argument.name == "storage_offset" and isinstance(bound[index], int):
                (ref, *_) = issue.args  # `self`, by the schema of every operator that has such an argument
                bound[index] += self._locate(ref.storage)[1] // ref.dtype.itemsize
        return bound

    def tensor(self, ref: Ref) -> torch.Tensor:
        """The tensor of one recorded place, at its final address."""
        return self.tensors[self._place(ref).index]

    def own(self, value: torch.Tensor) -> At:
        """A tensor that only this program writes."""
        self.tensors.append(value.detach().clone())
        return At(len(self.tensors) - 1)

    def _place(self, value: Ref | Number) -> At:
        if isinstance(value, Number):
            self.tensors.append(torch.tensor(value.value, dtype=value.dtype))
            return At(len(self.tensors) - 1)
        index = self._seen.get(value)
        if index is None:
            index = self._seen[value] = len(self.tensors)
            self.tensors.append(_tensor(value, self._locate(value.storage)))
        return At(index)


def link(
    issues: Sequence[Issue],
    outputs: Sequence[Ref],
    locate: Callable[[int], Location],
    updatable: Mapping[tuple[int, int], Any],
) -> tuple[Program, dict[tuple[int, int], SlotAt | At]]:
    """The program of ``issues``, and the slot of each ``(issue, argument position)`` in ``updatable``.

    ``updatable`` gives the first value of each slot.
    """
    linker = Linker(locate)
    values: list[Any] = []
    slots: dict[tuple[int, int], SlotAt | At] = {}
    steps = []
    for number, issue in enumerate(issues):
        args = linker.arguments(issue)
        for index, argument in enumerate(issue.args):
            key = number, issue.position(index)
            if key not in updatable:
                continue
            if isinstance(argument, Ref):  # the recorded tensor belongs to the model, or to another call
                args[index] = linker.own(updatable[key])
            elif not isinstance(argument, Number):
                values.append(updatable[key])
                args[index] = SlotAt(len(values) - 1)
            slots[key] = args[index]
        steps.append(Step(issue.op, tuple(args), tuple(linker.bind(c) for c in issue.copies), issue))
    results = tuple(linker.tensor(ref) for ref in outputs)
    return Program(tuple(steps), tuple(linker.tensors), values, results), slots


def _tensor(ref: Ref, location: Location) -> torch.Tensor:
    storage, start = location
    offset, remainder = divmod(start, ref.dtype.itemsize)
    if remainder:  # arena offsets are multiples of 64 and outside storages start at 0
        message = f"a {ref.dtype} tensor cannot begin at byte {start}"
        raise AssertionError(message)
    tensor = torch.empty(0, dtype=ref.dtype, device=storage.device)
    tensor.set_(storage, offset + ref.offset, ref.size, ref.stride)
    if ref.conj:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if ref.neg else tensor
