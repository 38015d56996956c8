"""What commands share about their output: stdout is data, stderr is progress and messages."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from typing import IO

_STDOUT, _STDERR = 1, 2


def coloured(stream: IO[str]) -> bool:
    """Whether to colour what goes to ``stream``: on a terminal only, and not with NO_COLOR set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def prints_on_stderr() -> Iterator[None]:
    """While code of the model may run: what it prints goes to stderr, so that stdout is the report and nothing else."""
    real = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), _descriptor_on_stderr(real):
        yield
        gc.collect()  # a model goes with its last words


@contextlib.contextmanager
def _descriptor_on_stderr(real: IO[str]) -> Iterator[None]:
    """The same for what writes to descriptor 1 without asking Python: compiled code, and processes that are started."""
    try:
        led = real.fileno() == _STDOUT
    except (OSError, ValueError):
        led = False  # a stream in memory, of whoever calls `main`
    if not led:
        yield
        return
    real.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            real.flush()
        _flush_c()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush_c() -> None:
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
