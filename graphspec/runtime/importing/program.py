"""What the program itself has imported, or would: which of it is a file beside a model, and says what it said then."""

from __future__ import annotations

import marshal
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from graphspec.runtime.importing.loaders import Source


def spec_of(top: str, path: Sequence[str]) -> ModuleSpec | None:
    """How the program found the module of a bare name, or would find it, ``path`` being its ``sys.path``."""
    module = sys.modules.get(top)
    if module is None:
        return PathFinder.find_spec(top, path)
    there = getattr(module, "__spec__", None)
    return there if isinstance(there, ModuleSpec) else None


def same_file(one: ModuleSpec | None, other: ModuleSpec | None) -> bool:
    """Whether two specs lead to one file, or to one folder."""
    return one is not None and other is not None and (place := _place(one)) is not None and place == _place(other)


def is_current(module: ModuleType) -> bool:
    """Whether the file of a module still says what the module was made of. In doubt it does not.

    A module that Python loaded by itself is compared by its bytecode; without any it is as old as the process at most.
    """
    spec: Any = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    if isinstance(loader, Source):
        return loader.is_current()
    if type(loader) is not SourceFileLoader:
        return True
    try:
        source = loader.get_data(loader.path)
        if spec.cached is None or not os.path.exists(spec.cached):  # noqa: PTH110 - a text
            return os.stat(loader.path).st_ctime <= _process_began()  # noqa: PTH116 - a ctime cannot be set
        made_of = marshal.loads(Path(spec.cached).read_bytes()[16:])  # noqa: S302 - Python has run it already
        return bool(made_of == loader.source_to_code(source, loader.path))
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return False


def _process_began() -> float:
    """When this process began, as a time of files; never, where the system does not say."""
    try:
        ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        began = (int(ticks) + 1) / os.sysconf("SC_CLK_TCK")  # the end of the tick
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + began
    except (OSError, AttributeError):
        return 0.0


def _place(spec: ModuleSpec) -> tuple[str, str] | None:
    """The folder without links, and the name in it, which may be a link to anything."""
    file = spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
    if file is None:
        return None
    folder, name = os.path.split(file)
    return os.path.realpath(folder), name
