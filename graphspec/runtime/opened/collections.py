"""Full passes of the garbage collector, put off while a spec is opened.

A pass over everything walks torch, transformers and the model: in a cold process it takes as long as a rehearsal, and
there would be several. Young objects are collected as ever, so what a call leaves in cycles goes.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30
_lock = threading.Lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def no_full_collections() -> Iterator[None]:
    """Inside, only young objects are collected, in whatever thread. Blocks may overlap: the last one puts it back."""
    global _inside, _before  # noqa: PLW0603 - thresholds are those of the process
    with _lock:
        if _inside == 0:
            _before = gc.get_threshold()
            gc.set_threshold(*_before[:2], _NEVER)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                gc.set_threshold(*_before)
