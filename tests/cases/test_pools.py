"""Memory shared by regions: reads that come in time equal eager, reads that come too late are refused."""

import pytest
import torch

from graphspec.errors import CaptureError, GraphSpecError, HazardError, OrderError, ReplayError, SpecError

ABC = """
    def a(self, x):
        return x * 2

    def b(self, z):
        return torch.cat([z, z]).add(1).mul(3).sum()

    def c(self, h):
        return h.sum()
"""
SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
      z: {shape: [2], dtype: float32}
    pools:
      shared: [a, b, c]
    regions:
      a: {call: model.a, inputs: [x], outputs: h}
      b: {call: model.b, inputs: [z], outputs: noise}
      c: {call: model.c, inputs: [h], outputs: total}
    replay: REPLAY
"""


@pytest.mark.case("C60")
def test_a_declared_order_that_reads_a_value_after_its_memory_was_reused_is_refused_with_both_orders(case):
    with pytest.raises(SpecError) as caught:
        case.open(ABC, SPEC.replace("REPLAY", "{first: [a, c, b], second: [a, b, c]}"))
    text = str(caught.value)
    assert "GS301" in text
    assert "expected a, c, b" in text.replace("'", "")
    assert "got a, b, c" in text.replace("'", "")


@pytest.mark.case("C60")
def test_the_same_order_across_sequences_is_refused_at_run_time(case):
    runner = case.open(ABC, SPEC.replace("REPLAY", "{warm: [a, c, b], a: [a], b: [b], c: [c]}"))
    x, z = torch.tensor([1.0, 2.0]), torch.ones(2)
    assert runner["warm"](x=x, z=z)["noise"].item() == 24
    runner["a"](x=x)
    assert runner["c"]()["total"].item() == 6
    runner["a"](x=x)
    runner["b"](z=z)
    with case.refused(OrderError, "'c'", "'h'", "'b'"):
        runner["c"]()
    runner["a"](x=x * 2)
    assert runner["c"]()["total"].item() == 12


@pytest.mark.case("C60")
def test_a_value_read_before_anything_made_it_is_refused_at_run_time(case):
    runner = case.open(ABC, SPEC.replace("REPLAY", "{warm: [a, c, b], a: [a], b: [b], c: [c]}"))
    with case.refused(OrderError, "'c'", "'h'"):
        runner["c"]()


@pytest.mark.case("C60")
@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"], ["a", "a", "b"], ["b", "b", "a", "b"]])
def test_independent_regions_of_a_pool_run_in_any_order(case, order):
    spec = SPEC.replace("[a, b, c]", "[a, b]").replace("REPLAY", "{warm: [a, b], a: [a], b: [b]}")
    spec = spec.replace("      c: {call: model.c, inputs: [h], outputs: total}\n", "")
    runner = case.open(ABC, spec)
    kept = []
    for number, name in enumerate(order * 2):
        value = torch.full((2,), float(number))
        got = runner[name](x=value)["h"] if name == "a" else runner[name](z=value)["noise"]
        want = value * 2 if name == "a" else torch.cat([value, value]).add(1).mul(3).sum()
        kept.append((got, want))
    assert all(torch.equal(got, want) for got, want in kept)


@pytest.mark.case("C60")
def test_the_declared_order_equals_eager_also_when_memory_is_poisoned_between_runs(case):
    runner = case.open(ABC, SPEC.replace("REPLAY", "[a, c, b]"))
    for _ in range(3):
        x, z = torch.randn(2), torch.randn(2)
        runner.poison()
        got = runner.run(x=x, z=z)
        torch.testing.assert_close(got["noise"], torch.cat([z, z]).add(1).mul(3).sum())


CHAIN = """
    def a(self, x):
        return x * 2

    def b(self, h):
        return h + 1, h * 3

    def c(self, h, p):
        return h + p

    def d(self, q, r):
        return q - r
