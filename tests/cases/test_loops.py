"""Loops in `replay`: zero, one or more turns of captured and eager regions equal the model's own loop."""

import os
import signal
import threading
import time

import pytest
import torch

import graphspec
from graphspec.errors import CaptureError, OrderError, SpecError

MODEL = """
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4) * 0.5)
        self.kept = []

    def load(self, x, turns):
        return x * 2, turns + 0, (turns > 0).reshape(1)

    def step(self, h, left):
        left = left - 1
        return torch.tanh(h @ self.w) + 0.1, left, (left > 0).reshape(1)

    def finish(self, h, left):
        return h * 3 + left
"""
SPEC = """
    dims: {rows: [2, 4]}
    buffers:
      x: {shape: [rows, 4], dtype: float32}
      turns: {shape: [], dtype: int64, sample: {randint: [0, 4]}}
      h: {role: state, shape: [rows, 4], dtype: float32}
      left: {role: state, shape: [], dtype: int64}
      active: {role: state, shape: [1], dtype: bool}
      y: {role: output, shape: [rows, 4], dtype: float32}
    pools: {p: [load, step, finish]}
    regions:
      load: {call: model.load, inputs: [x, turns], outputs: [h, left, active]}
      step: {call: model.step, inputs: [h, left], outputs: [h, left, active]}
      finish: {call: model.finish, inputs: [h, left], outputs: y}
    replay: [load, {while: active, do: [step]}, finish]
"""


def looped(model, x, turns, most=None):
    h, left, active = model.load(x, turns)
    made = 0
    while bool(active) and made != most:
        h, left, active = model.step(h, left)
        made += 1
    return model.finish(h, left)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_any_number_of_turns_none_too_equals_eager(case, rows):
    runner = case.open(MODEL, SPEC)
    model = case.eager()
    for turns in (3, 0, 1, 7, 2, 0):
        x, count = torch.randn(rows, 4), torch.tensor(turns)
        torch.testing.assert_close(runner.run(x=x, turns=count)["y"], looped(model, x, count))
    assert runner.stats.turns == 13
    assert runner.verify(x=x, turns=torch.tensor(4))["y"].shape == (rows, 4)


def test_a_bound_ends_a_loop_whose_value_is_still_true(case):
    runner = case.open(MODEL, SPEC.replace("do: [step]", "do: [step], max: 3"))
    model, x = case.eager(), torch.randn(4, 4)
    for turns in (2, 3, 9):
        wanted = looped(model, x, torch.tensor(turns), 3)
        torch.testing.assert_close(runner.run(x=x, turns=torch.tensor(turns))["y"], wanted)


def test_a_size_that_no_bucket_holds_loops_in_eager(case):
    model = """
        def step(self, x, left):
            return torch.tanh(x), left - 1, left > 1

        def finish(self, h, left):
            return h * left
    """
    spec = """
    dims: {rows: [2, 4]}
    buffers:
      x: {shape: [rows, 4], dtype: float32}
      left: {role: state, shape: [], dtype: int64, init: 3}
      y: {role: output, shape: [rows, 4], dtype: float32}
    regions:
      step: {call: model.step, on_miss: eager, inputs: [x, left], outputs: [h, left, active]}
      finish: {call: model.finish, on_miss: eager, inputs: [h, left], outputs: y}
    replay: [step, {while: active, do: [step]}, finish]
    """
    runner = case.open(model, spec)
    for rows, turns in ((6, 3), (4, 2), (5, 1)):
        x, left = torch.randn(rows, 4), torch.tensor(turns)
        runner.state.write("left", left)
        torch.testing.assert_close(runner.run(x=x)["y"], torch.tanh(x) * 0)
        assert runner.state["left"].item() == 0
    assert runner.stats.fallbacks == 2


