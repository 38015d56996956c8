"""Pools that several runners share: one of them runs at a time, and takes what it leaves behind with it before another.

The compiler has proven the lifetimes of each runner by itself. What may outlive a run in the memory of a pool (a value
that a later run reads, a result that was lent, a tensor that an eager region keeps) is moved out when another runner
has its turn, and brought back to its address when it is read; see `Memory.leave`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from weakref import WeakSet


class Member(Protocol):
    """A runner, as the others see it. ``busy`` while a thread is inside of it."""

    busy: bool
    #: Moves out of the pools what outlives its run.
    leave: Callable[[], None]


class Commons:
    """The runners that share pools, and whose values lie in them now. All of them take turns by one lock."""

    def __init__(self, pools: Iterable[str]) -> None:
        self.pools = list(pools)
        self.members: WeakSet[Member] = WeakSet()
        self._last: Member | None = None

    def places(self, pools: Iterable[str]) -> Mapping[str, str]:
        """Which shared pool each pool of a new member is: that of its name, the others in order; the rest is added."""
        named = list(pools)
        found = {name: name for name in named if name in self.pools}
        free = [name for name in self.pools if name not in found]
        for name in (each for each in named if each not in found):
            if not free:
                self.pools.append(name)
            found[name] = free.pop(0) if free else name
        return found

    def running(self, member: Member) -> bool:
        """Whether another member is in the middle of a run. To be asked with the lock, so by the very thread."""
        return any(other.busy for other in self.members if other is not member)

    def forget(self, member: Member) -> None:
        """A member is closed."""
        self.members.discard(member)
        if self._last is member:
            self._last = None

    def enter(self, member: Member) -> None:
        """A member is about to run or to capture."""
        last, self._last = self._last, member
        if last is not None and last is not member:
            last.leave()