"""


@pytest.mark.case("C60")
@pytest.mark.parametrize("pools", ["", "pools: {all: [a, b, c, d]}", "pools: {one: [a, c], two: [b, d]}"])
@pytest.mark.parametrize("buckets", ["[1, 2, 4]", "[4]"])
def test_values_that_flow_through_several_regions_equal_eager_however_the_pools_are_cut(case, pools, buckets):
    runner = case.open(
        CHAIN,
        f"""
        dims: {{batch: {buckets}}}
        buffers:
          x: {{shape: [batch, 3], dtype: float32}}
          y: {{role: output, shape: [batch, 3], dtype: float32}}
          p: {{role: output, shape: [batch, 3], dtype: float32}}
        {pools}
        regions:
          a: {{call: model.a, inputs: [x], outputs: h}}
          b: {{call: model.b, inputs: [h], outputs: [p, q]}}
          c: {{call: model.c, inputs: [h, p], outputs: r}}
          d: {{call: model.d, inputs: [q, r], outputs: y}}
        replay: [a, b, c, d]
        """,
    )
    for rows in (4, 1, 3, 2, 4):
        x = torch.randn(rows, 3)
        h = x * 2
        runner.poison()
        got = runner.run(x=x)
        torch.testing.assert_close(got["p"], h + 1)
        torch.testing.assert_close(got["y"], h * 3 - (h + h + 1))


@pytest.mark.case("C60")
def test_a_region_that_appears_twice_in_a_sequence_is_captured_once_and_equals_eager(case):
    runner = case.open(
        """
        def step(self, s):
            return s * 2 + 1

        def read(self, s):
            return s + 0.5
        """,
        """
        buffers:
          s: {role: state, shape: [2], dtype: float32, init: 0}
          y: {role: output, shape: [2], dtype: float32}
        regions:
          step: {call: model.step, inputs: [s], outputs: s}
          read: {call: model.read, inputs: [s], outputs: y}
        replay: [step, step, read, step]
        """,
    )
    assert len(runner.graphs) == 2
    s = torch.zeros(2)
    for _ in range(3):
        s = (s * 2 + 1) * 2 + 1
        y = s + 0.5
        s = s * 2 + 1
        assert torch.equal(runner.run()["y"], y)
        assert torch.equal(runner.state["s"], s)


@pytest.mark.case("C60")
def test_an_eager_region_between_captured_ones_sees_and_gives_real_values(case):
    runner = case.open(
        """
        def a(self, x):
            return x * 2

        def pick(self, h):
            return h * float(h.max()) if h.sum() > 0 else h * 0

        def c(self, h, picked):
            return h + picked
        """,
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          y: {role: output, shape: [batch], dtype: float32}
        pools: {all: [a, c]}
        regions:
          a: {call: model.a, inputs: [x], outputs: h}
          pick: {call: model.pick, inputs: [h], outputs: picked, eager: true}
          c: {call: model.c, inputs: [h, picked], outputs: y}
        replay: [a, pick, c]
        """,
    )
    for rows in (4, 3, 1, 2):
        for sign in (1, -1):
            x = torch.rand(rows) * sign
            h = x * 2
            want = h + (h * h.max() if h.sum() > 0 else h * 0)
            runner.poison()
            torch.testing.assert_close(runner.run(x=x)["y"], want)


@pytest.mark.case("C60")
def test_an_eager_region_whose_result_changes_shape_is_refused_by_name(case):
    runner = case.open(
        """
        def pick(self, x):
            return x[x > 0]

        def main(self, picked):
            return picked.sum()
        """,
        """
        buffers:
          x: {shape: [4], dtype: float32, sample: {uniform: [1, 2]}}
        regions:
          pick: {call: model.pick, inputs: [x], outputs: picked, eager: true}
          main: {call: model.main, inputs: [picked], outputs: y}
        replay: [pick, main]
        """,
    )
    assert runner.run(x=torch.ones(4))["y"].item() == 4
    with case.refused(OrderError, "'picked'"):
        runner.run(x=-torch.ones(4))
    assert runner.run(x=torch.ones(4))["y"].item() == 4


