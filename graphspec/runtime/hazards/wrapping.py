"""Functions of modules and classes, wrapped for a while and put back.

What is wrapped belongs to the whole process, so the number of users is counted: the first wraps, the last puts back.
No lock is held in between, so users in several threads never wait for each other.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

#: Makes the replacement of a function, given its dotted path and the function.
Wrapper = Callable[[str, Callable[..., Any]], Callable[..., Any]]


class Wrapped:
    """Wraps every target that exists at the time. ``targets`` are pairs of a dotted path and a wrapper."""

    def __init__(self, targets: Callable[[], Iterable[tuple[str, Wrapper]]]) -> None:
        self._targets = targets
        self._lock = threading.Lock()
        self._users = 0
        self._saved: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        """Wraps, unless another user has."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                for path, wrap in self._targets():
                    self._wrap(path, wrap)

    def remove(self) -> None:
        """Puts back, unless another user remains."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for owner, name, original, wrapper in reversed(self._saved):
                if vars(owner).get(name) is wrapper:  # else someone replaced it since: not ours to undo
                    setattr(owner, name, original)
            self._saved.clear()

    def _wrap(self, path: str, wrap: Wrapper) -> None:
        owner, name = _owner(path)
        original = vars(owner).get(name) if owner is not None else None
        if callable(original):
            wrapper = wrap(path, original)
            setattr(owner, name, wrapper)
            self._saved.append((owner, name, original, wrapper))


def _owner(path: str) -> tuple[Any, str]:
    """The loaded module or class that holds the last name of a dotted path; None where it is not loaded."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        owner: Any = sys.modules.get(".".join(parts[:length]))
        if owner is not None:
            for part in parts[length:-1]:
                owner = getattr(owner, part, None)
            return owner, parts[-1]
    return None, parts[-1]
