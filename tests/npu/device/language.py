"""Contexts, inputs in the model's tensors, intermediates, stated sizes, examples and counters on the emulated NPU."""

import textwrap

import pytest
import torch

import graphspec

CONTEXT = """
    import torch


    class Context:
        def __init__(self, prefill=False, slots=None):
            self.prefill, self.slots = prefill, slots


    _CONTEXT = Context()


    def get_context():
        return _CONTEXT


    def set_context(prefill, slots):
        global _CONTEXT
        _CONTEXT = Context(prefill, slots)


    def reset_context():
        global _CONTEXT
        _CONTEXT = Context()
"""
MODEL = """
    import torch
    from context import get_context, set_context
    from torch import nn


    def example(batch):
        return {"slots": torch.randperm(8)[:batch] + 1}


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("x", torch.zeros(4, 3))
            self.register_buffer("cache", torch.zeros(9, 3))
            self.length = 0

        def decode(self, x):
            context = get_context()
            self.cache.index_copy_(0, context.slots, x)
            self.length += 1
            return x * (3 if context.prefill else 2) if self.length < 3 else x

        def last(self, h):
            return h + 1, h.sum(0, keepdim=True)[:, :2] * 0
"""
SPEC = """
    graphspec: 1
    model: {factory: model.py:Model}
    dims: {batch: [2, 4]}
    params:
      filled: {type: int, choices: [0, 5], default: 0, specialize: true}
    sample: {make: "model.py:example"}
    buffers:
      x: {shape: [batch, 3], dtype: float32, attr: model.x}
      slots: {shape: [batch], dtype: int64, pad: 0}
      cache: {role: state, attr: model.cache}
      h: {role: intermediate, shape: [batch, 3], dtype: float32}
      y: {role: output, shape: [batch, 3], dtype: float32}
      z: {role: output, shape: [_, 2], dtype: float32}
    regions:
      decode:
        call: model.decode
        inputs: [x]
        outputs: h
        around: {call: "context:set_context", inputs: {prefill: {const: false}, slots: slots},
                 after: "context.py:reset_context"}
        bind: {model.length: filled}
        pad_rows: {cache: [0]}
        on_miss: eager
        max_pad: 2
      last: {call: model.last, inputs: [h], outputs: [y, z], on_miss: eager}
    replay: [decode, last]
"""


@pytest.fixture
def runner(tmp_path):
    for name, text in (("context.py", CONTEXT), ("model.py", MODEL), ("model.yaml", SPEC)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    with graphspec.open(tmp_path / "model.yaml", device="npu") as opened:
        yield opened


def test_every_run_is_that_of_the_model_by_itself(runner):
    cache = torch.zeros(9, 3)
    for rows, filled, sizes in ((4, 0, {}), (2, 5, {}), (3, 0, {}), (2, 5, {"sizes": {"batch": 4}}), (1, 0, {})):
        x, slots = torch.randn(rows, 3), torch.randperm(8)[:rows] + 1
        got = runner.run(x=x.npu(), slots=slots.npu(), filled=filled, **sizes)
        cache[slots] = x
        torch.testing.assert_close(got["y"].cpu(), (x if filled else x * 2) + 1)
        torch.testing.assert_close(runner.state["cache"].cpu()[1:], cache[1:])
        torch.testing.assert_close(runner.model.x[:rows].cpu(), x)
        assert list(got) == ["y", "z"]
        assert got["z"].shape == (1, 2)
        assert runner.model.length == filled + 1
    assert runner.stats.fallbacks == 0


def test_what_others_set_in_the_context_is_nothing_to_the_graph(runner):
    set_context = type(runner.model).decode.__globals__["set_context"]
    x, slots = torch.randn(2, 3), torch.tensor([3, 4])
    set_context(prefill=True, slots=None)
    torch.testing.assert_close(runner.run(x=x.npu(), slots=slots.npu())["y"].cpu(), x * 2 + 1)
