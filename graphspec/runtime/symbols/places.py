"""Whether a run on plain numbers comes by the same instruction.

Code that looks at the type of a symbol may take another way than with a number, and what it does there is no fault of
the model.
"""

from __future__ import annotations

import dis
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

from graphspec.recording.source import Site

#: An instruction: the code of a function, and the offset in it.
Place = tuple[CodeType, int]


def place_of(site: Site) -> Place | None:
    """The instruction of ``site`` that is running now, somewhere up the stack of the caller."""
    frame: FrameType | None = sys._getframe(1)  # the only way to a frame without a traceback
    while frame is not None:
        if frame.f_code.co_filename == site.file and frame.f_lineno == site.line:
            return frame.f_code, _instruction(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


def _instruction(code: CodeType, offset: int) -> int:
    """Where the instruction begins: while it calls Python code, a frame stands behind it, at its inline caches."""
    starts = _starts(code)
    return starts[bisect_right(starts, offset) - 1]


@cache
def _starts(code: CodeType) -> list[int]:
    return [instruction.offset for instruction in dis.get_instructions(code)]


@contextmanager
def executed(codes: Collection[CodeType]) -> Iterator[set[Place]]:
    """Every instruction of ``codes`` that this thread executes inside the block."""
    seen: set[Place] = set()

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            seen.add((frame.f_code, frame.f_lasti))
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        return local

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield seen
    finally:
        sys.settrace(before)
