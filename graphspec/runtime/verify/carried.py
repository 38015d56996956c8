"""What one run leaves to the next, to be put back between two runs and compared after them.

These are the declared states, and whatever else of the model a run writes: running statistics, undeclared caches,
the parameters of a training step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from graphspec.plan import Plan
from graphspec.runtime.holdings.preserve import Session, preserve
from graphspec.runtime.opened.states import States
from graphspec.runtime.values.axes import Axes

Saved = list[tuple[torch.Tensor, torch.Tensor]]


class Carried:
    """Every tensor that carries something over, by the name a message gives it."""

    def __init__(self, plan: Plan, states: States, others: Mapping[str, torch.Tensor]) -> None:
        """``others`` are tensors of the model that a run writes; see `written`."""
        self._declared = {
            path if path != name else f"state {name}": (name, tensor)
            for name in states
            for path, tensor in states.tensors(name).items()
        }
        self._buffers = plan.buffers
        self._largest = {dim: size for dim, size in _largest(plan).items() if size > 1}
        known = {_storage(tensor) for _, tensor in self._declared.values()}
        self._others = {name: tensor for name, tensor in others.items() if _storage(tensor) not in known}

    def save(self) -> Saved:
        """Every tensor with a copy of its content."""
        return [(tensor, tensor.detach().clone()) for tensor in self._tensors().values()]

    def restore(self, saved: Saved) -> None:
        """Put back what `save` returned."""
        with torch.no_grad():
            for tensor, content in saved:
                tensor.copy_(content)

    def contents(self, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """A copy of each tensor after a run of these real sizes.

        Rows that the bucket only padded are cut off in tensors that the model owns. In others the runtime keeps them
        as they were, so they are compared too.
        """
        static = {label for label, (name, _) in self._declared.items() if self._buffers[name].declared.attr is None}
        return {
            label: (tensor if label in static else self._cut(label, tensor, sizes)).detach().clone()
            for label, tensor in self._tensors().items()
        }

    def real_rows(self, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """A copy of the real rows of each tensor."""
        return {label: self._cut(label, tensor, sizes).detach().clone() for label, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {**{label: tensor for label, (_, tensor) in self._declared.items()}, **self._others}

    def _cut(self, label: str, tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        for axis, (dim, factor) in self._axes(label, tensor).items():
            if dim in sizes:
                tensor = tensor.narrow(axis, 0, min(factor * sizes[dim], tensor.shape[axis]))
        return tensor

    def _axes(self, label: str, tensor: torch.Tensor) -> Mapping[int, tuple[str, int]]:
        """The axes that stand for a bucketed dim: declared, else the first axis as long as the dim's largest size."""
        shape = self._buffers[self._declared[label][0]].shape if label in self._declared else None
        if shape is not None:
            return {i: scaled for i, scaled in Axes.declared(shape).scaled.items() if scaled[0] in self._largest}
        lengths = list(tensor.shape)
        return {lengths.index(size): (dim, 1) for dim, size in self._largest.items() if size in lengths}


def _largest(plan: Plan) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for bucket in plan.buckets:
        for dim, size in bucket.sizes:
            sizes[dim] = max(size, sizes.get(dim, 0))
    return sizes


def written(session: Session) -> dict[str, torch.Tensor]:
    """The tensors that were written within a session until now, one name for each storage."""
    names = set(session.changes().written)
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for slot, tensor in session.reach.tensors:
        if slot.name in names:
            found.setdefault(_storage(tensor), (slot.name, tensor))
    named: dict[str, torch.Tensor] = {}
    for name, tensor in found.values():  # a dict whose keys have no names gives all it holds the same one
        own = next(each for number in itertools.count(1) if (each := _numbered(name, number)) not in named)
        named[own] = tensor
    return named


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name} #{number}"


def written_by(model: Any, calls: Iterable[Callable[[], object]]) -> dict[str, torch.Tensor]:
    """The tensors of the model that these calls write; each is made without a trace.

    What a first call creates, such as the state of an optimizer, stays at its creation value: what the next one writes
    of it is found by making them again.
    """
    every = list(calls)
    for _ in range(2):
        with preserve({"model": model}) as session:
            for call in every:
                call()
            found = written(session)
        if not session.created:
            break
    return found


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
