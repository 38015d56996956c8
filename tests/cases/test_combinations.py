"""`variants`: the combinations of specialized params and optional inputs that occur; no others are captured or run."""

import torch

import graphspec
from graphspec.cli import main
from graphspec.errors import InputError

MODEL = """
    def forward(self, x, mask, bias, adapter, k):
        y = x * (2 if adapter == "lora" else 1) + k
        y = y if mask is None else y * mask
        return y if bias is None else y + bias

    def other(self, x, bias):
        return x if bias is None else x - bias
"""
SPEC = """
    params:
      adapter: {type: str, choices: [none, lora, dora], default: none, specialize: true}
      k: {type: int, choices: [1, 2], default: 1, specialize: true}
    variants: [{adapter: none, k: 1}, {adapter: lora, mask: true, bias: false}]
    buffers:
      x: {shape: [2], dtype: float32}
      mask: {shape: [2], dtype: float32, optional: true}
      bias: {shape: [2], dtype: float32, optional: true}
      y: {role: output, shape: [2], dtype: float32}
      z: {role: output, shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x, mask, bias, adapter, k], outputs: y}
      other: {call: model.other, inputs: [x, bias], outputs: z}
    replay: {main: [main], other: [other]}
"""


def test_only_combinations_that_occur_are_counted_captured_and_run(case, capsys):
    runner = case.open(MODEL, SPEC)
    assert len(runner.plan.variants) == 6  # none and 1 with any of four sets of inputs, lora with 1 or 2
    assert {str(each.variant) for each in runner.graphs} == {str(each) for each in runner.plan.variants}
    x, mask, bias = torch.randn(3, 2)
    for given in ({}, {"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
        want = runner.model(x, given.get("mask"), given.get("bias"), "none", 1)
        torch.testing.assert_close(runner["main"](x=x, adapter="none", k=1, **given)["y"], want)
    torch.testing.assert_close(runner["main"](x=x, adapter="lora", k=2, mask=mask)["y"], (x * 2 + 2) * mask)
    captured = len(runner.graphs)
    with case.refused(InputError, "no combination under `variants`", "adapter='lora'", "no 'mask'"):
        runner["main"](x=x, adapter="lora", k=2)
    with case.refused(InputError, "adapter='dora'"):
        runner["main"](x=x, adapter="dora", mask=mask)
    assert len(runner.graphs) == captured
    for command in (["check"], ["run", "--steps", "12"]):
        assert main([*command, str(case.path), "--device", "cpu"]) == 0, capsys.readouterr().out


def test_what_a_sequence_does_not_take_does_not_count(case):
    runner = case.open(MODEL, SPEC)
    x, bias = torch.randn(2, 2)
    torch.testing.assert_close(runner["other"](x=x, bias=bias)["z"], x - bias)
    torch.testing.assert_close(runner["other"](x=x)["z"], x)


def test_max_graphs_counts_the_combinations_that_occur(case):
    path = case.write(MODEL, SPEC + "\n    capture: {max_graphs: 12}")
    assert len(graphspec.compile(graphspec.load(path)).variants) == 6
    assert main(["validate", str(path)]) == 0
