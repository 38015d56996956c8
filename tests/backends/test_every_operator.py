"""The CPU backend against eager on the sample inputs that torch has for its own tests."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("every_operator.py")


@pytest.mark.takes(15)
def test_every_operator_of_torch_replays_from_cpp_and_from_python_as_in_eager() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
