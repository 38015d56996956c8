"""What real runners need on the NPU: loops of a sequence, sleep and wake."""

import pytest
import torch

import graphspec
from graphspec.errors import ReplayError

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


WIDE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x, h):
        h = torch.tanh(self.layer(x) + h).repeat(64, 64)[:64, :64] * 2
        return h, h.sum(1)
"""
WIDE_SPEC = """
buffers:
  x: {shape: [64, 64], dtype: float32}
  h: {role: state, shape: [64, 64], dtype: float32}
regions:
  step: {call: model, inputs: [x, h], outputs: [h, y]}
replay: [step]
"""


def test_a_released_runner_gives_its_pools_back_to_the_device_and_wakes_up(case):
    runner = case.open(WIDE, WIDE_SPEC)
    x, h = torch.randn(64, 64).npu(), torch.zeros(64, 64).npu()
    asleep = []
    for _ in range(4):
        h, y = runner.model(x, h)
        torch.testing.assert_close(runner.run(x=x)["y"], y)
        torch.npu.empty_cache()
        awake = torch.npu.memory_reserved()
        runner.release()
        asleep.append(torch.npu.memory_reserved())
        assert asleep[-1] <= awake - 64 * 64 * 64 * 64 * 4
        with pytest.raises(ReplayError, match="released"):
            runner.run(x=x)
        torch.testing.assert_close(runner.state["h"], h)
        runner.capture()
    assert asleep[-1] <= asleep[0] + (8 << 20)


def test_a_draft_in_the_pools_of_its_target_takes_less_memory_and_both_are_right(case):
    target = case.open(WIDE, WIDE_SPEC)
    path = case.write(WIDE, WIDE_SPEC.replace("step", "draft"))
    took = []
    for pool in (None, target):
        torch.npu.empty_cache()
        before = torch.npu.memory_reserved()
        draft = graphspec.open(path, device="npu", pool=pool)
        torch.npu.empty_cache()
        took.append(torch.npu.memory_reserved() - before)
        x = torch.randn(64, 64).npu()
        states = [torch.zeros(64, 64).npu(), torch.zeros(64, 64).npu()]
        for _ in range(3):
            for at, runner in enumerate((target, draft)):
                states[at] = runner.state["h"]
                states[at], y = runner.model(x, states[at])
                torch.testing.assert_close(runner.run(x=x)["y"], y)
        draft.close()
    assert took[1] <= took[0] - 64 * 64 * 64 * 64 * 2
    _, y = target.model(x, target.state["h"])
    torch.testing.assert_close(target.run(x=x)["y"], y)


BROKEN = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 4, 8))

    def forward(self, q, k, lens):
        out = torch.empty_like(q)
        for row in range(q.shape[0]):
            self.cache[row, lens[row] % 4] = k[row]
            seen = self.cache[row, : lens[row] % 4 + 1]
            weights = torch.softmax(seen @ q[row], 0)
            out[row] = (weights * (0.5 if weights.max().item() > 0.9 else 1.0)) @ seen
        return out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 16) for _ in range(3))
        self.attns = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x, lens):
        for layer, attn in zip(self.layers, self.attns):
            q, k = layer(x).chunk(2, -1)
            x = torch.tanh(x + attn(q, k, lens))
            h = x[:, None, None]
            x = x + nn.functional.scaled_dot_product_attention(h, h, h)[:, 0, 0]
        return x * 2
"""
BROKEN_SPEC = """
dims: {batch: [2, 4]}
params: {lens: {type: int, shape: [batch], min: 0, max: 9, default: 1, pad: 0}}
buffers:
  x: {shape: [batch, 8], dtype: float32}
  cache: {role: state, attr: "model.attns.*.cache", shape: [batch, 4, 8]}
  y: {role: output, shape: [batch, 8], dtype: float32}
regions:
  step: {call: model, inputs: [x, lens], outputs: y, break: ["model.attns.*", "aten::scaled_dot_product_attention"]}
replay: [step]
check: {rtol: 1.0e-3, atol: 1.0e-4}
"""


def test_attention_stays_eager_between_captured_pieces(case):
    runner = case.open(BROKEN, BROKEN_SPEC)
    assert not any(attn.cache.any().item() for attn in runner.model.attns)
    eager = case.module(case.folder / "case0/model.yaml").Model().npu().eval()
    eager.load_state_dict(runner.model.state_dict())
    for again in range(2):
        for rows, lens in ((4, [0, 1, 2, 3]), (2, [1, 5]), (3, [2, 0, 7]), (4, [3, 3, 1, 0])):
            x = torch.randn(rows, 8).npu()
            torch.testing.assert_close(runner.run(x=x, lens=lens)["y"], eager(x, lens), rtol=1e-3, atol=1e-4)
            for mine, its in zip(eager.attns, runner.model.attns, strict=True):
                torch.testing.assert_close(its.cache, mine.cache, rtol=1e-3, atol=1e-4)
        runner.verify(x=x, lens=lens)
        for mine, its in zip(eager.attns, runner.model.attns, strict=True):
            mine.cache.copy_(its.cache)
        if not again:
            runner.release()
            runner.capture()
