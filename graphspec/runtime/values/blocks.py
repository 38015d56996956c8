"""Blocks: pieces of memory that are made anew as a whole, and who made or wrote them when. The rules: docs/values.md.

Nothing is written down in a block when it is made or written: it knows the stamps of those who do so, and each of them
says when it last ran. So a replay costs one stamp, however much it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch


class Clock:
    """Counts what happens to memory: one for all runners of a model."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def tick(self, stamp: Stamp) -> None:
        """What ``stamp`` stands for has just run."""
        self.now = stamp.at = self.now + 1


class Stamp:
    """When something that makes or writes memory last ran, and what a message calls it: ``region 'decode'``."""

    __slots__ = ("at", "who")

    def __init__(self, who: str) -> None:
        self.who = who
        self.at = 0


@dataclass(eq=False)
class Block:
    """A static buffer, a tensor of the model's, or a copy. ``label`` names what lies in it.

    ``makers`` make it anew, ``writers`` write into it in place. ``memory`` gives its bytes.
    """

    label: str
    memory: Callable[[], torch.Tensor]
    makers: list[Stamp] = field(default_factory=list)
    writers: list[Stamp] = field(default_factory=list)

    def made_since(self, tick: int) -> Stamp | None:
        """Who may have made it anew after ``tick``; None: what lay there then lies there still."""
        return _latest(self.makers, tick)

    def changed_since(self, tick: int) -> Stamp | None:
        """Who may have made it anew or written into it after ``tick``."""
        return self.made_since(tick) or _latest(self.writers, tick)

    def taken_by(self, stamp: Stamp) -> bool:
        """Whether what ``stamp`` stands for makes it anew, or may use its memory for something else."""
        return stamp in self.makers

    def retire(self, stamps: Iterable[Stamp]) -> None:
        """These never run again: of them, the latest is remembered."""
        gone = frozenset(stamps)
        self.makers, self.writers = _retired(self.makers, gone), _retired(self.writers, gone)


@dataclass(eq=False)
class PoolBlock(Block):
    """What one graph keeps for one of its outputs in its pool, from its own capture ``first`` to ``last``.

    ``captures`` are the stamps of the pool's graphs in the order of their capture. By the pool rule (`plan.Span`) it is
    intact until one is replayed that is not between ``first`` and ``last``; ``last`` is infinite for what is held.
    """

    captures: list[Stamp] = field(default_factory=list)
    first: int = 0
    last: float = 0

    def made_since(self, tick: int) -> Stamp | None:
        """Who may have made it anew, or used its memory, after ``tick``."""
        return _latest(self._takers(), tick)

    def taken_by(self, stamp: Stamp) -> bool:
        """Whether a replay of this graph makes it anew, or may use its memory."""
        return any(taker is stamp for taker in self._takers())

    def _takers(self) -> Iterator[Stamp]:
        yield from self.captures[: self.first + 1]
        if self.last < len(self.captures):
            yield from self.captures[int(self.last) + 1 :]


def _latest(stamps: Iterable[Stamp], tick: int) -> Stamp | None:
    latest = max(stamps, key=lambda stamp: stamp.at, default=None)
    return latest if latest is not None and latest.at > tick else None


def _retired(stamps: list[Stamp], gone: frozenset[Stamp]) -> list[Stamp]:
    latest = max((stamp for stamp in stamps if stamp in gone), key=lambda stamp: stamp.at, default=None)
    return [stamp for stamp in stamps if stamp not in gone or stamp is latest]


def bytes_at(storage: torch.UntypedStorage, start: int, count: int) -> torch.Tensor:
    """``count`` bytes of a storage as a tensor that shares its memory."""
    raw = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return raw.set_(storage, start, (count,), (1,))
