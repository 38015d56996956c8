"""Tensors as memory: storages, layouts, bytes and checksums, and how to work on them unseen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

_CHUNK_WORDS = 1 << 18  # 2 MiB: stays in a CPU's cache

_SPARSE: Mapping[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


@contextmanager
def quiet() -> Iterator[None]:
    """Work of graphspec's own: no dispatch mode, no function mode, no autograd."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


@contextmanager
def outside_inference() -> Iterator[None]:
    """What is made here is written in place later, as no inference tensor may be: the caller's mode stays outside."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


@contextmanager
def outside_autocast(device: torch.device) -> Iterator[None]:
    """A capture is made once, for callers inside and outside of autocast alike: a region says its own.

    Nor is anything counted as being around it: what autocast keeps of weights goes where the outermost block ends, and
    that is one of the model's.
    """
    kinds = [kind for kind in dict.fromkeys(("cpu", device.type)) if torch.is_autocast_enabled(kind)]
    around = torch.autocast_increment_nesting()
    try:
        for _ in range(around):
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        for kind in kinds:
            torch.set_autocast_enabled(kind, False)
        yield
    finally:
        torch.clear_autocast_cache()
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)
        for _ in range(around - 1):
            torch.autocast_increment_nesting()


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None where it has none of its own (sparse, opaque, some wrapper subclasses)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    """A weak reference to a storage: hashable, and as long as it lives the address is not reused."""
    return StorageWeakRef(storage)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor with a storage of its own inside arguments or results: containers, sparse and wrapper tensors."""
    if isinstance(value, torch.Tensor):
        inner = inner_tensors(value)
        if inner is None:
            yield value
        else:
            for tensor in inner:
                yield from tensors_in(tensor)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def inner_tensors(tensor: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """The tensors that a sparse or wrapper tensor keeps its content in; None for a plain one."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        names = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]
        return tuple(getattr(tensor, name) for name in names)
    if tensor.layout == torch.strided or tensor.layout not in _SPARSE or tensor.device.type == "meta":
        return None
    with quiet():
        return tuple(getattr(tensor, name)() for name in _SPARSE[tensor.layout])


class Layout(NamedTuple):
    """Where a plain tensor is and how it is read."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A `Layout`; of a sparse or wrapper tensor those of its inner tensors; of an opaque one nothing but its type."""
    inner = inner_tensors(tensor)
    if inner is not None:
        return (tuple(tensor.shape), tensor.dtype, *map(layout_of, inner))
    try:
        storage = tensor.untyped_storage()
        # A fake tensor has no address: its storage's own structure, and the place in it, stand for one.
        fake = storage.device.type == "meta"
        address = key_of(storage) + int(tensor.storage_offset()) if fake else tensor.data_ptr()
        return Layout(address, tuple(tensor.shape), tensor.stride(), tensor.dtype)
    except (NotImplementedError, RuntimeError, ValueError):  # opaque layouts, uninitialised parameters
        return (type(tensor),)


def key_of(storage: torch.UntypedStorage) -> int:
    """The address of the storage's own structure: unique while a weak reference to it is held."""
    key: int = storage._cdata
    return key


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The whole storage as a uint8 tensor that shares its memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def checksum(content: torch.Tensor, weights: torch.Tensor) -> int:
    """A 64-bit sum of a uint8 tensor that depends on every byte, on its place and on the length.

    ``weights`` are odd: a change of any single word always shows, others but for one chance in about 2**64.
    """
    words = content.numel() // 8
    body = content[: words * 8].view(torch.int64)
    chunks = (body[start : start + _CHUNK_WORDS] for start in range(0, words, _CHUNK_WORDS))
    sums = [(chunk * weights[: chunk.numel()]).sum() for chunk in chunks]
    tail = torch.zeros(8, dtype=torch.uint8, device=content.device)
    tail[: content.numel() - words * 8] = content[words * 8 :]
    total = torch.stack([*sums, tail.view(torch.int64)[0]])
    return int((total * weights[: total.numel()]).sum()) ^ content.numel()


def mixed_weights(device: torch.device) -> torch.Tensor:
    """Odd 64-bit numbers with no structure (splitmix64), one for each word of a chunk."""
    mixed = torch.arange(1, _CHUNK_WORDS + 1, dtype=torch.int64) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    mixed = (mixed ^ (mixed >> 27)) * -7723592293110705685
    return ((mixed ^ (mixed >> 31)) | 1).to(device)
