"""`graphspec check`: its output, its formats and its exit codes; and a model of 70B parameters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphspec.cli import group, main

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "specs" / "llama-70b" / "model.yaml"

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.offset = torch.ones(3)

    def good(self, x):
        return self.lin(x), x

    def host(self, x):
        return self.lin(x) + self.offset, x

    def branch(self, x):
        y = self.lin(x)
        return (y if y.sum() > 0 else -y), x

def build():
    return Model()

def broken():
    raise ValueError("no such config")
"""

SPEC = """graphspec: 1
name: small
model: {{factory: "model.py:{factory}"}}
dims: {{batch: [1, 4]}}
buffers:
  x: {{shape: [batch, 4], dtype: float32}}
  y: {{role: output, shape: [batch, {width}], dtype: float32}}
  z: {{role: output, shape: [batch, 4], dtype: float32}}
regions:
  head: {{call: model.{call}, inputs: [x], outputs: [y, z]}}
replay: [head]
"""


@pytest.fixture
def spec(tmp_path):
    def written(call="good", factory="build", width=3):
        (tmp_path / "model.py").write_text(MODEL)
        path = tmp_path / "spec.yaml"
        path.write_text(SPEC.format(call=call, factory=factory, width=width))
        return str(path)

    return written


def run(*arguments):
    return CliRunner().invoke(group, ["check", *arguments])


def test_a_good_spec_prints_one_line_for_each_region_and_exits_with_0(spec):
    done = run(spec(), "--device", "npu")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "small: 15 parameters, 60 B; judged for npu",
        "head (batch=4): 2 operators, y [4, 3] float32, z [4, 4] float32",
        "1 spec: no findings",
    ]


def test_progress_goes_to_stderr(spec):
    assert "trace head batch=4" in run(spec()).stderr


def test_a_finding_exits_with_1_and_shows_the_line_of_the_model(spec):
    done = run(spec("branch"), "--device", "cpu")
    assert done.exit_code == 1
    assert "error[GS701]" in done.stdout
    assert "return (y if y.sum() > 0 else -y), x" in done.stdout
    assert "head (batch=4): 4 operators, then the trace ended" in done.stdout
    assert done.stdout.endswith("1 spec: 1 error\n")


def test_the_device_of_the_command_line_decides_what_is_refused(spec):
    assert run(spec("host"), "--device", "cpu").exit_code == 0
    assert run(spec("host"), "--device", "npu:1").exit_code == 1
    warned = run(spec("host"))
    assert warned.exit_code == 0
    assert "warning[GS746]" in warned.stdout


def test_json_is_the_object_that_validate_prints(spec):
    done = run(spec("host"), "--device", "cuda", "--format", "json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found.keys() == {"version", "diagnostics"}
    (finding,) = found["diagnostics"]
    assert finding.keys() == {"code", "severity", "message", "file", "line", "column", "path", "hint"}
    assert (finding["code"], finding["severity"]) == ("GS746", "error")
    assert "model.offset" in finding["message"]
    assert json.loads(run(spec(), "--format", "json").stdout) == {"version": 1, "diagnostics": []}


def test_github_and_sarif_hold_the_finding_too(spec):
    assert run(spec("branch"), "--format", "github").stdout.startswith("::error file=")
    results = json.loads(run(spec("branch"), "--format", "sarif").stdout)["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["GS701"]


def test_a_result_of_another_shape_points_into_the_spec(spec):
    done = run(spec(width=5))
    assert done.exit_code == 1
    assert "spec.yaml:7:3: error[GS742]" in done.stdout
    assert "declared [batch, 5], here [4, 5], and the call returned [4, 3]" in done.stdout


def test_a_mistake_in_the_spec_is_all_that_is_reported(spec):
    path = Path(spec("branch"))
    path.write_text(path.read_text().replace("outputs:", "outputz:"))
    done = run(str(path))
    assert done.exit_code == 1
    assert "GS101" in done.stdout
    assert "GS701" not in done.stdout


def test_a_failing_factory_exits_with_3_after_the_users_own_exception(spec, capsys):
    assert main(["check", spec(factory="broken")]) == 3
    shown = capsys.readouterr().err
    assert shown.index('raise ValueError("no such config")') < shown.index("error: the factory model.py:broken failed")


def test_an_unknown_device_is_a_usage_error(spec, capsys):
    assert main(["check", spec(), "--device", "tpu"]) == 2
    assert "there is no device 'tpu'" in capsys.readouterr().err


@pytest.mark.takes(12)
def test_a_llama_of_70b_parameters_is_checked_within_a_gibibyte(tmp_path):
    command = [sys.executable, "-m", "graphspec", "check", str(LLAMA), "--device", "npu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=ROOT, env=environment)
        _, status, used = os.wait4(process.pid, 0)  # of this process alone, not of every one that tests have started
    process.returncode = os.waitstatus_to_exitcode(status)
    lines = out.read_text().splitlines()
    assert process.returncode == 0, out.read_text() + err.read_text()
    assert lines[0] == "llama-70b: 70,553,706,496 parameters, 131.4 GiB; judged for npu"
    assert lines[1].startswith("decode (batch=8): 6,")
    assert lines[1].endswith(" operators, logits [8, 128256] bfloat16")
    assert lines[2] == "1 spec: no findings"
    assert used.ru_maxrss < 1 << 20  # KiB
