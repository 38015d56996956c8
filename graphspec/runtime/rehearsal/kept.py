"""Tensors that an earlier call made out of its inputs and kept: ``if self.mask is None: self.mask = x > 0``.

What warm-up creates stays, so that lazy tables and caches are captured as they will be used. A tensor computed from
the *values* of an input must not: eager would have made it from the caller's first input, not from warm-up's.
A cache that starts empty and that every call writes in place is no such tensor: it is put back to its start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from graphspec.recording.calls import Call, Recording, refs_in, written_refs
from graphspec.recording.source import Site
from graphspec.runtime.holdings.storages import weak
from graphspec.runtime.rehearsal.observation import KeptRead

_SHAPE_ONLY = ("new_", "empty", "zeros", "ones", "full", "rand")


@dataclass(frozen=True)
class _KeptStorage:
    """``ref`` keeps the storage's identity unique. ``written_only``: born without input values, written with some."""

    ref: Any
    site: Site
    written_only: bool


class KeptInputs:
    """The storages that earlier calls of regions made from input values.

    Which they are is worked out when a later call reads something that an earlier one made: most never do.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _KeptStorage] = {}
        self._noted: list[tuple[Recording, Collection[int]]] = []
        self._settled: dict[int, Any] = {}

    def settle(self, tensors: Iterable[torch.Tensor]) -> None:
        """Of these it is known that they hold nothing of an input now, whatever they were made from."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._settled[storage._cdata] = weak(storage)

    def note(self, recording: Recording, given: Collection[int]) -> None:
        """A call of a region, recorded; ``given`` are the storages of its inputs."""
        self._noted.append((recording, given))

    def reads(self, recording: Recording, given: Collection[int]) -> Iterator[KeptRead]:
        """What a later call reads of them, besides its inputs."""
        read = {outside.storage._cdata for outside in recording.outside.values()}.difference(given)
        for noted in [each for each in self._noted if not each[0].born_keys().isdisjoint(read)]:
            self._noted = [each for each in self._noted if each is not noted]
            self._work_out(*noted)
        for index, outside in recording.outside.items():
            key = outside.storage._cdata
            kept = self._kept.get(key) if key not in given and key not in self._settled else None
            if kept is not None and not (kept.written_only and index in recording.written):
                yield KeptRead(tuple(outside.tensor.shape), kept.site)

    def _work_out(self, recording: Recording, given: Collection[int]) -> None:
        made, written = _dependent(recording, given)
        for index, site in {**written, **made}.items():
            storage = recording.alive(index)
            if storage is not None and recording.is_born(index):
                self._kept[storage._cdata] = _KeptStorage(weak(storage), site, index not in made)


def _dependent(recording: Recording, given: Collection[int]) -> tuple[dict[int, Site], dict[int, Site]]:
    """Storages computed from input values, and storages only written with such values; with the line."""
    made = {index: _NONE for index, outside in recording.outside.items() if outside.storage._cdata in given}
    written: dict[int, Site] = {}
    for call in recording.calls:
        targets = {ref.storage for ref in written_refs(call)}
        if not _reads(call, made.keys() | written.keys()):
            continue
        for index in targets - made.keys():
            written.setdefault(index, call.site)
        if not call.op._opname.startswith(_SHAPE_ONLY):
            made.update((index, call.site) for index in call.born)
    return {index: site for index, site in made.items() if site is not _NONE}, written


def _reads(call: Call, indices: Collection[int]) -> bool:
    return any(ref.storage in indices for part in (*call.args, *call.kwargs.values()) for ref in refs_in(part))


_NONE = Site("", 0, "")
