"""What an error leaves behind: nothing. Params, held inputs, variants and states are as before the run that failed."""

import threading

import pytest
import torch

from graphspec.errors import GraphSpecError, GuardError, HazardError, InputError, ModelError, ReplayError

SCALED = """
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x, k):
        return x * self.w + k
"""
SCALED_SPEC = """
    dims: {batch: [1, 2]}
    params:
      k: {type: float, default: 1.0}
    buffers:
      x: {shape: [batch, 2], dtype: float32}
      y: {role: output, shape: [batch, 2], dtype: float32}
    regions:
      main:
        call: model
        inputs: [x, k]
        outputs: y
        updates: [{op: "aten::add", arg: other, from: k}]
"""


def no_bucket(runner):
    with pytest.raises(InputError, match="no bucket holds"):
        runner.run(x=torch.ones(3, 2), k=100.0)


def moved_weight(runner):
    kept = runner.model.w
    runner.model.w = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(GuardError):
        runner.run(x=torch.ones(1, 2), k=100.0)
    runner.model.w = kept


def wrong_input(runner):
    with pytest.raises(InputError):
        runner.run(x=torch.ones(1, 3), k=100.0)


@pytest.mark.parametrize("fails", [no_bucket, moved_weight, wrong_input])
def test_a_param_of_a_run_that_fails_is_forgotten(case, fails):
    runner = case.open(SCALED, SCALED_SPEC)
    fails(runner)
    assert runner.run(x=torch.ones(1, 2))["y"].tolist() == [[2, 2]]
    runner.run(x=torch.ones(1, 2), k=5.0)
    fails(runner)
    assert runner.run(x=torch.ones(1, 2))["y"].tolist() == [[6, 6]]


HELD = """
    def a(self, x, mask, k):
        return x * mask + k

    def b(self, mask):
        return mask * 10
"""
HELD_SPEC = """
    params:
      k: {type: float, default: 0.0, max: 9.0}
    buffers:
      x: {shape: [2], dtype: float32}
      mask: {shape: [2], dtype: float32, hold: true}
    regions:
      a: {call: model.a, inputs: [x, mask, k], outputs: y, updates: [{op: "aten::add", arg: other, from: k}]}
      b: {call: model.b, inputs: [mask], outputs: z}
    replay: {a: [a], b: [b]}
"""


def test_a_held_input_beside_a_bad_param_is_forgotten(case):
    runner = case.open(HELD, HELD_SPEC)
    runner["a"](x=torch.ones(2), mask=torch.full((2,), 2.0))
    with pytest.raises(InputError):
        runner["a"](x=torch.ones(2), mask=torch.full((2,), 7.0), k=10.0)
    assert runner["a"](x=torch.ones(2))["y"].tolist() == [2, 2]


def test_a_held_input_is_the_buffers_own_and_serves_every_sequence(case):
    runner = case.open(HELD, HELD_SPEC)
    with case.refused(InputError, "'mask'", "once"):
        runner["b"]()
    runner["a"](x=torch.ones(2), mask=torch.full((2,), 3.0))
    assert runner["b"]()["z"].tolist() == [30, 30]
    runner["b"](mask=torch.full((2,), 4.0))
    assert runner["a"](x=torch.ones(2))["y"].tolist() == [4, 4]


def test_a_variant_that_cannot_be_captured_changes_nothing_for_the_others(case):
    runner = case.open(
        """
        def forward(self, x, kind):
            return x * 2 if kind == 0 else x * x.sum().item()
        """,
        """
        capture: {when: first_use}
        params:
          kind: {type: int, default: 0, specialize: true}
        buffers:
          x: {shape: [2], dtype: float32}
        regions:
          main: {call: model, inputs: [x, kind], outputs: y}
        """,
    )
    for _ in range(2):
        with pytest.raises(HazardError):
            runner.run(x=torch.ones(2), kind=1)
        assert runner.run(x=torch.ones(2))["y"].tolist() == [2, 2]
    assert len(runner.graphs) == 1


def test_an_eager_region_that_raises_leaves_params_and_the_next_run_is_good(case):
    runner = case.open(
        """
        def a(self, x, k):
            return x + k

        def b(self, h, k):
            if h.sum().item() > 100:
                raise RuntimeError("too large")
            return h * 1
        """,
        """
        params:
          k: {type: float, default: 1.0}
        buffers:
          x: {shape: [2], dtype: float32}
        regions:
          a: {call: model.a, inputs: [x, k], outputs: h, updates: [{op: "aten::add", arg: other, from: k}]}
          b: {call: model.b, inputs: [h, k], outputs: y, eager: true}
        replay: [a, b]
        """,
    )
    with pytest.raises(ModelError, match="too large"):
        runner.run(x=torch.ones(2), k=1000.0)
    assert runner.run(x=torch.ones(2))["y"].tolist() == [2, 2]


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (float("nan"), 1.0)])
def test_specialized_values_that_compare_equal_have_graphs_of_their_own(case, one, other):
    runner = case.open(
        """
        def forward(self, x, k):
            return x / k
        """,
        """
        params:
          k: {type: float, default: 1.0, specialize: true}
        buffers:
          x: {shape: [1], dtype: float32}
        regions:
          main: {call: model, inputs: [x, k], outputs: y}
        """,
    )
    x = torch.ones(1)
    for k in (one, other, one):
        torch.testing.assert_close(runner.run(x=x, k=k)["y"], x / k, equal_nan=True)
        captured = len(runner.graphs)
        torch.testing.assert_close(runner.run(x=x, k=k)["y"], x / k, equal_nan=True)
        assert len(runner.graphs) == captured, "the same value takes the same graphs"


