"""Put the emulated CANN where torch_npu finds it. Must happen before the first import of torch."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# The main library first: the others depend on it.
LIBRARIES = ("ascendcl", "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "opapi", "nnopbase", "atb")

_loaded: ctypes.CDLL | None = None


def load(out: Path) -> None:
    """Load the libraries in ``out`` into this process, so that ``import torch`` autoloads torch_npu.

    torch_npu finds them by their names (sonames), loaded already. Raises RuntimeError when torch is there first.
    """
    global _loaded
    if _loaded is not None:
        return
    if "torch" in sys.modules:
        raise RuntimeError("the emulated CANN must be loaded before the first import of torch")
    handles = [ctypes.CDLL(str(out / f"lib{name}.so"), ctypes.RTLD_GLOBAL) for name in LIBRARIES]
    _loaded = handles[0]
    _loaded.emu_fail_next.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    _loaded.emu_fail_next.restype = None
    _loaded.emu_calls.argtypes = [ctypes.c_char_p]
    _loaded.emu_calls.restype = ctypes.c_long


def environment(out: Path) -> dict[str, str]:
    """Environment for a subprocess that should see the emulated CANN: a copy of this one with the loader path."""
    paths = [str(out), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def _control() -> ctypes.CDLL:
    if _loaded is None:
        raise RuntimeError("the emulated CANN is not loaded in this process")
    return _loaded


def fail_next(api: str, skip: int = 0, code: int = 507899) -> None:
    """Make one call of the function ``api`` (such as ``aclrtMalloc``) return ``code``, after ``skip`` good ones."""
    _control().emu_fail_next(api.encode(), skip, code)


def calls(api: str) -> int:
    """How often the function ``api`` was called in this process."""
    return int(_control().emu_calls(api.encode()))
