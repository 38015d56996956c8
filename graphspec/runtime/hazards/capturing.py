"""Which region this thread is capturing right now: a capture inside a capture is refused, and models may ask."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from graphspec.runtime.hazards.wrapping import Wrapped, Wrapper

#: The region that this thread captures.
REGION: ContextVar[str | None] = ContextVar("graphspec_capturing", default=None)


def capturing() -> str | None:
    """The region this thread is dry-running or capturing; None outside of any."""
    return REGION.get()


@contextmanager
def inside_capture(region: str) -> Iterator[None]:
    """Marks this thread as capturing ``region``, in a dry run, a recording or a capture on a device.

    Inside, ``torch.cuda.is_current_stream_capturing()`` (and that of torch.npu) is true, on every backend. Models ask
    it to leave out reads of values: transformers does for its attention masks, torch for SyncBatchNorm. So the dry
    run, the CPU and the device all take the path that a capture takes.
    """
    token = REGION.set(region)
    _ANSWERS.install()
    try:
        yield
    finally:
        _ANSWERS.remove()
        REGION.reset(token)


def _answering(_path: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def is_current_stream_capturing(*args: Any, **kwargs: Any) -> bool:
        return capturing() is not None or bool(original(*args, **kwargs))

    return is_current_stream_capturing


def _answers() -> Iterator[tuple[str, Wrapper]]:
    for device in ("cuda", "npu"):
        yield f"torch.{device}.is_current_stream_capturing", _answering


_ANSWERS = Wrapped(_answers)
