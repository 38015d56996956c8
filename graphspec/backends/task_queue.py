"""torch_npu's task queue: a thread of its own that launches operators, behind the one that calls them.

After a failure on that thread torch_npu skips every later operator, in silence. Launched from the calling thread,
operators run again, and a failure is an ordinary exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class TaskQueue:
    """Turns the queue off and on, for the whole process. Does nothing where this torch_npu cannot switch it."""

    def __init__(self) -> None:
        from torch_npu import _C

        self._ask: Callable[[], int] = getattr(_C, "_npu_get_task_queue_enable", lambda: 0)
        self._change: Callable[[int], None] = getattr(_C, "_npu_set_task_queue_enable", lambda _: None)

    def turn_off(self) -> int:
        """Launch from the calling thread, once what lies in the queue is launched; returns the mode before."""
        mode = self._ask()
        if mode:
            self._change(0)
        return mode

    def restore(self, mode: int) -> None:
        """Back to the mode that `turn_off` returned."""
        if mode:
            self._change(mode)


def revive() -> bool:
    """Whether operators run on the current device, after the queue was turned off if they do not run with it."""
    if _operators_run():
        return True
    TaskQueue().turn_off()
    return _operators_run()


def _operators_run() -> bool:
    npu: Any = torch.npu  # type: ignore[attr-defined]
    number = float(time.perf_counter_ns() % 1_000_000)  # memory that was not written may hold an earlier one
    for attempt in (npu.synchronize, lambda: None):  # the first may report what failed before
        try:
            attempt()
            result = torch.full((1,), number, device="npu").add(1).item()
        except RuntimeError:
            continue
        return result == number + 1
    return False
