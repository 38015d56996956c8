"""The traps of inline regions on the emulated NPU: the same tests as on the CPU. Here backward has its own thread."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "inline"))

from test_traps import *  # noqa: F403  beside this folder