@pytest.mark.case("C60", "C70")
def test_an_eager_region_that_returns_fewer_rows_than_the_run_has_is_refused_by_name(case):
    runner = case.open(
        """
        def pick(self, x):
            return x[: x.shape[0] - int(x[0] < 0)]

        def main(self, picked):
            return picked * 2
        """,
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32, sample: {uniform: [1, 2]}}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          pick: {call: model.pick, inputs: [x], outputs: picked, eager: true}
          main: {call: model.main, inputs: [picked], outputs: y}
        replay: [pick, main]
        """,
    )
    for rows in (4, 3, 1):
        assert runner.run(x=torch.ones(rows))["y"].tolist() == [2.0] * rows
        if rows > 1:
            with case.refused(OrderError, "'picked'"):
                runner.run(x=-torch.ones(rows))


@pytest.mark.case("C60")
def test_a_later_region_that_writes_into_an_earlier_result_is_refused_or_equals_eager(case):
    model = """
        def a(self, x):
            return x * 2

        def b(self, h):
            h.add_(1)
            return h * 10
    """
    spec = """
        buffers:
          x: {shape: [2], dtype: float32}
          h: {role: output, shape: [2], dtype: float32}
          y: {role: output, shape: [2], dtype: float32}
        regions:
          a: {call: model.a, inputs: [x], outputs: h}
          b: {call: model.b, inputs: [h], outputs: y}
        replay: [a, b]
    """
    with case.refused(HazardError, "region 'b'", "'h'"):
        case.open(model, spec)
    runner = case.open(model, spec.replace("          h: {role: output, shape: [2], dtype: float32}\n", ""))
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(runner.run(x=x)["y"], (x * 2 + 1) * 10)


@pytest.mark.case("C60")
def test_an_in_place_write_of_an_intermediate_is_seen_by_the_regions_after_it_and_repeats(case):
    runner = case.open(
        """
        def a(self, x):
            return x * 2

        def b(self, h):
            h.add_(1)
            return h.sum()

        def c(self, h):
            return h * 10
        """,
        """
        buffers:
          x: {shape: [2], dtype: float32}
        pools: {all: [a, b, c]}
        regions:
          a: {call: model.a, inputs: [x], outputs: h}
          b: {call: model.b, inputs: [h], outputs: total}
          c: {call: model.c, inputs: [h], outputs: y}
        replay: [a, b, c]
        """,
    )
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(runner.run(x=x)["y"], (x * 2 + 1) * 10)


@pytest.mark.case("C60")
def test_two_sequences_over_one_pool_and_one_state_interleave_as_eager_does(case):
    runner = case.open(
        """
        def prefill(self, xs, s):
            return xs.sum(0) + s

        def decode(self, x, s):
            return s * 2 + x
        """,
        """
        buffers:
          xs: {shape: [3, 2], dtype: float32}
          x: {shape: [2], dtype: float32}
          s: {role: state, shape: [2], dtype: float32, init: 0}
        pools: {all: [prefill, decode]}
        regions:
          prefill: {call: model.prefill, inputs: [xs, s], outputs: s}
          decode: {call: model.decode, inputs: [x, s], outputs: s}
        replay: {prefill: [prefill], decode: [decode]}
        """,
    )
    s = torch.zeros(2)
    for name in ("prefill", "decode", "decode", "prefill", "prefill", "decode"):
        if name == "prefill":
            xs = torch.randn(3, 2)
            s = xs.sum(0) + s
            got = runner["prefill"](xs=xs)
        else:
            x = torch.randn(2)
            s = s * 2 + x
            got = runner["decode"](x=x)
        torch.testing.assert_close(got["s"], s)
        torch.testing.assert_close(runner.state["s"], s)


@pytest.mark.case("C61")
def test_graphs_dropped_for_newer_ones_leave_the_others_equal_to_eager(case):
    runner = case.open(
        "def forward(self, x, s): return x * max(s, 0.5)",
        """
        params: {s: {type: float, default: 1.0, specialize: true}}
        buffers:
          x: {shape: [2], dtype: float32}
        regions:
          main: {call: model, inputs: [x, s], outputs: y}
        replay: [main]
        """,
    )
    for value in [*map(float, range(20)), 0.0, 19.0, 3.0]:
        x = torch.randn(2)
        assert torch.equal(runner.run(x=x, s=value)["y"], x * max(value, 0.5))


@pytest.mark.case("C61")
def test_closing_one_of_two_runners_over_one_model_leaves_the_other_equal_to_eager(case):
    model = """
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x)
    """
    spec = """
        buffers:
          x: {shape: [2], dtype: float32}
        regions:
          main: {call: model, inputs: [x], outputs: y}
        replay: [main]
    """
    first = case.open(model, spec)
    second = case.open(model, spec, model=first.model)
    first.close()
    for _ in range(3):
        x = torch.randn(2)
        assert torch.equal(second.run(x=x)["y"], second.model(x))
    with case.refused(ReplayError, "closed"):
        first.run(x=torch.zeros(2))


PLAIN = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      encode: {call: model, inputs: [x], outputs: y}
    replay: {forward: [encode]}
"""


