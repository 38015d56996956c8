"""Put the emulated CANN where torch_npu finds it. Must happen before the first import of torch."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# The main library first: the others depend on it.
LIBRARIES = (
    *("ascendcl", "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "opapi", "nnopbase", "atb"),
    "ascend_hal",
)

# What load() has loaded: the main library, or nothing yet.
_loaded: list[ctypes.CDLL] = []


def load(out: Path) -> None:
    """Load the libraries in ``out`` into this process, so that ``import torch`` autoloads torch_npu.

    torch_npu finds them by their names (sonames), loaded already. Raises RuntimeError when torch is there first.
    """
    if _loaded:
        return
    if "torch" in sys.modules:
        raise RuntimeError("the emulated CANN must be loaded before the first import of torch")
    handles = [ctypes.CDLL(str(out / f"lib{name}.so"), ctypes.RTLD_GLOBAL) for name in LIBRARIES]
    _loaded.append(_declare(handles[0]))


def environment(out: Path) -> dict[str, str]:
    """Environment for a subprocess that should see the emulated CANN: a copy of this one with the loader path."""
    paths = [str(out), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def fail_next(api: str, skip: int = 0, code: int = 507899) -> None:
    """Make one call of the function ``api`` (such as ``aclrtMalloc``) return ``code``, after ``skip`` good ones."""
    _control().emu_fail_next(api.encode(), skip, code)


def calls(api: str) -> int:
    """How often the function ``api`` was called in this process."""
    return int(_control().emu_calls(api.encode()))


def all_calls() -> dict[str, int]:
    """Every function of CANN that this process has called, with the number of its calls."""
    lines = _control().emu_report().decode().splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def missing() -> set[str]:
    """Names that torch_npu has looked up in the operator library of this process and not found."""
    return set(_control().emu_missing().decode().split())


def composites() -> dict[str, int]:
    """Operators whose kernel is missing and for which PyTorch's own composite ran, with the number of its calls."""
    counted: dict[str, int] = {}
    for line in _control().emu_composites().decode().splitlines():
        count, name, _ = line.split(maxsplit=2)
        counted[name] = counted.get(name, 0) + int(count)
    return counted


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    library.emu_fail_next.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    library.emu_fail_next.restype = None
    library.emu_calls.argtypes = [ctypes.c_char_p]
    library.emu_calls.restype = ctypes.c_long
    for report in (library.emu_report, library.emu_missing, library.emu_composites):
        report.argtypes = []
        report.restype = ctypes.c_char_p
    return library


def _control() -> ctypes.CDLL:
    """The main library. A process that found it by LD_LIBRARY_PATH gets the one that torch_npu loaded."""
    if not _loaded:
        if "torch_npu" not in sys.modules:
            raise RuntimeError("the emulated CANN is not loaded in this process")
        _loaded.append(_declare(ctypes.CDLL(f"lib{LIBRARIES[0]}.so")))
    return _loaded[0]
