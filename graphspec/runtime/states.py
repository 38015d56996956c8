"""States as a caller sees them: read, written, reset, saved and put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from graphspec.errors import InputError
from graphspec.runtime.context import Context
from graphspec.runtime.inputs import exact_cast


class States(Mapping[str, Any]):
    """The states of a spec by name. Reading gives a copy: a tensor, or by path for a state that matches several."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names = tuple(name for name, buffer in context.spec.buffers.items() if buffer.role == "state")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> torch.Tensor | dict[str, torch.Tensor]:
        """A copy of a state at its largest size.

        A state given by an ``attr`` with ``*`` is a dict from path to tensor. Raises InputError for another name.
        """
        tensors = self.tensors(name)
        buffer = self._context.spec.buffers[name]
        if buffer.attr is not None and "*" in buffer.attr:
            return {path: tensor.detach().clone() for path, tensor in tensors.items()}
        return next(iter(tensors.values())).detach().clone()

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of a state themselves, by path."""
        if name not in self._names:
            have = ", ".join(self._names) or "no states"
            raise InputError(f"there is no state '{name}'", hint=f"the spec has {have}")
        buffers = self._context.buffers
        return buffers.owned[name] if name in buffers.owned else {name: buffers.static[name].largest}

    def write(self, name: str, value: torch.Tensor, *, rows: Sequence[int] | slice | None = None) -> None:
        """Write a state, or its ``rows`` along the first axis.

        ``value`` has the shape of what is written and its dtype. Raises InputError otherwise; nothing is broadcast.
        """
        tensors = self.tensors(name)
        if len(tensors) > 1:
            raise InputError(f"state '{name}' stands for {len(tensors)} tensors", hint="write the model's own tensors")
        target = next(iter(tensors.values()))
        if rows is not None and not target.dim():
            raise InputError(f"state '{name}' is a single number and has no rows", hint="leave `rows` out")
        index: Any = ... if rows is None else rows if isinstance(rows, slice) else list(rows)
        if not isinstance(value, torch.Tensor):
            raise InputError(f"state '{name}' takes a tensor, and a {type(value).__name__} came")
        shape = _rows_shape(target, index, name)
        if value.shape != shape:
            raise InputError(f"state '{name}' takes the shape {list(shape)} here, and {list(value.shape)} came")
        if value.dtype != target.dtype and exact_cast(value, target.dtype) is None:
            raise InputError(f"state '{name}' takes {target.dtype}, and {value.dtype} came")
        with torch.no_grad():
            target[index] = value.detach().to(dtype=target.dtype, device=target.device)

    def save(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What `restore` takes: every state tensor with a copy of its content."""
        found = (tensor for name in self._names for tensor in self.tensors(name).values())
        return [(tensor, tensor.detach().clone()) for tensor in found]

    def restore(self, saved: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Put back what `save` returned."""
        with torch.no_grad():
            for tensor, content in saved:
                tensor.copy_(content)


def _rows_shape(target: torch.Tensor, index: Any, name: str) -> torch.Size:
    if isinstance(index, list) and any(not -target.shape[0] <= row < target.shape[0] for row in index):
        raise InputError(f"state '{name}' has the rows 0 to {target.shape[0] - 1}, and rows {index} were asked for")
    return torch.empty(target.shape, device="meta")[index].shape
