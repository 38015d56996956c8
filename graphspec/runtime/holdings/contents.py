"""What operators write: the bytes of every storage before its first declared write, to be put back.

Invariants:
- Before an operator runs, each storage that it writes (recording/writes.py) is cloned, whole and once.
- A storage born inside goes back to its creation value: its content before the first write, or, born uninitialised,
  before the first write after its first read.
- Storages that existed before and were read are compared by checksum (`unexplained`): a custom operator whose schema
  lies, a write through shared memory or by another thread is found, though it cannot be undone.
- Storages are known by weak references, which also keep an address from being reused; clones of dead ones are dropped.
- Own work runs with every mode off, so nothing of it is seen or recorded. Fake and meta tensors have no content.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from graphspec.recording.writes import Effect, effect_of
from graphspec.runtime.holdings.storages import (
    bytes_of,
    checksum,
    key_of,
    mixed_weights,
    quiet,
    storage_of,
    tensors_in,
    weak,
)

__all__ = ["Contents", "quiet"]

_SWEEP_BYTES = 64 << 20
_SWEEP_COUNT = 1024


@dataclass
class _Record:
    """One storage. ``raw``: born uninitialised and not read yet. ``clone``: the bytes to put back when ``dirty``."""

    ref: StorageWeakRef
    tensor: str
    born: bool = False
    raw: bool = False
    kept: bool = False
    dirty: bool = False
    clone: torch.Tensor | None = None
    checksum: int | None = None

    def storage(self) -> torch.UntypedStorage | None:
        """The storage, if it still lives."""
        found: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self.ref.cdata)
        return found


#: Devices whose streams can be captured.
_RECORDS = ("cuda", "npu")


class Contents(TorchDispatchMode):
    """The dispatch mode that watches writes. ``describe`` names a tensor of the user's, or gives None."""

    supports_higher_order_operators = True

    def __init__(self, describe: Callable[[torch.Tensor], str | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._describe = describe
        #: Whether functions made by torch.compile run compiled below this mode, which must see all that they write.
        self.below_compiled = False
        self._records: dict[int, _Record] = {}
        self._weights: dict[torch.device, torch.Tensor] = {}
        self._cloned_since_sweep = 0
        self._sweep_at = _SWEEP_COUNT

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]  # torch asks each mode on its stack
        """Whether compiled code runs below this mode."""
        return self.below_compiled

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        effect = effect_of(func)
        with torch._C.DisableTorchFunction():
            self._before(func, effect, args, kwargs)
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            for tensor in tensors_in(result):
                self._born(tensor, raw=effect.unfilled)
        return result

    def keep(self, value: Any) -> None:
        """Leave the storages of these tensors as they are at the end: results handed to the caller."""
        for tensor in tensors_in(value):
            record = self._record(tensor, "")
            if record is not None and record.born:
                record.kept = True

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """From now on the content that these tensors have is what they are put back to."""
        for outer in tensors:
            for tensor in tensors_in(outer):
                record = self._record(tensor, "")
                if record is not None:
                    record.raw, record.dirty, record.clone = False, False, None

    def save(self, tensors: Iterable[torch.Tensor], why: str) -> None:
        """Clone these tensors' storages now, as if an operator were about to write them."""
        for outer in tensors:
            for tensor in tensors_in(outer):
                record = self._record(tensor, why)
                if record is not None:
                    self._write(record)

    def written(self) -> tuple[str, ...]:
        """Names of the storages from before the session that were written since the last `restore`."""
        return tuple(record.tensor for record in self._records.values() if record.dirty and not record.born)

    def restore(self) -> None:
        """Put every written storage back; the clones stay for the next time."""
        with quiet(), self._other_streams_done():
            for record in self._records.values():
                storage = record.storage() if record.dirty and not record.kept else None
                if storage is not None and record.clone is not None:
                    if storage.nbytes() != record.clone.numel():
                        storage.resize_(record.clone.numel())
                    bytes_of(storage).copy_(record.clone)
                record.dirty = False
        self._sweep()

    def unexplained(self) -> list[str]:
        """Storages that were read and whose content changed though no schema said so. After `restore`."""
        with quiet(), self._other_streams_done():
            return [record.tensor for record in self._records.values() if self._lied(record)]

    @contextmanager
    def _other_streams_done(self) -> Iterator[None]:
        """Regions run on streams of their own: wait for them before, and let them wait for us after."""
        on_device = any(clone.device.type != "cpu" for clone in self._clones()) or any(
            device.type != "cpu" for device in self._weights
        )
        if on_device:
            torch.accelerator.synchronize()
        yield
        if on_device:
            torch.accelerator.synchronize()

    def _clones(self) -> Iterator[torch.Tensor]:
        return (record.clone for record in self._records.values() if record.clone is not None)

    def _lied(self, record: _Record) -> bool:
        storage = record.storage() if record.checksum is not None else None
        if storage is None:
            return False
        content = record.clone if record.clone is not None else bytes_of(storage)
        return self._checksum(content) != record.checksum

    def _before(self, func: Any, effect: Effect, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        outputs = list(tensors_in(effect.targets(args, kwargs)))
        targets = {id(tensor) for tensor in outputs}
        for tensor in tensors_in((args, kwargs)):
            if id(tensor) not in targets:
                record = self._record(tensor, str(func))
                if record is not None and not effect.views:
                    self._read(record)
        self.save(outputs, str(func))

    def _record(self, tensor: torch.Tensor, why: str) -> _Record | None:
        """The record of a tensor's storage; a new one counts as older than the session. None: there is no content."""
        storage = storage_of(tensor)
        if storage is None or storage.device.type == "meta" or storage.nbytes() == 0:
            return None
        record = self._records.get(key_of(storage))
        if record is None:
            name = self._describe(tensor)
            own = name is None and _captured(storage.device)  # torch_npu allocates below what modes see
            name = name or f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)} used by {why}"
            record = self._records[key_of(storage)] = _Record(weak(storage), name, born=own)
        return record

    def _born(self, tensor: torch.Tensor, *, raw: bool) -> None:
        storage = storage_of(tensor)
        if storage is None or storage.device.type == "meta" or key_of(storage) in self._records:
            return
        if len(self._records) >= self._sweep_at:
            self._sweep()
        self._records[key_of(storage)] = _Record(weak(storage), "", born=True, raw=raw)

    def _read(self, record: _Record) -> None:
        record.raw = False
        if not record.born and record.checksum is None and record.clone is None:
            storage = record.storage()
            if storage is not None and not _captured(storage.device):
                with quiet():
                    record.checksum = self._checksum(bytes_of(storage))

    def _write(self, record: _Record) -> None:
        if record.raw:
            return
        record.dirty = True
        storage = record.storage() if record.clone is None else None
        if storage is None or _captured(storage.device):
            return
        with quiet():
            record.clone = bytes_of(storage).clone()
        if record.born:
            self._cloned_since_sweep += record.clone.numel()
            if self._cloned_since_sweep > _SWEEP_BYTES:
                self._sweep()

    def _sweep(self) -> None:
        """Forget dead storages and their clones."""
        self._records = {key: record for key, record in self._records.items() if record.storage() is not None}
        self._sweep_at = 2 * len(self._records) + _SWEEP_COUNT
        self._cloned_since_sweep = 0

    def _checksum(self, content: torch.Tensor) -> int:
        weights = self._weights.get(content.device)
        if weights is None:
            weights = self._weights[content.device] = mixed_weights(content.device)
        return checksum(content, weights)


def _captured(device: torch.device) -> bool:
    """Whether what is launched now goes into a graph: nothing is executed, and a clone would become part of it.

    The device itself is asked; models are told so in dry runs too (hazards/capturing.py).
    """
    if device.type not in _RECORDS:
        return False
    ask = inspect.unwrap(getattr(torch, device.type).is_current_stream_capturing)
    return bool(ask())
