"""`graphspec run`: what it prints, what it refuses, and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from graphspec.cli import main
from graphspec.cli.progress import Progress

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import torch
from torch import nn


class Scale(nn.Module):
    def forward(self, x, factor=2.0):
        return x * factor


class Centre(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Total(nn.Module):
    def forward(self, x):
        return x + x.sum(0, keepdim=True)


class Parts(nn.Module):
    def forward(self, x):
        return {"twice": x + x, "each": [x + 1, x > 0]}


def fails():
    raise OSError("the disk is on fire")


def interrupted():
    raise KeyboardInterrupt


class Unfit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 7)

    def forward(self, x):
        return self.layer(x)
"""

SPEC = """
graphspec: 1
name: small
model: {factory: "model.py:Scale"}
dims: {batch: [1, 4]}
buffers:
  x: {shape: [batch, 3], dtype: float32}
  y: {role: output, shape: [batch, 3], dtype: float32}
regions:
  scale: {call: model, inputs: [x], outputs: y}
replay: [scale]
"""

PARAM = """
graphspec: 1
name: small
model: {factory: "model.py:Scale"}
params: {factor: {type: float, min: 0.5, max: 8, default: 2.0}}
buffers:
  x: {shape: [2, 3], dtype: float32}
  y: {role: output, shape: [2, 3], dtype: float32}
regions:
  scale:
    call: model
    inputs: {x: x, factor: factor}
    outputs: y
    updates: [{op: "aten::mul", arg: other, from: factor}]
replay: [scale]
"""


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch):
    monkeypatch.setattr("graphspec.runtime.trial.timing._AT_LEAST_S", 0.0)


