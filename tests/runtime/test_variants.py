"""What `choices` and optional inputs lead to: sets of graphs, captured before the first run or when they are needed."""

import re

import pytest
import torch

import graphspec
from graphspec.cli import main

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, mask=None, k=1):
        y = self.lin(x) * k
        return y if mask is None else y * mask

def build():
    return Model()
"""

SPEC = """graphspec: 1
name: variants
model: {factory: model.py:build}
dims: {batch: [1, 2]}
params:
  k: {type: int, choices: [1, 2], default: 2, specialize: true}
buffers:
  x: {shape: [batch, 4], dtype: float32}
  mask: {shape: [batch, 4], dtype: float32, optional: true}
  y: {role: output, shape: [batch, 4], dtype: float32}
regions:
  step: {call: model, inputs: [x, mask, k], outputs: y}
replay: [step]
CAPTURE
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)

    def write(capture="", text=SPEC):
        (tmp_path / "model.yaml").write_text(text.replace("CAPTURE", capture))
        return tmp_path / "model.yaml"

    return write


def test_every_variant_that_is_known_is_captured_before_the_first_run(path):
    with graphspec.open(path(), device="cpu") as runner:
        assert [str(graph.variant) for graph in runner.graphs[::2]] == list(map(str, runner.plan.variants))
        assert len(runner.graphs) == len(runner.plan.graphs) * len(runner.plan.opened) == 8
        for k, mask in ((1, None), (2, None), (1, torch.zeros(2, 4)), (2, torch.ones(2, 4))):
            x = torch.randn(2, 4)
            given = {} if mask is None else {"mask": mask}
            assert torch.equal(runner.run(x=x, k=k, **given)["y"], runner.model(x, mask, k))
        assert len(runner.graphs) == 8


def test_variants_may_wait_until_they_are_needed(path):
    with graphspec.open(path("capture: {when: first_use}"), device="cpu") as runner:
        assert [str(graph.variant) for graph in runner.graphs] == ["k=2", "k=2"]
        runner.run(x=torch.ones(1, 4), k=1)
        assert {str(graph.variant) for graph in runner.graphs} == {"k=2", "k=1, without mask"}


def test_no_more_graphs_are_held_than_the_spec_says_and_the_first_eviction_is_warned_of(path):
    text = SPEC.replace("choices: [1, 2], ", "")
    with graphspec.open(path("capture: {max_graphs: 6, when: first_use}", text), device="cpu") as runner:
        for k in (3, 4, 5, 6):
            assert torch.equal(runner.run(x=torch.ones(1, 4), k=k)["y"], runner.model(torch.ones(1, 4), None, k))
            assert len(runner.graphs) <= 6
        assert runner.stats.evictions == 2
        assert [each for each in runner.warnings if "made room for those of another" in each]
        assert len(runner.warnings) == 1


def test_run_tells_the_graphs_of_variants_apart(path, capsys):
    assert main(["run", str(path()), "--device", "cpu", "--steps", "1"]) == 0
    out = capsys.readouterr().out
    for variant in ("k=1", "k=2", "k=1, without mask", "k=2, without mask"):
        assert len(re.findall(rf"step +batch=\d +{variant}  ", out)) == 2
