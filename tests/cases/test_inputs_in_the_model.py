"""Inputs that lie in tensors the model owns: hand-written runners copy into them and call the model without them."""

import pytest
import torch

import graphspec
from graphspec.cli import main
from graphspec.errors import GuardError, InputError, ModelError

MODEL = """
    def __init__(self):
        super().__init__()
        self.register_buffer("input_buf", torch.zeros(4, 3))
        self.weight = nn.Parameter(torch.arange(3.0))
        self.box = {"ids": torch.zeros(4, dtype=torch.int64)}

    def forward(self):
        return self.input_buf * self.weight + self.box["ids"].unsqueeze(1)

    def step(self, rows):
        return rows * self.weight + self.input_buf.shape[0]
"""
SPEC = """
    buffers:
      x: {shape: [4, 3], dtype: float32, attr: model.input_buf}
      ids: {shape: [4], dtype: int64, attr: model.box.ids, sample: {randint: [0, 9]}, hold: true}
      y: {role: output, shape: [4, 3], dtype: float32}
    regions:
      main: {call: model, outputs: y}
"""


def eager(x, ids):
    return x * torch.arange(3.0) + ids.unsqueeze(1)


def test_a_run_copies_into_tensors_that_the_model_owns(case, capsys):
    runner = case.open(MODEL, SPEC)
    ids = torch.arange(4)
    for _ in range(3):
        x = torch.randn(4, 3)
        torch.testing.assert_close(runner.run(x=x, ids=ids)["y"], eager(x, ids))
        torch.testing.assert_close(runner.model.input_buf, x)
    torch.testing.assert_close(runner.run(x=-x)["y"], eager(-x, ids))
    torch.testing.assert_close(runner.verify(x=x, ids=ids + 1)["y"], eager(x, ids + 1))
    with case.refused(InputError, "needs the input 'x'"):
        runner.run(ids=ids)
    for command in (["check"], ["run", "--steps", "3"]):
        assert main([*command, str(case.path), "--device", "cpu"]) == 0
    assert "replay matches eager" in capsys.readouterr().out


def test_opening_leaves_the_tensors_as_they_were(case):
    path = case.write(MODEL, SPEC)
    model = case.eager()
    model.input_buf.fill_(7)
    with graphspec.open(path, model=model, device="cpu") as runner:
        assert torch.equal(model.input_buf, torch.full((4, 3), 7.0))
        x = torch.randn(4, 3)
        torch.testing.assert_close(runner.run(x=x, ids=torch.ones(4, dtype=torch.int64))["y"], eager(x, torch.ones(4)))


def test_a_tensor_that_was_replaced_is_guarded_and_found_anew(case):
    runner = case.open(MODEL, SPEC)
    x, ids = torch.randn(4, 3), torch.arange(4)
    runner.model.input_buf = torch.zeros(4, 3)
    with case.refused(GuardError, "model.input_buf"):
        runner.run(x=x, ids=ids)
    runner.recapture()
    torch.testing.assert_close(runner.run(x=x, ids=ids)["y"], eager(x, ids))
    torch.testing.assert_close(runner.model.input_buf, x)


BUCKETS = """
    dims: {batch: [2, 4]}
    buffers:
      x: {shape: [batch, 3], dtype: float32, attr: model.input_buf}
      y: {role: output, shape: [batch, 3], dtype: float32}
    regions:
      main: {call: model.step, inputs: [x], outputs: y%s}
"""


@pytest.mark.parametrize("more", ["", ", on_miss: eager, max_pad: 1"], ids=["padded", "eager"])
def test_a_region_may_be_given_the_rows_of_its_bucket(case, more):
    runner = case.open(MODEL, BUCKETS % more)
    assert main(["check", str(case.path), "--device", "cpu"]) == 0
    for rows in (4, 3, 2, 1):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(runner.run(x=x)["y"], x * torch.arange(3.0) + 4)
        torch.testing.assert_close(runner.model.input_buf[:rows], x)
    assert runner.stats.fallbacks == (2 if more else 0)
    assert main(["run", str(case.path), "--device", "cpu", "--steps", "4"]) == 0


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        ("{shape: [4, 2], dtype: float32, attr: model.input_buf}", "is declared"),
        ("{shape: [4, 3], dtype: float16, attr: model.input_buf}", "is declared"),
        ("{shape: [4, 3], dtype: float32, attr: model.imput_buf}", "leads nowhere"),
        ("{shape: [4, 3], dtype: float32, attr: model.box}", "leads to no tensor"),
    ],
)
def test_a_tensor_that_is_not_as_declared_is_named_by_check_and_open_alike(case, capsys, buffer, said):
    path = case.write(MODEL, SPEC.replace("{shape: [4, 3], dtype: float32, attr: model.input_buf}", buffer))
    with pytest.raises(ModelError, match=said):
        graphspec.open(path, device="cpu")
    assert main(["check", str(path), "--device", "cpu"]) == 1
    assert said in capsys.readouterr().out
