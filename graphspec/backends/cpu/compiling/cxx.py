"""The C++ compiler that Inductor calls, if there is one."""

from __future__ import annotations

import os
import shutil
import sys


def cxx() -> str | None:
    """What ``$CXX`` names, else the usual compiler of the system; None where it cannot be run."""
    named = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    found = shutil.which(named)
    return named if found is not None else None


def missing() -> str:
    """Why there is none."""
    named = os.environ.get("CXX")
    if named:
        return f"CXX names {named}, which cannot be run"
    return f"there is no C++ compiler ({'clang++' if sys.platform == 'darwin' else 'g++'}) on the PATH"