@pytest.mark.case("C63")
def test_a_run_before_capture_is_refused_and_works_after_it(case):
    runner = case.open("def forward(self, x): return x + 1", PLAIN, capture=False)
    with case.refused(ReplayError, "capture"):
        runner.run(x=torch.zeros(2))
    with case.refused(ReplayError, "capture"):
        runner["forward"](x=torch.zeros(2))
    runner.capture()
    runner.capture()  # again: nothing to do
    assert runner.run(x=torch.zeros(2))["y"].tolist() == [1, 1]


@pytest.mark.case("C63")
def test_everything_after_close_is_refused_and_closing_twice_is_fine(case):
    runner = case.open("def forward(self, x): return x + 1", PLAIN)
    runner.close()
    runner.close()
    for call in (
        lambda: runner.run(x=torch.zeros(2)),
        lambda: runner["forward"](x=torch.zeros(2)),
        runner.recapture,
        runner.capture,
        runner.reset,
    ):
        with case.refused(ReplayError, "closed"):
            call()


@pytest.mark.case("C63")
def test_a_misspelt_sequence_or_region_is_refused_with_the_names_there_are(case):
    runner = case.open("def forward(self, x): return x + 1", PLAIN)
    with case.refused(ReplayError, "'fowrard'", "forward"):
        runner["fowrard"](x=torch.zeros(2))
    with case.refused(ReplayError, "'encode'", "is a region", "forward"):
        runner["encode"](x=torch.zeros(2))
    with case.refused(ReplayError, "'enocde'", "encode"):
        runner.graph("enocde")


@pytest.mark.case("C63")
def test_a_result_outlives_the_runner_that_made_it(case):
    runner = case.open("def forward(self, x): return x + 1", PLAIN)
    y = runner.run(x=torch.zeros(2))["y"]
    runner.close()
    del runner
    assert y.tolist() == [1, 1]


@pytest.mark.case("C63")
def test_a_region_that_runs_its_own_runner_or_opens_a_spec_is_refused(case):
    model = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.runner = None

            def forward(self, x):
                if self.runner is not None:
                    return self.runner.run(x=x)["y"]
                return x + 1
    """
    runner = case.open(model, PLAIN)
    runner.model.runner = runner
    with pytest.raises(GraphSpecError):
        runner.recapture()
    runner.model.runner = None
    runner.recapture()
    assert runner.run(x=torch.zeros(2))["y"].tolist() == [1, 1]


def test_a_capture_beyond_the_memory_budget_is_refused_with_who_takes_how_much(case):
    spec = """
        buffers:
          x: {shape: [64, 64], dtype: float32}
        regions:
          main: {call: model, inputs: [x], outputs: y}
        replay: [main]
        capture: {memory_budget: BUDGET}
    """
    model = "def forward(self, x): return [x * k for k in range(8)]"
    with case.refused(CaptureError, "memory_budget", "128 KiB", "pool 'main' 128 KiB", "the static buffers 16 KiB"):
        case.open(model, spec.replace("BUDGET", "128KiB"))
    x = torch.randn(64, 64)
    runner = case.open(model, spec.replace("BUDGET", "144KiB"))
    assert torch.equal(runner.run(x=x)["y"][3], x * 3)
