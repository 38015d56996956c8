"""Runs that carry states over, taken in rounds that each begin from the same states: a cache has an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from graphspec.errors import ModelError
from graphspec.runtime.verify.carried import Carried

#: Runs in a round, unless the states hold fewer.
ROUND = 16

T = TypeVar("T")


class Rounds:
    """Calls in rounds of at most ``limit``; what they carry over is put back between rounds.

    A round that fails in the model's code after its first call ends there, and that call is made once more from the
    start: the states hold only so many runs, and from then on rounds are that long.
    """

    def __init__(self, carried: Carried) -> None:
        self.limit = ROUND
        self._carried = carried
        self._start = carried.save()
        self._since = 0

    def __call__(self, call: Callable[[], T]) -> T:
        """Make one call, in a new round if this one is full."""
        if self._since >= self.limit:
            self.restart()
        try:
            result = call()
        except ModelError:
            if self._since == 0:
                raise
            self.limit = self._since
            self.restart()
            result = call()
        self._since += 1
        return result

    def restart(self) -> None:
        """Begin a new round."""
        self._carried.restore(self._start)
        self._since = 0
