"""States as a caller sees them: read, written, reset, saved and put back."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from graphspec.errors import InputError, ReplayError
from graphspec.plan import Plan
from graphspec.runtime.opened.sharing import SharedModel
from graphspec.runtime.values.buffers import Buffers
from graphspec.runtime.values.inputs import exact_cast
from graphspec.runtime.values.memory import Memory


class States(Mapping[str, Any]):
    """The states of a spec by name. Reading gives a copy: a tensor, or by path for a state that matches several."""

    def __init__(self, plan: Plan, buffers: Buffers, memory: Memory, shared: SharedModel) -> None:
        self._plan = plan
        self._buffers = buffers
        self._memory = memory
        self._shared = shared
        self._names = tuple(name for name, buffer in plan.buffers.items() if buffer.role == "state")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> torch.Tensor | dict[str, torch.Tensor]:
        """A copy of a state at its largest size.

        A state given by an ``attr`` with ``*`` is a dict from path to tensor. Raises InputError for another name.
        """
        tensors = self.tensors(name)
        buffer = self._plan.buffers[name].declared
        with self._shared.lock:
            copies = {path: tensor.detach().clone() for path, tensor in tensors.items()}
        return copies if buffer.attr is not None and "*" in buffer.attr else next(iter(copies.values()))

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors of a state themselves, by path."""
        if name not in self._names:
            have = ", ".join(self._names) or "no states"
            raise InputError(f"there is no state '{name}'", hint=f"the spec has {have}")
        buffers = self._buffers
        return buffers.owned[name] if name in buffers.owned else {name: buffers.static[name].largest}

    def write(self, name: str, value: torch.Tensor, *, rows: Sequence[int] | slice | None = None) -> None:
        """Write a state, or its ``rows`` along the first axis.

        ``value`` has the shape of what is written and its dtype. Raises InputError otherwise; nothing is broadcast. It
        ends the life of results that lie in the state.
        """
        tensors = self.tensors(name)
        if len(tensors) > 1:
            raise InputError(f"state '{name}' stands for {len(tensors)} tensors", hint="write the model's own tensors")
        target = next(iter(tensors.values()))
        if rows is not None and not target.dim():
            raise InputError(f"state '{name}' is a single number and has no rows", hint="leave `rows` out")
        index: Any = ... if rows is None else rows if isinstance(rows, slice) else _row_numbers(rows, name, target)
        if not isinstance(value, torch.Tensor) or value.is_meta or value.layout is not torch.strided:
            what = f"a {value.device} tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise InputError(f"state '{name}' takes a dense tensor, and {what} came")
        shape = _rows_shape(target, index)
        if value.shape != shape:
            raise InputError(f"state '{name}' takes the shape {list(shape)} here, and {list(value.shape)} came")
        if value.dtype != target.dtype and exact_cast(value, target.dtype) is None:
            raise InputError(f"state '{name}' takes {target.dtype}, and {value.dtype} came")
        own = value.detach().to(dtype=target.dtype, device=target.device).clone()  # it may be a view of the state
        with self._shared.lock, torch.no_grad():
            self._begin_anew(name)
            target[index] = own

    def reset(self) -> None:
        """Put every state back to its initial content. It ends the life of results that lie in states."""
        for name in self._names:
            self._begin_anew(name)
        self._buffers.reset()

    def __reduce__(self) -> NoReturn:
        message = "the states of a runner cannot be pickled or copied: they are the memory its graphs use"
        raise ReplayError(message, hint="take copies, runner.state[NAME]; open the spec again there")

    def save(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What `restore` takes: every state tensor with a copy of its content."""
        found = (tensor for name in self._names for tensor in self.tensors(name).values())
        return [(tensor, tensor.detach().clone()) for tensor in found]

    def restore(self, saved: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Put back what `save` returned."""
        with self._shared.lock, torch.no_grad():
            for name in self._names:
                self._begin_anew(name)
            for tensor, content in saved:
                tensor.copy_(content)

    def _begin_anew(self, name: str) -> None:
        static = self._buffers.static.get(name)
        owned = self._buffers.owned.get(name, {}).values()
        blocks = [self._shared.block(tensor) for tensor in owned] if static is None else [static.block]
        self._memory.begin_anew(name, blocks)


def _row_numbers(rows: Sequence[int], name: str, target: torch.Tensor) -> list[int]:
    count = target.shape[0]
    try:
        numbers = [operator.index(row) for row in rows if not isinstance(row, bool)]
    except TypeError:
        raise InputError(f"state '{name}' takes rows as a list of numbers or a slice, and {rows!r} came") from None
    if len(numbers) != len(rows) or any(not -count <= row < count for row in numbers):
        raise InputError(f"state '{name}' has the rows 0 to {count - 1}, and rows {list(rows)} were asked for")
    if len({row % count for row in numbers}) != len(numbers):
        raise InputError(f"state '{name}': rows {list(rows)} name one row twice", hint="name each row once")
    return numbers


def _rows_shape(target: torch.Tensor, index: Any) -> torch.Size:
    return torch.empty(target.shape, device="meta")[index].shape