WAYS = {
    "intermediate of a graph": ("", "{call: model.step, inputs: [h, n], outputs: [h, n, active]}", ""),
    "static output": ("      active: {role: output, static: true, shape: [], dtype: bool}\n",
                      "{call: model.step, inputs: [h, n], outputs: [h, n, active]}", ""),
    "result": ("      active: {role: output, shape: [], dtype: bool}\n",
               "{call: model.step, inputs: [h, n], outputs: [h, n, active]}", ""),
    "eager tensor": ("", "{call: model.step, inputs: [h, n], outputs: [h, n, active], eager: true}", ""),
    "bool of Python": ("", "{call: model.host, inputs: [h, n], outputs: [h, n, active], eager: true}", ""),
    "beside the step": ("", "{call: model.plain, inputs: [h, n], outputs: [h, n]}",
                        "      look: {call: model.look, inputs: [n], outputs: active, eager: true}\n"),
    "state of the model": ("      active: {role: state, attr: model.active}\n",
                           "{call: model.leave, inputs: [h, n], outputs: [h, n]}", ""),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_goes_by_whatever_makes_a_bool(case, way):
    declared, step, look = WAYS[way]
    model = """
        def __init__(self):
            super().__init__()
            self.register_buffer("active", torch.ones((), dtype=torch.bool))

        def load(self, x):
            return x * 2, (x[0, 0].abs() * 5).to(torch.int64)

        def plain(self, h, n):
            return torch.sin(h) + 0.5, n - 1

        def step(self, h, n):
            h, n = self.plain(h, n)
            return h, n, n > 0

        def host(self, h, n):
            h, n, active = self.step(h, n)
            return h, n, bool(active)

        def leave(self, h, n):
            h, n, active = self.step(h, n)
            self.active.copy_(active)
            return h, n

        def look(self, n):
            return n > 0

        def finish(self, h):
            return h.sum(1)
    """
    turn = "[step, look]" if look else "[step]"
    spec = f"""
    buffers:
      x: {{shape: [3, 4], dtype: float32}}
      h: {{role: state, shape: [3, 4], dtype: float32}}
      n: {{role: state, shape: [], dtype: int64}}
      y: {{role: output, shape: [3], dtype: float32}}
{declared}    regions:
      load: {{call: model.load, inputs: [x], outputs: [h, n]}}
      step: {step}
{look}      finish: {{call: model.finish, inputs: [h], outputs: y}}
    replay: [load, {turn[1:-1]}, {{while: active, do: {turn}}}, finish]
    """
    runner = case.open(model, spec)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(3, 4)
        h, n = x * 2, (x[0, 0].abs() * 5).to(torch.int64)
        while True:
            h, n = torch.sin(h) + 0.5, n - 1
            if not bool(n > 0):
                break
        torch.testing.assert_close(runner.run(x=x)["y"], h.sum(1))
        runner.verify(x=x)


def test_loops_in_loops_and_one_after_another_equal_eager(case):
    model = """
        def start(self, x):
            return x.clone(), x[0] > 0, x[0] > 0

        def inner(self, v):
            v = torch.stack([v[0], v[1] - 1])
            return v, v[1] > 0

        def outer(self, v):
            v = torch.stack([v[0] - 1, v[0] * 1.5])
            return v, v[0] > 0, v[1] > 0

        def end(self, v):
            return v * 2
    """
    spec = """
    buffers:
      x: {shape: [2], dtype: float32}
      v: {role: state, shape: [2], dtype: float32}
      a: {role: state, shape: [], dtype: bool}
      b: {role: state, shape: [], dtype: bool}
      y: {role: output, shape: [2], dtype: float32}
    pools: {p: [start, inner, outer, end]}
    regions:
      start: {call: model.start, inputs: [x], outputs: [v, a, b]}
      inner: {call: model.inner, inputs: [v], outputs: [v, b]}
      outer: {call: model.outer, inputs: [v], outputs: [v, a, b]}
      end: {call: model.end, inputs: [v], outputs: y}
    replay:
      - start
      - while: a
        do: [{while: b, do: [inner]}, outer]
      - while: b
        do: [inner]
      - end
    """
    runner, model = case.open(model, spec), case.eager()
    for first in (3.0, -1.0, 0.5, 4.25):
        x = torch.tensor([first, 2.5])
        v, a, b = model.start(x)
        while a:
            while b:
                v, b = model.inner(v)
            v, a, b = model.outer(v)
        while b:
            v, b = model.inner(v)
        assert torch.equal(runner.run(x=x)["y"], model.end(v))


def test_what_eager_regions_keep_and_hand_on_in_a_loop_is_as_in_eager(case):
    model = """
        def __init__(self):
            super().__init__()
            self.seen = []

        def embed(self, token):
            return torch.stack([token, token * 2]).float()

        def step(self, e, h):
            return torch.tanh(e.sum() + h)

        def pick(self, h):
            self.seen.append(h)
            token = int(h.abs().max() * 100) % 7
            return torch.tensor(token), token > 2 and len(self.seen) % 9 != 0
    """
    spec = """
    buffers:
      token0: {shape: [], dtype: int64, sample: {randint: [0, 5]}}
      h: {role: state, shape: [3], dtype: float32, init: 0.25}
    pools: {p: [first, embed, step, close]}
    regions:
      first: {call: model.embed, inputs: [token0], outputs: e0}
      begin: {call: model.step, inputs: [e0, h], outputs: h}
      pick: {call: model.pick, inputs: [h], outputs: [token, go], eager: true}
      embed: {call: model.embed, inputs: [token], outputs: e}
      step: {call: model.step, inputs: [e, h], outputs: h}
      close: {call: model.embed, inputs: [token], outputs: last}
    replay: [first, begin, pick, {while: go, do: [embed, step, pick]}, close]
    """
    runner, model = case.open(model, spec), case.eager()
    h = torch.full((3,), 0.25)
    for number in range(12):
        begin = torch.tensor(number % 5)
        h = model.step(model.embed(begin), h)
        token, go = model.pick(h)
        while go:
            h = model.step(model.embed(token), h)
            token, go = model.pick(h)
        assert torch.equal(runner.run(token0=begin)["last"], model.embed(token))
    assert len(model.seen) == len(runner.model.seen) > 14
    for mine, its in zip(model.seen, runner.model.seen, strict=True):
        assert torch.equal(mine, its)


def test_a_loop_may_go_by_what_another_sequence_made(case):
    model = """
        def load(self, x, turns):
            return x * 2, turns + 0

        def step(self, h, left):
            return torch.sin(h) + 0.5, left - 1, left > 1

        def finish(self, h):
            return h.sum()
    """
    spec = """
    buffers:
      x: {shape: [4], dtype: float32}
      turns: {shape: [], dtype: int64}
      h: {role: state, shape: [4], dtype: float32}
      left: {role: state, shape: [], dtype: int64}
    regions:
      load: {call: model.load, inputs: [x, turns], outputs: [h, left]}
      step: {call: model.step, inputs: [h, left], outputs: [h, left, active]}
      finish: {call: model.finish, inputs: [h], outputs: y}
    replay: {begin: [load, step], turn: [{while: active, do: [step]}, finish]}
    """
    runner, model = case.open(model, spec), case.eager()
    with case.refused(OrderError, "the loop `while: active`", "'step'"):
        runner["turn"]()
    for turns in (2, 5, 1, 4):
        x, left = torch.randn(4), torch.tensor(turns)
        runner["begin"](x=x, turns=left)
        h, left, active = model.step(*model.load(x, left))
        while active:
            h, left, active = model.step(h, left)
        torch.testing.assert_close(runner["turn"]()["y"], model.finish(h))


def test_a_result_of_a_loop_that_ran_no_turn_is_an_error_and_the_next_run_is_right(case):
    spec = SPEC.replace("{while: active, do: [step]}, finish]", "{while: active, do: [step, finish]}]")
    runner, model = case.open(MODEL, spec), case.eager()
    x = torch.randn(4, 4)
    with case.refused(OrderError, "'y'", "no turn"):
        runner.run(x=x, turns=torch.tensor(0))
    torch.testing.assert_close(runner.run(x=x, turns=torch.tensor(2))["y"], looped(model, x, torch.tensor(2)))


def test_a_loop_that_never_ends_is_interrupted_and_leaves_things_clean(case):
    model = MODEL.replace("left = left - 1", "left = left - (left < 100).to(left.dtype)")
    runner, x = case.open(model, SPEC), torch.randn(4, 4)
    wanted = runner.run(x=x, turns=torch.tensor(3))["y"]
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.run(x=x, turns=torch.tensor(1000))
    assert time.monotonic() - began < 20
    assert torch.equal(runner.run(x=x, turns=torch.tensor(3))["y"], wanted)


@pytest.mark.parametrize("returned", ["h > 0", "left", "(left > 0).expand(2)", "1.5"])
def test_what_is_no_bool_is_refused_when_it_is_captured(case, returned):
    model = MODEL.replace("return torch.tanh(h @ self.w) + 0.1, left, (left > 0).reshape(1)",
                          f"return torch.tanh(h @ self.w) + 0.1, left, {returned}")  # fmt: skip
    spec = SPEC.replace("      active: {role: state, shape: [1], dtype: bool}\n", "")
    spec = spec.replace(
        "inputs: [x, turns], outputs: [h, left, active]", "inputs: [x, turns], outputs: [h, left, first]"
    )
    spec = spec.replace("replay: [load, ", "replay: [load, step, ")
    with pytest.raises(CaptureError, match="a loop goes by 'active'"):
        case.open(model, spec)
    _, found = graphspec.loading.inspect(case.path)
    assert [each for each in found if each.severity == "error"] == []


def test_a_value_that_the_turn_before_overwrote_is_found_without_running_anything(case):
    spec = """
    buffers:
      x: {shape: [4], dtype: float32}
      turns: {shape: [], dtype: int64}
      left: {role: state, shape: [], dtype: int64}
      z: {role: state, shape: [4], dtype: float32}
      active: {role: state, shape: [1], dtype: bool}
    pools: {p: POOL}
    regions:
      load: {call: model.load, inputs: [x, turns], outputs: [h, left, active]}
      step: {call: model.step, inputs: [h, left], outputs: [z, left, active]}
      other: {call: model.finish, inputs: [z, left], outputs: y}
    replay: [load, {while: active, do: [step, other]}]
    """
    with pytest.raises(SpecError, match=r"'step' reads 'h' of region 'load' again in its next turn, after 'other'"):
        case.open(MODEL, spec.replace("POOL", "[load, step, other]"))
    runner, model = case.open(MODEL, spec.replace("POOL", "[load, step]")), case.eager()
    for turns in (1, 4):
        x = torch.randn(4)
        h, left, active = model.load(x, torch.tensor(turns))
        while active:
            z, left, active = model.step(h, left)
        torch.testing.assert_close(runner.run(x=x, turns=torch.tensor(turns))["y"], model.finish(z, left))