OWNED = """
    def __init__(self):
        super().__init__()
        self.h = torch.zeros(2)

    def forward(self, x):
        self.h.add_(x)
        return self.h * 1
"""
OWNED_SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
      h: {role: state, attr: model.h}
    regions:
      main: {call: model, inputs: [x], outputs: y}
"""


def test_a_state_that_was_replaced_is_adopted_anew_by_recapture(case):
    runner = case.open(OWNED, OWNED_SPEC)
    runner.run(x=torch.ones(2))
    old, runner.model.h = runner.model.h, torch.full((2,), 7.0)
    runner.recapture()
    assert runner.state["h"].tolist() == [7, 7]
    assert runner.run(x=torch.ones(2))["y"].tolist() == [8, 8]
    runner.state.write("h", torch.full((2,), 20.0))
    assert runner.model.h.tolist() == [20, 20]
    assert runner.run(x=torch.ones(2))["y"].tolist() == [21, 21]
    runner.reset()
    assert runner.model.h.tolist() == [7, 7]
    assert old.tolist() == [1, 1]


def test_a_state_that_was_not_replaced_keeps_its_first_content_over_recapture(case):
    runner = case.open(OWNED, OWNED_SPEC)
    runner.run(x=torch.ones(2))
    runner.recapture()
    assert runner.state["h"].tolist() == [1, 1]
    runner.reset()
    assert runner.state["h"].tolist() == [0, 0]


KEEPS = """
    def __init__(self):
        super().__init__()
        self.prev = None
        self.notes = {"seen": None}
        self.last = None

    def look(self, x):
        d = x * 1 if self.prev is None else x - self.prev
        self.prev = x
        self.notes["seen"] = x.sum().item()
        self.notes["more"] = 1
        self.last = None
        return d

    def main(self, d):
        return d * 2
"""
KEEPS_SPEC = """
    dims: {batch: [1, 2]}
    buffers:
      x: {shape: [batch, 2], dtype: float32}
      y: {role: output, shape: [batch, 2], dtype: float32}
    regions:
      look: {call: model.look, inputs: [x], outputs: d, eager: true}
      main: {call: model.main, inputs: [d], outputs: y}
    replay: [look, main]
"""


def test_opening_leaves_what_an_eager_region_sets_as_it_was(case):
    runner = case.open(KEEPS, KEEPS_SPEC)
    assert runner.model.prev is None
    assert runner.model.last is None
    assert runner.model.notes == {"seen": None}
    assert runner.run(x=torch.ones(1, 2))["y"].tolist() == [[2, 2]]
    assert runner.model.notes == {"seen": 2.0, "more": 1}


COUNTING = """
    def __init__(self):
        super().__init__()
        self.total = torch.zeros(1)

    def forward(self, x):
        self.total.add_(x.sum())
        return self.total * 1
"""
COUNTING_SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
"""


def test_a_capture_never_shows_in_a_run_of_another_runner_over_the_same_model(case):
    import graphspec

    runner = case.open(COUNTING, COUNTING_SPEC)
    found, stop, failed = [], threading.Event(), []

    def run():
        expected = 0.0
        while not stop.is_set():
            expected += 2.0
            found.append(runner.run(x=torch.ones(2))["y"].item() == expected)

    def guarded():
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        for _ in range(6):
            graphspec.open(case.path, device="cpu", model=runner.model).close()
    finally:
        stop.set()
        thread.join()
    assert not failed, failed
    assert len(found) > 1
    assert all(found)


NESTED = """
    def __init__(self):
        super().__init__()
        self.inner = None

    def outer(self, x):
        return x + 1 if self.inner is None else self.inner(x)

    def last(self, h):
        return h * 2
"""
NESTED_SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      outer: {call: model.outer, inputs: [x], outputs: h, eager: true}
      last: {call: model.last, inputs: [h], outputs: y}
    replay: [outer, last]
"""


def test_runners_that_wait_for_each_other_in_a_circle_are_refused_and_do_not_hang(case):
    first, second = case.open(NESTED, NESTED_SPEC), case.open(NESTED, NESTED_SPEC)
    both_inside = threading.Barrier(2, timeout=60)
    outcomes = []

    def run(mine, other):
        calls = iter([True, False, False])

        def inner(x):
            if not next(calls):
                return x * 1
            both_inside.wait()
            return other.run(x=x)["y"]

        mine.model.inner = inner
        try:
            mine.run(x=torch.ones(2))
            outcomes.append(None)
        except GraphSpecError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert [type(error.__cause__ or error) for error in outcomes if error is not None] == [ReplayError]
    first.model.inner = second.model.inner = None
    assert first.run(x=torch.ones(2))["y"].tolist() == [4, 4]
