"""Runners that share pools: one memory, turn by turn, each as right as alone."""

import threading

import pytest
import torch

import graphspec
from graphspec.errors import InputError, ReplayError

TARGET = """
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.kept = []

    def prefill(self, x):
        return torch.tanh(self.layer(x)), x.sum(1)

    def decode(self, h, y, s):
        h = torch.tanh(self.layer(h) + y.unsqueeze(1) + s)
        return h, h.mean(1)

    def keep(self, h):
        self.kept.append(h)
        return h.sum()
"""
SPEC = """
    dims: {batch: [2, 4]}
    buffers:
      x: {shape: [batch, 32], dtype: float32, hold: true}
      s: {role: state, shape: [batch, 32], dtype: float32}
      y: {role: output, shape: [batch], dtype: float32, copy: false}
      z: {role: output, shape: [batch], dtype: float32}
      h: {role: output, shape: [batch, 32], dtype: float32}
    pools: {POOL: [prefill, decode]}
    regions:
      prefill: {call: model.prefill, inputs: [x], outputs: [h, y]}
      decode: {call: model.decode, inputs: [h, y, s], outputs: [s, z]}
      keep: {call: model.keep, inputs: [h, x], outputs: total, eager: true}
    replay: {prefill: [prefill, keep], decode: [decode]}
"""
SPEC = SPEC.replace(
    "decode: {call: model.decode, inputs: [h, y, s]", "decode: {call: model.decode, inputs: {h: h, y: y, s: s, x: x}"
)
TARGET = TARGET.replace("def decode(self, h, y, s):", "def decode(self, h, y, s, x):").replace(
    "def keep(self, h):", "def keep(self, h, x):"
)


def memory(runner):
    return {arena.memory.data_ptr() for arena in runner._context.backend._arenas}


@pytest.fixture
def pair(case):
    """A target, a draft in its pools, and what both compute by themselves."""
    target = case.open(TARGET, SPEC.replace("POOL", "large"))
    draft = case.open(
        TARGET.replace("Linear(32, 32)", "Linear(32, 32, bias=False)"), SPEC.replace("POOL", "small"), pool=target
    )
    return target, draft


class Eager:
    def __init__(self, runner):
        self.model = runner.model
        self.s = torch.zeros(4, 32)

    def prefill(self, x):
        self.x = x
        self.h, self.y = self.model.prefill(x)
        return {"h": self.h, "y": self.y}

    def decode(self):
        rows = len(self.x)
        self.s[:rows], z = self.model.decode(self.h, self.y, self.s[:rows], self.x)
        return {"z": z}


def same(came, wanted):
    for name, value in wanted.items():
        torch.testing.assert_close(came[name] + 0, value)


def test_runs_in_turns_equal_eager_also_where_one_reads_what_it_left_before_the_other_ran(pair):
    target, draft = pair
    assert memory(draft) <= memory(target)
    one, two = Eager(target), Eager(draft)
    seen = [[], []]
    for rows in (4, 3, 2, 4):
        x, u = torch.randn(rows, 32), torch.randn(rows, 32)
        lent = target["prefill"](x=x)
        same(lent, one.prefill(x))
        same(draft["prefill"](x=u), two.prefill(u))
        torch.testing.assert_close(lent["y"] + 0, one.y)  # until its own graphs make it anew
        for _ in range(3):
            same(target["decode"](), one.decode())
            same(draft["decode"](), two.decode())
        seen[0].append(one.h)
        seen[1].append(two.h)
    for runner, kept in zip(pair, seen, strict=True):
        for mine, its in zip(kept, runner.model.kept, strict=True):
            torch.testing.assert_close(its, mine)


@pytest.mark.parametrize("closed", [0, 1])
@pytest.mark.parametrize("way", ["close", "release", "recapture"])
def test_what_becomes_of_one_leaves_the_other_right(pair, closed, way):
    gone, left = pair[closed], pair[1 - closed]
    eager = Eager(left)
    x = torch.randn(4, 32)
    lent = left["prefill"](x=x)
    same(lent, eager.prefill(x))
    gone["prefill"](x=torch.randn(4, 32))
    getattr(gone, way)()
    torch.testing.assert_close(lent["y"] + 0, eager.y)
    for _ in range(3):
        same(left["decode"](), eager.decode())
    if way == "release":
        gone.capture()
    if way != "close":
        x = torch.randn(4, 32)
        same(gone["prefill"](x=x), Eager(gone).prefill(x))
    same(left["decode"](), eager.decode())
    left.recapture()
    x = torch.randn(2, 32)
    same(left["prefill"](x=x), eager.prefill(x))
    same(left["decode"](), eager.decode())


