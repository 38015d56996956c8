"""What one run leaves to the next, to be put back between two runs and compared after them.

These are the declared states, and whatever else of the model a run writes: running statistics, undeclared caches,
the parameters of a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from graphspec.runtime.holdings.preserve import preserve
from graphspec.runtime.values.axes import Axes

if TYPE_CHECKING:
    from graphspec.runtime.runner import Runner

Saved = list[tuple[torch.Tensor, torch.Tensor]]


class Carried:
    """Every tensor that carries something over, by the name a message gives it."""

    def __init__(self, runner: Runner, calls: Iterable[Callable[[], object]]) -> None:
        """``calls`` are run once each, without a trace, to see what they write."""
        self._declared = {
            path if path != name else f"state {name}": (name, tensor)
            for name in runner.state
            for path, tensor in runner.state.tensors(name).items()
        }
        self._buffers = runner.plan.buffers
        self._largest = {dim: size for dim, size in _largest(runner).items() if size > 1}
        self._others = _written(runner, calls, {_storage(tensor) for _, tensor in self._declared.values()})

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


def _largest(runner: Runner) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for bucket in runner.plan.buckets:
        for dim, size in bucket.sizes:
            sizes[dim] = max(size, sizes.get(dim, 0))
    return sizes


def _written(runner: Runner, calls: Iterable[Callable[[], object]], known: set[int]) -> dict[str, torch.Tensor]:
    """The tensors of the model that the calls write, one name for each, those in ``known`` storages left out."""
    with preserve({"model": runner.model}) as session:
        for call in calls:
            call()
        written = set(session.changes().written)
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for slot, tensor in session.reach.tensors:
        if slot.name in written and _storage(tensor) not in known:
            found.setdefault(_storage(tensor), (slot.name, tensor))
    return dict(found.values())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