@pytest.fixture
def spec(tmp_path):
    """Writes a spec with the models above beside it."""

    def write(text=SPEC, **replaced):
        (tmp_path / "model.py").write_text(MODEL)
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "model.yaml"
        path.write_text(textwrap.dedent(text).lstrip())
        return path

    return write


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs the command in an empty folder; gives the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main(["run", *map(str, arguments), "--device", "cpu"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def report(run):
    """The JSON of a run that went well."""

    def call(*arguments):
        code, out, err = run(*arguments, "--format", "json")
        assert code == 0, err
        return json.loads(out)

    return call


GOLDEN = """\
small on cpu: 2 graphs in 1 pool, captured in T

captured   bucket   pool   operators  memory  time
  scale    batch=4  scale  1          48 B    T
  scale    batch=1  scale  1          12 B    T

check     replay matches eager: 20 steps, max abs diff 0 (rtol 1e-05, atol 1e-06)
          inputs and graph memory are poisoned before every replay
          sizes: batch=4; batch=2 in batch=4; batch=1
          padded rows never reach real ones: 1 padded size, two contents each, compared bit by bit

speed      eager  replay  p95  runs
  batch=4  T      T       T    R     N

results  dtype    shape   mean
  y      float32  [4, 3]  M
"""


def masked(text):
    """The report with what differs from run to run replaced, and columns as wide as their content needs."""
    text = re.sub(r"[\d,.]+ (us|ms|s)\b", "T", text)
    text = re.sub(r"[\d.]+x as fast", "R", text)
    text = re.sub(r"R( +)[\d,]+$", r"R\1N", text, flags=re.MULTILINE)
    text = re.sub(r"-?\d\.\d{3,}$", "M", text, flags=re.MULTILINE)
    return re.sub(r"(?<=\S) {2,}", "  ", text)


class TestReport:
    def test_the_text_for_a_person_is_this(self, spec, run):
        code, out, _ = run(spec())
        assert code == 0
        assert masked(out) == masked(GOLDEN)

    def test_text_that_is_not_for_a_terminal_has_no_colour(self, spec, run):
        assert "\x1b" not in "".join(run(spec())[1:])

    def test_json_has_the_keys_of_the_design_and_finite_numbers(self, spec, run):
        def refuse(word):
            raise AssertionError(word)

        _, out, _ = run(spec(), "--format", "json", "--steps", "7")
        found = json.loads(out, parse_constant=refuse)
        assert list(found) == ["graphspec", "spec", "device", "graphs", "check", "replay", "eager", "outputs", "stats"]
        assert (found["spec"], found["device"]) == ("small", "cpu")
        assert [graph["bucket"] for graph in found["graphs"]] == [{"batch": 4}, {"batch": 1}]
        assert set(found["graphs"][0]) == {"region", "bucket", "pool", "operators", "bytes", "capture_s"}
        assert found["check"] == {"status": "match", "max_abs_diff": 0.0}
        assert found["replay"]["steps"] == 7
        assert 0 < found["replay"]["median_us"] <= found["replay"]["p95_us"]
        assert found["eager"]["median_us"] > 0
        assert found["outputs"]["y"]["shape"] == [4, 3]
        assert found["outputs"]["y"]["dtype"] == "float32"
        assert found["stats"]["fallbacks"] == 0
        assert found["stats"]["replays"] == sum(found["stats"]["bucket_hits"].values()) >= 7

    def test_stderr_has_a_line_for_each_region_and_stage_when_it_is_no_terminal(self, spec, run):
        _, _, err = run(spec())
        assert err.splitlines() == ["capture scale", "check replay", "padding replay", "time"]

    def test_without_a_check_the_status_is_skipped_and_the_times_are_there(self, spec, report):
        found = report(spec(), "--no-check")
        assert found["check"] == {"status": "skipped", "max_abs_diff": None}
        assert found["replay"]["median_us"] > 0

    def test_the_same_seed_gives_the_same_results(self, spec, report):
        path = spec()
        assert report(path)["outputs"] == report(path, "--no-check")["outputs"]

    def test_results_inside_structures_are_listed_by_their_place(self, spec, report):
        text = SPEC.replace("  y: {role: output, shape: [batch, 3], dtype: float32}\n", "")
        text = text.replace("Scale", "Parts").replace("dims: {batch: [1, 4]}\n", "").replace("batch", "4")
        found = report(spec(text))["outputs"]
        assert {name: output["dtype"] for name, output in found.items()} == {
            "y['twice']": "float32",
            "y['each'][0]": "float32",
            "y['each'][1]": "bool",
        }


class TestMismatch:
    def test_padded_rows_that_change_a_mean_exit_1_with_the_worst_element(self, spec, run):
        code, out, err = run(spec(Scale="Centre"))
        assert code == 1
        assert "MISMATCH" in out
        message = err.splitlines()[-2]
        assert re.search(
            r"^error: replay differs from eager: y\[\d, \d\]: -?[\d.]+ in eager, -?[\d.]+ in replay "
            r"\(\|difference\| [\d.]+, allowed atol 1e-06 \+ rtol 1e-05 \* max \|expected\|\); "
            r"sequence 'replay', step 1, batch=2 in batch=4$",
            message,
        ), message

    def test_a_sum_that_padding_happens_not_to_change_exits_1_with_the_buffer_and_the_rows(self, spec, run):
        code, _, err = run(spec(Scale="Total"))
        assert code == 1
        assert re.search(
            r"error: padded rows reach real rows at batch=2 in batch=4: what 'x' holds in them changes y\[\d, \d\]", err
        ), err

    def test_json_says_mismatch_and_times_nothing(self, spec, run):
        code, out, _ = run(spec(Scale="Centre"), "--format", "json")
        found = json.loads(out)
        assert code == 1
        assert found["check"]["status"] == "mismatch"
        assert found["check"]["max_abs_diff"] > 0.01
        assert found["replay"]["median_us"] is None

    def test_a_full_bucket_has_no_padded_rows_to_find(self, spec, report):
        assert report(spec(Scale="Centre"), "--dim", "batch=4")["check"]["status"] == "match"


class TestGivenValues:
    def test_an_input_from_a_file_fixes_its_size_and_the_results(self, spec, report, tmp_path):
        np.save(tmp_path / "x.npy", np.full((3, 3), 2.0, dtype=np.float32))
        found = report(spec(), "--input", "x=x.npy")
        assert found["outputs"]["y"] == {"shape": [3, 3], "dtype": "float32", "mean": 4.0}
        assert set(found["stats"]["bucket_hits"]) == {"batch=4"}

    def test_a_dim_fixes_the_real_size(self, spec, report):
        found = report(spec(), "--dim", "batch=3")
        assert found["outputs"]["y"]["shape"] == [3, 3]
        assert found["stats"]["padded_fraction"] == pytest.approx(0.25)

    def test_a_size_of_zero_is_a_size(self, spec, report):
        assert report(spec(), "--dim", "batch=0")["outputs"]["y"] == {"shape": [0, 3], "dtype": "float32", "mean": None}

    def test_a_param_is_read_as_yaml(self, spec, report, tmp_path):
        np.save(tmp_path / "x.npy", np.ones((2, 3), dtype=np.float32))
        assert report(spec(PARAM), "--input", "x=x.npy", "--param", "factor=5e-1")["outputs"]["y"]["mean"] == 0.5

    @pytest.mark.parametrize(("suffix", "load"), [(".npz", np.load), (".safetensors", load_file)])
    def test_output_writes_the_results_of_the_first_run(self, spec, report, tmp_path, suffix, load):
        found = report(spec(), "--output", f"results{suffix}")
        written = load(tmp_path / f"results{suffix}")["y"]
        assert written.shape == (4, 3)
        assert float(written.mean()) == pytest.approx(found["outputs"]["y"]["mean"], abs=1e-6)


class TestUsage:
    """Exit code 2, nothing on stdout, and one message that says what and where."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--dim", "bacth=3"], "--dim: the spec has no bucketed dim 'bacth'\n  fix: did you mean 'batch'?"),
            (["--dim", "batch"], "--dim takes NAME=VALUE, and 'batch' came"),
            (["--dim", "batch=three"], "--dim batch takes a whole number, and 'three' came"),
            (["--dim", "batch=-1"], "--dim batch takes a whole number, and '-1' came"),
            (["--dim", "batch=1", "--dim", "batch=2"], "--dim batch is given twice"),
            (["--dim", "batch=5"], "no bucket of sequence 'replay' holds batch=5: they are batch=1; batch=4"),
            (["--input", "z=x.npy"], "--input: the spec has no input 'z'"),
            (["--input", "x=none.npy"], "--input x: there is no file "),
            (["--input", "x=junk.npy"], "input 'x': "),
            (["--input", "x=double.npy"], "input 'x' takes torch.float32, and torch.float64 came"),
            (["--input", "x=wide.npy"], "input 'x' takes the shape [batch, 3], and [2, 5] came"),
            (["--input", "x=two.npy", "--dim", "batch=3"], "inputs disagree on batch: '--dim batch' has 3"),
            (["--param", "y=1"], "--param: the spec has no param 'y'"),
            (["--output", "y.txt"], "--output: y.txt is neither .npz nor .safetensors"),
            (["--output", "none/y.npz"], "--output: there is no folder "),
            (["--steps", "0"], "Invalid value for '--steps'"),
            (["--format", "xml"], "Invalid value for '--format'"),
            (["--nothing"], "No such option"),
        ],
    )
    def test_a_wrong_option_is_refused_before_anything_is_captured(self, spec, run, tmp_path, arguments, message):
        (tmp_path / "junk.npy").write_text("hello")
        np.save(tmp_path / "double.npy", np.ones((2, 3)))
        np.save(tmp_path / "wide.npy", np.ones((2, 5), dtype=np.float32))
        np.save(tmp_path / "two.npy", np.ones((2, 3), dtype=np.float32))
        code, out, err = run(spec(), *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert "capture" not in err
        assert "Traceback" not in err

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("[1", "--param factor: '[1' cannot be read as YAML: "),
            ("two", "param 'factor' takes float values, and 'two' came"),
            ("99", "param 'factor' is at most 8, and 99 came"),
        ],
    )
    def test_a_wrong_value_of_a_param_is_refused(self, spec, run, value, message):
        code, out, err = run(spec(PARAM), "--param", f"factor={value}")
        assert (code, out) == (2, "")
        assert message in err

    def test_an_unknown_device_is_refused(self, spec, capsys):
        assert main(["run", str(spec()), "--device", "tpu"]) == 2
        assert "--device: there is no device 'tpu'" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [["--help"], ["specs/mlp/model.yaml", "--dim", "x=1"]])
    def test_help_and_wrong_names_need_no_torch(self, arguments):
        probe = (
            "import sys; from graphspec.cli import main; "
            f"code = main(['run', *{arguments!r}]); assert 'torch' not in sys.modules; print('code', code)"
        )
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.stdout.splitlines()[-1] in {"code 0", "code 2"}, done.stderr


class TestFailure:
    def test_a_failing_factory_shows_its_own_traceback_and_one_line_more(self, spec, run):
        code, out, err = run(spec(Scale="fails"))
        assert (code, out) == (3, "")
        lines = err.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert re.search(r'^  File ".*/model\.py", line \d+, in fails$', lines[1])
        assert lines[-2] == "OSError: the disk is on fire"
        assert lines[-1] == "error: the factory model.py:fails failed: OSError: the disk is on fire"
        assert "graphspec/" not in err

    def test_a_failing_region_shows_frames_of_the_user_and_of_torch_only(self, spec, run):
        code, _, err = run(spec(Scale="Unfit"))
        assert code == 3
        lines = err.splitlines()
        assert re.search(r'^  File ".*/model\.py", line \d+, in forward$', lines[1])
        assert lines[-1].startswith("error: region 'scale' (model) failed: RuntimeError: mat1 and mat2 shapes")
        assert not re.search(r"graphspec/\w+\.py|/graphspec/runtime|torch/_ops\.py", err)

    def test_a_spec_with_findings_exits_1_and_runs_nothing(self, spec, run):
        code, out, err = run(spec(dims="dimz"))
        assert (code, out) == (1, "")
        assert "dimz" in err

    def test_an_interrupt_exits_130(self, spec, run):
        code, _, err = run(spec(Scale="interrupted"))
        assert code == 130
        assert err.split() == ["interrupted"]

    def test_ctrl_c_in_the_middle_of_a_run_exits_130_without_a_traceback(self, spec):
        command = [sys.executable, "-m", "graphspec", "run", str(spec()), "--steps", "100000000", "--no-check"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            # A job in the background ignores it, and so would its child.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        ) as child:
            try:
                seen = ""
                while "time" not in seen:
                    seen = child.stderr.readline()
                time.sleep(0.2)
                child.send_signal(signal.SIGINT)
                out, err = child.communicate(timeout=60)
            finally:
                child.kill()
        assert (child.returncode, out) == (130, "")
        assert err.split() == ["interrupted"]


class Terminal:
    def __init__(self, *, terminal):
        self.text = ""
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


class TestProgress:
    def test_a_terminal_gets_a_bar_that_is_gone_in_the_end(self):
        stream = Terminal(terminal=True)
        with Progress(stream) as progress:
            progress("capture decode", 6, 24)
        assert f"[{'#' * 6}{' ' * 18}] 6/24 capture decode" in stream.text
        assert stream.text.endswith("\r\x1b[2K")
        assert "\n" not in stream.text

    def test_other_streams_get_each_line_once(self):
        stream = Terminal(terminal=False)
        with Progress(stream) as progress:
            for done in range(3):
                progress("capture decode", done, 3)
                progress("capture embed", done, 3)
        assert stream.text == "capture decode\ncapture embed\n"
