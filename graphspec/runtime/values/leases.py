"""What eager regions and callers get of a block's memory: tensors in another storage, so that what is kept can be told.

A *lease* is a second storage over the bytes of a block. While only graphspec holds tensors in it, nothing was kept and
nothing needs to be copied. Where something was kept, the storage is given memory of its own, with all its tensors and
views at once (`move_out`): they hold what they held, and the block is free to be made anew.

A numpy array holds an address, which cannot be moved: it is looked for when something was kept.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any
from weakref import WeakSet

import torch

from graphspec.runtime.values.blocks import Block

_use_count = torch._C._storage_Use_Count


class Lease:
    """Tensors on the bytes of a block. ``own``: on a copy of them, which `flush` and `pull` keep equal."""

    def __init__(self, block: Block, *, own: bool) -> None:
        self._raw = block.memory()
        self.own = own
        self._storage = self._raw.clone().untyped_storage() if own else _over(self._raw)
        self._tensors: dict[Any, torch.Tensor] = {}
        self._version = 0

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like ``tensor``, which lies in the block, in this storage. Detach it before it is handed out."""
        form = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
        found = self._tensors.get(form)
        if found is None:
            found = self._tensors[form] = self._like(tensor)
            self._version += found._version
        return found

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in this storage."""
        return bool(tensor.untyped_storage()._cdata == self._storage._cdata)

    def held(self, known: int = 0) -> bool:
        """Whether somebody else still holds a tensor of this storage, beside ``known`` ones."""
        return bool(_use_count(self._storage._cdata) > 1 + len(self._tensors) + known)

    @property
    def held_by_address(self) -> bool:
        """Whether somebody holds the address itself, which `move_out` leaves behind."""
        return self._raw.device.type == "cpu" and held_by_address(self._storage)

    def move_out(self) -> None:
        """Give the storage memory of its own: all its tensors hold there what they held."""
        _swap(self._storage, self._raw.clone().untyped_storage())
        self.own = True

    def was_written(self) -> bool:
        """Whether a tensor that was handed out was written into, since this was last asked or the first was made."""
        before, self._version = self._version, sum(tensor._version for tensor in self._tensors.values())
        return self._version > before

    def flush(self) -> None:
        """What was written into the copy is written into the block."""
        self._raw.copy_(self._bytes())

    def pull(self) -> None:
        """What was written into the block is written into the copy."""
        self._bytes().copy_(self._raw)

    def _bytes(self) -> torch.Tensor:
        raw = torch.empty(0, dtype=torch.uint8, device=self._raw.device)
        return raw.set_(self._storage, 0, self._raw.shape, (1,))

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        offset, rest = divmod(tensor.data_ptr() - self._raw.data_ptr(), tensor.element_size())
        assert rest == 0 <= offset, "the tensor does not lie in the block"
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        alias.set_(self._storage, offset, tensor.shape, tensor.stride())
        if tensor.is_conj():
            alias = alias.conj()
        return torch._neg_view(alias) if tensor.is_neg() else alias


class LentMemory(Lease):
    """A lease for results without a copy: ``watched`` are the tensors in it that ask before they are read."""

    def __init__(self, block: Block) -> None:
        super().__init__(block, own=False)
        self.watched: WeakSet[torch.Tensor] = WeakSet()

    @property
    def unwatched(self) -> bool:
        """Whether somebody holds a tensor in it that does not ask. A view holds what it is a view of."""
        with torch._C.DisableTorchFunctionSubclass():
            watched = list(self.watched)
            bases = {id(tensor._base) for tensor in watched if tensor._base is not None}
        return self.held(len({*map(id, watched), *bases}))


@functools.cache
def movable() -> bool:
    """Whether this torch can give a storage other memory: shown by doing it. If not, leases are always copies."""
    try:
        memory = torch.arange(4, dtype=torch.uint8)
        storage = _over(memory)
        kept = torch.empty(0, dtype=torch.uint8).set_(storage, 1, (2,), (1,))
        _swap(storage, memory.clone().untyped_storage())
        memory.fill_(9)
        return kept.tolist() == [1, 2] and _use_count(storage._cdata) == 2  # noqa: PLR2004
    except (AttributeError, RuntimeError, TypeError, AssertionError):
        return False


def held_by_address(storage: torch.UntypedStorage) -> bool:
    """Whether some tensor of a storage is held by what the garbage collector cannot see: a numpy array, foreign code.

    Looks at every object there is: for the one time that a region keeps what it did not keep before.
    """
    return any(hidden > _unseen_holders() for hidden in _hidden_holders(storage))


def _hidden_holders(storage: torch.UntypedStorage) -> list[int]:
    """For each tensor of a storage, its references that no object shows; views hold the tensor they view in C++."""
    with torch._C.DisableTorchFunctionSubclass():
        found = [each for each in gc.get_objects() if _is_tensor(each) and _lies_in(each, storage)]
        bases = {id(each._base) for each in found if each._base is not None}
    counts = []
    for number in range(len(found)):
        holders = [each for each in gc.get_referrers(found[number]) if each is not found]
        seen = sum(1 for holder in holders for each in gc.get_referents(holder) if each is found[number])
        counts.append(sys.getrefcount(found[number]) - seen - (id(found[number]) in bases))
    return counts


@functools.cache
def _unseen_holders() -> int:
    """What `_hidden_holders` counts for a tensor that one list holds: its own doing."""
    visible = [torch.zeros(1)]
    return max(_hidden_holders(visible[0].untyped_storage()))


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), torch.Tensor)  # not isinstance, which asks proxies what they are


def _lies_in(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    if tensor.layout is not torch.strided or not torch._C._has_storage(tensor):
        return False
    return bool(tensor.untyped_storage()._cdata == storage._cdata)


def _swap(one: Any, other: torch.UntypedStorage) -> None:
    """Two storages change their memory: every tensor of one lies in that of the other from now on."""
    one._swap_data_ptr_(other)


def _over(raw: torch.Tensor) -> torch.UntypedStorage:
    """A storage of its own over the bytes of ``raw``, which it keeps alive."""
    storage: torch.UntypedStorage = torch._C._from_dlpack(torch._C._to_dlpack(raw)).untyped_storage()
    return storage
