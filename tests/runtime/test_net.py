"""The net: runs repeated by eager and compared, on demand and on every N-th run."""

import re

import pytest
import torch

import graphspec
from graphspec.cli import main
from graphspec.errors import CheckError, InputError

MODEL = """
import torch
from torch import nn

COUNT = {"calls": 0}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.hidden = {"scale": 2.0}
        self.drawn = nn.Dropout(0.5)

    def forward(self, x, h, gain=1.0):
        self.seen.add_(1)
        y = self.lin(x) + h[: len(x)] * gain
        return y, y

    def again(self, y):
        COUNT["calls"] += 1
        return y * self.hidden["scale"]

    def noisy(self, x):
        return self.drawn(x)

def build():
    torch.manual_seed(0)
    return Model()
"""

SPEC = """graphspec: 1
name: net
model: {factory: model.py:build}
dims: {batch: [2, 4]}
buffers:
  x: {shape: [batch, 4], dtype: float32}
  h: {role: state, shape: [4, 4], dtype: float32}
  y: {role: output, shape: [batch, 4], dtype: float32}
  z: {role: output, shape: [batch, 4], dtype: float32}
  w: {role: output, shape: [batch, 4], dtype: float32}
params:
  gain: {type: float, default: 1.0, specialize: true, choices: [1.0, 3.0]}
regions:
  step: {call: model, inputs: [x, h, gain], outputs: {y: 0, z: 1}}
  again: {call: model.again, inputs: [z], outputs: w, eager: true}
replay: [step, again]
CHECK
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def spec(folder, check="", text=SPEC):
    (folder / "model.yaml").write_text(text.replace("CHECK", check))
    return folder / "model.yaml"


def test_verify_runs_once_and_gives_what_run_gives(folder):
    x = torch.randn(3, 4)
    with graphspec.open(spec(folder), device="cpu") as one, graphspec.open(spec(folder), device="cpu") as other:
        for gain in (1.0, 3.0):
            came, wanted = one.verify(x=x, gain=gain), other.run(x=x, gain=gain)
            assert came.keys() == wanted.keys()
            assert all(torch.equal(came[name], wanted[name]) for name in wanted)
        assert float(one.model.seen) == float(other.model.seen) == 2
        assert one.stats.verified == 2
        assert one.stats.verify_s > 0
        assert other.stats.verified == 0


def test_what_no_guard_sees_is_found_by_verify_and_leaves_no_trace(folder, monkeypatch):
    with graphspec.open(spec(folder), device="cpu") as runner:
        runner.run(x=torch.ones(2, 4))
        monkeypatch.setattr(runner.model.lin, "forward", lambda x: x + 10)
        monkeypatch.setattr(type(runner._variants), "check", lambda *_: None)  # a guard that sees nothing
        with pytest.raises(CheckError, match=r"replay differs from eager: w\[") as caught:
            runner.verify(x=torch.ones(2, 4))
        assert re.search(r"in eager, .* in replay \(\|difference\| .*sequence 'replay', batch=2", str(caught.value))
        assert float(runner.model.seen) == 1
        assert runner.stats.verified == 1


def test_every_nth_run_of_a_sequence_is_verified(folder):
    with graphspec.open(spec(folder, "check: {every: 3}"), device="cpu") as runner:
        for run in range(1, 8):
            runner.run(x=torch.randn(1 + run % 4, 4))
            assert runner.stats.verified == run // 3


def test_two_sequences_that_take_turns_are_both_verified(folder):
    text = SPEC.replace("replay: [step, again]", "replay: {one: [step], two: [step, again]}")
    with graphspec.open(spec(folder, "check: {every: 2}", text), device="cpu") as runner:
        for _ in range(2):
            runner["one"](x=torch.randn(2, 4))
            runner["two"](x=torch.randn(2, 4))
        assert runner.stats.verified == 2
        with pytest.raises(InputError, match="several sequences"):
            runner.verify(x=torch.randn(2, 4))
        runner["two"].verify(x=torch.randn(2, 4))
        assert runner.stats.verified == 3


def test_a_value_of_another_sequence_is_what_the_replay_reads(folder):
    text = SPEC.replace("replay: [step, again]", "replay: {one: [step], two: [again]}").replace("[2, 4]}", "2}")
    with graphspec.open(spec(folder, "", text), device="cpu") as runner:
        z = runner["one"](x=torch.randn(2, 4))["z"]
        assert torch.equal(runner["two"].verify()["w"], z * 2)
        with pytest.raises(InputError):
            runner["one"].verify(x=torch.randn(5, 4))


def test_random_numbers_are_the_same_in_both(folder):
    text = SPEC.replace("model.again", "model.noisy").replace("eager: true", "mode: train")
    path = spec(folder, "", text)
    with graphspec.open(path, device="cpu") as one, graphspec.open(path, device="cpu") as other:
        x = torch.randn(4, 4)
        torch.manual_seed(5)
        came = one.verify(x=x)["w"]
        torch.manual_seed(5)
        assert torch.equal(came, other.run(x=x)["w"])
        one.verify(x=x[:3])
        assert one.stats.verified == 1  # a bucket draws more than eager: nothing to compare


def test_what_the_net_costs_stands_in_the_report(folder, capsys):
    assert main(["run", str(spec(folder, "check: {every: 100}")), "--device", "cpu", "--steps", "2"]) == 0
    assert re.search(r"note: every 100th run is repeated by eager: .* more then, .* a run", capsys.readouterr().out)


@pytest.mark.parametrize("value", ["-1", "1.5", "often", "true"])
def test_every_is_a_whole_number(folder, value, capsys):
    assert main(["validate", str(spec(folder, f"check: {{every: {value}}}"))]) == 1
    assert "every" in capsys.readouterr().out