def test_a_third_runner_and_one_with_more_pools_share_too(case, pair):
    target, draft = pair
    spec = SPEC.replace("pools: {POOL: [prefill, decode]}", "pools: {large: [prefill]}")
    third = case.open(TARGET, spec, pool=draft)
    runners = (target, draft, third)
    eagers = [Eager(runner) for runner in runners]
    for rows in (4, 2):
        for runner, eager in zip(runners, eagers, strict=True):
            x = torch.randn(rows, 32)
            same(runner["prefill"](x=x), eager.prefill(x))
        for runner, eager in zip(runners, eagers, strict=True):
            same(runner["decode"](), eager.decode())


def test_threads_take_turns(pair):
    wrong = []

    def work(runner):
        eager = Eager(runner)
        for _ in range(20):
            x = torch.randn(4, 32)
            h = runner["prefill"](x=x)["h"]
            with torch.no_grad():
                wanted = eager.model.prefill(x)[0]
            if not torch.allclose(h, wanted, atol=1e-6):
                wrong.append(runner)

    threads = [threading.Thread(target=work, args=(runner,)) for runner in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_run_inside_of_a_run_of_the_other_is_refused(case):
    outer = """
        def twice(self, x):
            return x * 2

        def ask(self, y):
            return self.inner.run(x=y)["y"]
    """
    spec = """
    buffers: {x: {shape: [4], dtype: float32}}
    regions:
      twice: {call: model.twice, inputs: [x], outputs: y}
      ask: {call: model.ask, inputs: [y], outputs: z, eager: true}
    replay: [twice]
    """
    asking = spec.replace("replay: [twice]", "replay: {plain: [twice], ask: [twice, ask]}")
    case.write(outer, asking)
    target = graphspec.open(case.path, device="cpu", capture=False)
    target.model.inner = case.open(
        outer, spec.replace("      ask: {call: model.ask, inputs: [y], outputs: z, eager: true}\n", "")
    )
    target.capture()
    x = torch.randn(4)
    assert torch.equal(target["ask"](x=x)["z"], x * 4)
    target.model.inner = graphspec.open(case.path, device="cpu", pool=target)
    with pytest.raises(Exception, match="shares pools with one that is in the middle of a run"):
        target["ask"](x=x)
    assert torch.equal(target["plain"](x=x)["y"], x * 2)
    target.close()


def test_what_cannot_be_shared_is_one_clear_error(case, pair):
    target, _ = pair
    for given, kind in (("large", InputError), (object(), InputError)):
        with case.refused(kind, "pool takes a runner"):
            graphspec.open(case.path, device="cpu", pool=given)
    alone = case.open(TARGET, SPEC.replace("POOL", "p"))
    with case.refused(ReplayError, "has a runner already"):
        graphspec.open(case.path, device="cpu", model=alone.model, pool=target)
    alone.close()
    with case.refused(ReplayError, "is closed"):
        graphspec.open(case.path, device="cpu", pool=alone)


def test_runs_of_a_kind_that_was_seen_before_take_turns_as_well(case):
    code = TARGET.replace("def decode(self, h, y, s, x):", "def decode(self, h, y, s):")
    spec = (
        SPEC.replace("batch: [2, 4]", "batch: [4]")
        .replace(", hold: true", "")
        .replace("{h: h, y: y, s: s, x: x}", "[h, y, s]")
    )
    target = case.open(code, spec.replace("POOL", "large"))
    draft = case.open(
        code.replace("Linear(32, 32)", "Linear(32, 32, bias=False)"), spec.replace("POOL", "small"), pool=target
    )
    states = [torch.zeros(4, 32), torch.zeros(4, 32)]
    for _ in range(4):
        made = []
        for runner in (target, draft):
            x = torch.randn(4, 32)
            same(runner["prefill"](x=x), {"y": x.sum(1)})
            made.append(runner.model.prefill(x))
        for number, runner in enumerate((target, draft)):
            states[number], z = runner.model.decode(*made[number], states[number])
            same(runner["decode"](), {"z": z})
