"""Numbers of the host that count and choose the way: bound to params, one set of graphs for each value."""

import pytest
import torch

import graphspec
from graphspec.cli import main
from graphspec.errors import GuardError

RING = """
    class Ring:
        def __init__(self):
            self.length = 0
            self.rows = torch.zeros(4, 2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.caches = [Ring(), Ring()]
            self.table = {"seen": 0, 0: torch.zeros(2)}

        def forward(self, x):
            for cache in self.caches:
                if cache.length >= 4:
                    cache.rows.copy_(cache.rows.roll(-1, 0))
                    cache.rows[3] = x
                else:
                    cache.rows[cache.length] = x
                cache.length += 1
            self.table["seen"] += 1
            return sum(cache.rows.sum(0) for cache in self.caches) * self.table["seen"] + cache.length
"""
SPEC = """
    params:
      filled: {type: int, min: 0, max: 100, specialize: true}
      seen: {type: int, default: 0, choices: [0, 5], specialize: true}
    buffers:
      x: {shape: [2], dtype: float32}
      rows: {role: state, attr: model.caches.*.rows}
    regions:
      main:
        call: model
        inputs: [x]
        outputs: y
        bind: {model.caches.*.length: filled, model.table.seen: seen}
"""


def test_a_counter_of_the_model_takes_the_value_of_its_param_and_counts_on_in_every_replay(case, capsys):
    runner, eager = case.open(RING, SPEC), case.eager()
    assert [cache.length for cache in runner.model.caches] == [0, 0]
    for step in range(7):
        x, seen = torch.randn(2), (0, 5)[step % 2]
        eager.table["seen"] = seen
        torch.testing.assert_close(runner.run(x=x, filled=step, seen=seen)["y"], eager(x))
        for mine, theirs in zip(runner.model.caches, eager.caches, strict=True):
            assert mine.length == theirs.length == step + 1
            torch.testing.assert_close(mine.rows, theirs.rows)
        assert runner.model.table["seen"] == seen + 1
    runner.model.caches[0].length = 99  # the param says what it is
    runner.reset()
    fresh = case.eager()
    torch.testing.assert_close(runner.run(x=x, filled=0, seen=0)["y"], fresh(x))
    torch.testing.assert_close(runner.verify(x=x, filled=1, seen=0)["y"].shape, torch.Size([2]))
    for command in (["check"], ["run", "--steps", "4"]):
        assert main([*command, str(case.path), "--device", "cpu"]) == 0, capsys.readouterr().out


def test_who_reads_a_counter_later_in_the_run_reads_what_the_region_left(case):
    model = """
        def __init__(self):
            super().__init__()
            self.n = 0

        def step(self, x):
            self.n += 1
            return x * self.n

        def after(self, h):
            return h + self.n
    """
    spec = """
        params: {n: {type: int, choices: [0, 3], specialize: true}}
        buffers:
          x: {shape: [2], dtype: float32}
          y: {role: output}
          z: {role: output}
        regions:
          step: {call: model.step, inputs: [x], outputs: h, bind: {model.n: n}}
          after: {call: model.after, inputs: [h], outputs: y}
          host: {call: model.after, inputs: [h], outputs: z, eager: true}
        replay: [step, after, host]
    """
    runner = case.open(model, spec)
    x = torch.randn(2)
    for n in (0, 3, 0):
        got = runner.run(x=x, n=n)
        torch.testing.assert_close(got["y"], x * (n + 1) + n + 1)
        torch.testing.assert_close(got["z"], x * (n + 1) + n + 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("max: 100, specialize: true", "max: 100"), "specialize: true"),
        (("filled: {type: int, min: 0, max: 100", "filled: {type: float, min: 0, max: 100"), "is of type float"),
        (("model.caches.*.length", "model.caches.*.lenght"), "did you mean 'length'"),
        (("model.caches.*.length", "model.caches"), "writes into tensors and numbers"),
    ],
)
def test_a_bind_that_cannot_hold_is_named_by_check_and_open_alike(case, capsys, change, said):
    path = case.write(RING, SPEC.replace(*change))
    with pytest.raises(graphspec.errors.GraphSpecError) as caught:
        graphspec.open(path, device="cpu")
    assert said in str(caught.value)
    assert main(["check", str(path), "--device", "cpu"]) == 1
    assert said in capsys.readouterr().out


def test_a_number_that_no_bind_names_stays_guarded(case):
    spec = SPEC.replace(", model.table.seen: seen", "").replace(
        "      seen: {type: int, default: 0, choices: [0, 5], specialize: true}\n", ""
    )
    runner = case.open(RING.replace('            self.table["seen"] += 1\n', ""), spec)
    runner.run(x=torch.randn(2), filled=0)
    runner.model.table["seen"] = 7
    with pytest.raises(GuardError, match="seen"):
        runner.run(x=torch.randn(2), filled=0)


def test_states_may_lie_under_integer_keys(case):
    model = """
        def __init__(self):
            super().__init__()
            self.states = {0: torch.zeros(2), 1: {7: torch.ones(2)}}

        def forward(self, x):
            self.states[0].add_(x)
            self.states[1][7].mul_(2)
            return self.states[0] + self.states[1][7]
    """
    spec = """
        buffers:
          x: {shape: [2], dtype: float32}
          first: {role: state, attr: model.states.0}
          second: {role: state, attr: model.states.1.7}
        regions:
          main: {call: model, inputs: [x], outputs: y}
    """
    runner, eager = case.open(model, spec), case.eager()
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(runner.run(x=x)["y"], eager(x))
    torch.testing.assert_close(runner.state["first"], eager.states[0])
    torch.testing.assert_close(runner.state["second"], eager.states[1][7])
    runner.reset()
    torch.testing.assert_close(runner.state["second"], torch.ones(2))
