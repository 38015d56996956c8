"""The names that model code loads while it runs: attributes, globals and closure variables, read off its bytecode."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from graphspec.runtime.capture.source import is_model_code

#: Modules of torch.nn keep eps, p, momentum and the like as plain attributes; their base class only dispatches.
_LAYERS = str(Path(nn.__file__).resolve().parent / "modules")
_DISPATCH = "module.py"
_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_SUPER_ATTR")


class CodeNames:
    """The names that model code loads while it runs in this thread."""

    def __init__(self) -> None:
        self._codes: set[types.CodeType] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note every Python function that is called inside. A profile function of the caller rests meanwhile."""
        previous = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(previous)

    def loaded(self) -> frozenset[str]:
        """Every global, attribute and closure name loaded by the functions noted so far."""
        return frozenset(
            str(instruction.argval)
            for code in tuple(self._codes)
            if _is_watched(code.co_filename)
            for instruction in dis.get_instructions(code)
            if instruction.opname in _LOADS
        )

    def _note(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)


def _is_watched(filename: str) -> bool:
    return is_model_code(filename) or (filename.startswith(_LAYERS) and Path(filename).name != _DISPATCH)
