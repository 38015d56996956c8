"""What a long command says on stderr while it works: a bar on a terminal, a line for each new thing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Self

_WIDTH = 24
_LINE = 79


class Progress:
    """Shows how far a command is. Called with what is going on, how much of it is done, and how much there is.

    Used in a ``with`` block: the bar is gone at its end, so that stderr holds no half a line before an error.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bar = self._stream.isatty()
        self._said: set[str] = set()
        self._shown = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say it. Off a terminal the same thing is said once, however often its count moves."""
        if self._bar:
            filled = _WIDTH * done // max(total, 1)
            self._write(f"[{'#' * filled}{' ' * (_WIDTH - filled)}] {done}/{total} {what}")
        elif what not in self._said:
            self._put(f"{what}\n")
        self._said.add(what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar and self._said:
            self._write("")

    def _write(self, text: str) -> None:
        if text != self._shown:
            self._put(f"\r\x1b[2K{text[:_LINE]}")
        self._shown = text

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk under stderr is no reason to stop
            self._stream.write(text)
            self._stream.flush()
