"""Standard streams: stdout holds the report and nothing else, and streams that are closed or full end no command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.takes(2)

MODEL = """
import atexit
import ctypes
import os
import sys

import torch
from torch import nn


def say(where):
    if {loud}:
        print("python", where)
        print("kept", where, file=sys.__stdout__)
        os.write(1, f"descriptor {{where}}\\n".encode())
        ctypes.CDLL(None).printf(f"c {{where}}\\n".encode())
        os.system("echo process " + where)


say("import")
atexit.register(say, "exit")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        say("factory")
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        say("forward")
        return self.linear(x)

    def __del__(self):
        say("end")
"""

SPEC = """
graphspec: 1
name: small
model: {factory: "model.py:Model"}
dims: {batch: [1, 4]}
buffers:
  x: {shape: [batch, 3], dtype: float32}
  y: {role: output, shape: [batch, 3], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

EVERY = ["validate spec.yaml", "plan spec.yaml", "explain pad", "schema", "--help", "--version", "check spec.yaml"]


@pytest.fixture
def shell(tmp_path):
    def run(command, *, loud=False):
        (tmp_path / "model.py").write_text(MODEL.format(loud=loud))
        (tmp_path / "spec.yaml").write_text(SPEC)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = ["bash", "-c", f"{sys.executable} -m graphspec {command}"]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    return run


@pytest.mark.parametrize("command", ["run --steps 1", "check"])
def test_what_a_model_prints_goes_to_stderr_and_stdout_is_one_json_object(shell, command):
    done = shell(f"{command} spec.yaml --format json", loud=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    for writer in ("python", "kept", "descriptor", "c", "process"):
        for where in ("import", "factory", "forward", "end", "exit"):
            assert f"{writer} {where}\n" in done.stderr


@pytest.mark.parametrize("command", [*EVERY, "run --steps 1 spec.yaml"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_just_works(shell, command, closed):
    done = shell(f"{command} {closed}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (done.stdout == "") == (closed != "2>&-")


@pytest.mark.parametrize("command", [*EVERY, "run --steps 1 spec.yaml"])
def test_a_full_disk_under_stdout_is_one_line_and_exit_code_3(shell, command):
    done = shell(f"{command} >/dev/full")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "error: the output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(("command", "code"), [("check spec.yaml", 0), ("check none.yaml", 1), ("run none.yaml", 1)])
def test_a_full_disk_under_stderr_changes_no_exit_code(shell, command, code):
    assert shell(f"{command} 2>/dev/full").returncode == code
