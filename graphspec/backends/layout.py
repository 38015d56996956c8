"""Where each value of a pool lies in the pool's one arena, from the lives the values really had.

This mirrors what a caching allocator does while graphs are captured one after another into a private pool: inside a
capture memory is reused as soon as a value dies, later captures reuse everything that no earlier capture still
holds. So replaying in an order the plan does not allow would really overwrite, on the CPU as on a device.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graphspec.recording.calls import Recording, Ref, touched_refs

ALIGNMENT = 64  # bytes; a cache line, and what torch's own CPU allocator aligns to


@dataclass(frozen=True, slots=True)
class Life:
    """One storage of a capture: ``bytes`` needed from call ``birth`` to call ``death``, both included.

    ``held_until`` is the last capture of the pool during which it must survive; None: it dies inside its own.
    """

    storage: int
    bytes: int
    birth: int
    death: int
    held_until: float | None = None


@dataclass
class ArenaLayout:
    """Offsets in bytes, assigned capture by capture. ``size`` is the bytes the arena needs, so far."""

    size: int = 0
    _held: list[tuple[float, int, int]] = field(default_factory=list)  # (held_until, offset, bytes)

    def place(self, index: int, lives: Sequence[Life]) -> Mapping[int, int]:
        """The offset of each storage of capture ``index``; captures are placed in capture order."""
        self._held = [entry for entry in self._held if entry[0] >= index]
        free = _FreeList(self.size, [(offset, size) for _, offset, size in self._held])
        offsets: dict[int, int] = {}
        dying: list[tuple[int, int, int]] = []  # (death, offset, bytes), ascending
        for life in sorted(lives, key=lambda life: (life.birth, -life.bytes)):
            while dying and dying[0][0] < life.birth:
                _, offset, size = dying.pop(0)
                free.give(offset, size)
            size = _aligned(life.bytes)
            offset = free.take(size)
            offsets[life.storage] = offset
            if life.held_until is None:
                bisect.insort(dying, (life.death, offset, size))
            else:
                self._held.append((life.held_until, offset, size))
        self.size = max(self.size, free.end)
        return offsets


class _FreeList:
    """Free blocks of the arena by offset; the best fit is taken, neighbours are joined, the end may grow."""

    def __init__(self, end: int, taken: Sequence[tuple[int, int]]) -> None:
        self.end = end
        self._blocks: list[tuple[int, int]] = []
        cursor = 0
        for offset, size in sorted(taken):
            if offset > cursor:
                self._blocks.append((cursor, offset - cursor))
            cursor = max(cursor, offset + size)
        if end > cursor:
            self._blocks.append((cursor, end - cursor))

    def take(self, size: int) -> int:
        """The offset of ``size`` free bytes, from the smallest block that has them."""
        if size == 0:
            return 0
        fitting = min((block for block in self._blocks if block[1] >= size), key=lambda b: b[1], default=None)
        if fitting is None:
            return self._grow(size)
        self._blocks.remove(fitting)
        offset, length = fitting
        if length > size:
            bisect.insort(self._blocks, (offset + size, length - size))
        return offset

    def give(self, offset: int, size: int) -> None:
        """Take a block back and join it with free neighbours."""
        if size == 0:
            return
        at = bisect.bisect(self._blocks, (offset, size))
        if at < len(self._blocks) and self._blocks[at][0] == offset + size:
            size += self._blocks.pop(at)[1]
        if at > 0 and sum(self._blocks[at - 1]) == offset:
            before = self._blocks.pop(at - 1)
            offset, size = before[0], before[1] + size
            at -= 1
        self._blocks.insert(at, (offset, size))

    def _grow(self, size: int) -> int:
        offset = self.end
        if self._blocks and sum(self._blocks[-1]) == self.end:
            offset = self._blocks.pop()[0]
        self.end = offset + size
        return offset


def lives(recording: Recording, calls: Sequence[Iterable[Ref]], outputs: Mapping[int, float], index: int) -> list[Life]:
    """The life of each born storage. ``calls`` has the tensors each issued call touches.

    ``outputs`` maps the storage of each output to the last capture of the pool that must leave it alone; ``index`` is
    this capture's own.
    """
    births: dict[int, int] = {}
    deaths: dict[int, int] = {}
    for number, refs in enumerate(calls):
        for ref in refs:
            births.setdefault(ref.storage, number)
            deaths[ref.storage] = number
    for storage in outputs:
        births.setdefault(storage, 0)
        deaths[storage] = len(calls)
    held = {storage: until for storage, until in outputs.items() if until > index}
    return [
        Life(storage, recording.bytes[storage], birth, deaths[storage], held.get(storage))
        for storage, birth in births.items()
        if recording.is_born(storage)
    ]


def peak_bytes(recording: Recording, outputs: Iterable[Ref]) -> int:
    """What the values of one recorded run need in an arena, with memory reused as they die."""
    calls = [list(touched_refs(call)) for call in recording.calls]
    own = lives(recording, calls, {ref.storage: float("inf") for ref in outputs}, 0)
    return _end(ArenaLayout().place(0, own), own)


def _end(offsets: Mapping[int, int], own: Sequence[Life]) -> int:
    return max((offsets[life.storage] + life.bytes for life in own), default=0)


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
