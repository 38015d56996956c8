"""Loops of a sequence on the NPU: as many turns as eager, on fresh inputs."""

import torch

LOOP = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def load(self, x, turns):
        return x * 2, turns + 0

    def step(self, h, left):
        return torch.tanh(self.layer(h)), left - 1, left > 1

    def finish(self, h, left):
        return h * 3 + left
"""
LOOP_SPEC = """
dims: {rows: [2, 4]}
buffers:
  x: {shape: [rows, 4], dtype: float32}
  turns: {shape: [], dtype: int64, sample: {randint: [0, 4]}}
  h: {role: state, shape: [rows, 4], dtype: float32}
  left: {role: state, shape: [], dtype: int64}
  y: {role: output, shape: [rows, 4], dtype: float32}
pools: {p: [load, step, finish]}
regions:
  load: {call: model.load, inputs: [x, turns], outputs: [h, left]}
  step: {call: model.step, inputs: [h, left], outputs: [h, left, active]}
  finish: {call: model.finish, inputs: [h, left], outputs: y}
replay: [load, step, {while: active, do: [step]}, finish]
"""


def test_a_loop_turns_as_often_as_eager(case):
    runner = case.open(LOOP, LOOP_SPEC)
    model = runner.model
    for rows, turns in ((4, 3), (3, 1), (2, 6), (1, 2)):
        x, left = torch.randn(rows, 4).npu(), torch.tensor(turns).npu()
        h, left = model.load(x, left)
        h, left, active = model.step(h, left)
        while active:
            h, left, active = model.step(h, left)
        torch.testing.assert_close(runner.run(x=x, turns=torch.tensor(turns).npu())["y"], model.finish(h, left))
    assert runner.stats.turns == 2 + 0 + 5 + 1
