"""What the random models of tests/property have found, each made small and kept under a name."""

from __future__ import annotations

import textwrap

import pytest
import torch

from graphspec.errors import CaptureError, HazardError, InputError, OrderError

MODEL = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5, 2.0, -1.0]))

"""


@pytest.fixture
def opened(case):
    """Opens a spec over methods of a model."""
    return lambda methods, spec: case.open(MODEL + textwrap.indent(textwrap.dedent(methods), "    "), spec)


def refused(error):
    return [finding.code for finding in error.value.diagnostics]


TWO_REGIONS = """
def first(self, x):
    return x * 2

def second(self, h):
    return h + 1
"""


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (0, 3), (2, 1)])
def test_regions_of_one_sequence_may_have_different_warm_ups(opened, first, second):
    runner = opened(TWO_REGIONS, f"""
        buffers:
          x: {{shape: [3], dtype: float32}}
        regions:
          first: {{call: model.first, inputs: [x], outputs: h, warmup: {first}}}
          second: {{call: model.second, inputs: [h], outputs: y, warmup: {second}}}
        replay: [first, second]
    """)  # fmt: skip
    assert runner.run(x=torch.ones(3))["y"].tolist() == [3, 3, 3]


def test_a_sequence_that_takes_neither_a_param_nor_a_dim_runs_beside_one_that_does(opened):
    runner = opened("""
        def first(self, x, lens, size):
            return x * lens + size

        def second(self, z):
            return z + 1
    """, """
        dims: {batch: [1, 4]}
        params:
          n: {type: int, shape: [batch], default: 1, pad: 1}
        buffers:
          x: {shape: [batch], dtype: float32}
          z: {shape: [3], dtype: float32}
          lens: {shape: [batch], dtype: int64, from: n}
          size: {from: {size: batch}}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          first: {call: model.first, inputs: [x, lens, size], outputs: y}
          second: {call: model.second, inputs: [z], outputs: w}
        replay: {one: [first], other: [second]}
    """)  # fmt: skip
    assert runner["other"](z=torch.ones(3))["w"].tolist() == [2, 2, 2]
    assert runner["one"](x=torch.ones(2), n=[5, 7])["y"].tolist() == [7, 9]


def test_a_state_of_one_number_is_written_and_has_no_rows(opened):
    runner = opened("""
        def step(self, x, s):
            return x + s
    """, """
        buffers:
          x: {shape: [3], dtype: float32}
          s: {role: state, shape: [], dtype: float32}
        regions:
          step: {call: model.step, inputs: [x, s], outputs: y}
    """)  # fmt: skip
    runner.state.write("s", torch.tensor(4.0))
    assert runner.run(x=torch.ones(3))["y"].tolist() == [5, 5, 5]
    with pytest.raises(InputError, match="has no rows"):
        runner.state.write("s", torch.ones(1), rows=[0])


def test_a_static_output_needs_no_warm_up(opened):
    runner = opened(TWO_REGIONS, """
        buffers:
          x: {shape: [3], dtype: float32}
          h: {role: output, shape: [3], dtype: float32, static: true}
        regions:
          first: {call: model.first, inputs: [x], outputs: h, warmup: 0}
    """)  # fmt: skip
    assert runner.run(x=torch.ones(3))["h"].tolist() == [2, 2, 2]


def test_a_captured_region_reads_the_static_output_of_an_eager_one(opened):
    runner = opened(TWO_REGIONS, """
        buffers:
          x: {shape: [3], dtype: float32}
          h: {role: output, shape: [3], dtype: float32, static: true}
          y: {role: output, shape: [3], dtype: float32}
        regions:
          first: {call: model.first, inputs: [x], outputs: h, eager: true}
          second: {call: model.second, inputs: [h], outputs: y}
        replay: [first, second]
    """)  # fmt: skip
    for value in (1, 2, 3):
        assert runner.run(x=torch.full((3,), float(value)))["y"].tolist() == [2 * value + 1] * 3


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_another_size_is_replayed_at_the_size_it_got(opened):
    runner = opened("""
        def step(self, x):
            t = x.clone()
            u = t * 2
            torch.sum(x, 1, out=t)
            return t + u.sum()
    """, """
        buffers:
          x: {shape: [2, 4], dtype: float32}
        regions:
          step: {call: model.step, inputs: [x], outputs: y, warmup: 0}
    """)  # fmt: skip
    for _ in range(3):
        x = torch.randn(2, 4)
        assert torch.allclose(runner.run(x=x)["y"], x.sum(1) + 2 * x.sum())


ACROSS = """
dims: {batch: [2, 4]}
buffers:
  x: {shape: [batch, 3], dtype: float32}
  y: {role: output, shape: [batch, 3], dtype: float32}
regions:
  first: {call: model.first, inputs: [x], outputs: h KEYS}
  second: {call: model.second, inputs: [h, x], outputs: y}
replay: {whole: [first, second], part: [second]}
"""
READS_AGAIN = """
def first(self, x):
    return x * 2

def second(self, h, x):
    return h + x
"""


@pytest.mark.parametrize("keys", ["", ", eager: true"])
def test_a_value_of_another_sequence_is_read_only_at_the_sizes_it_was_made_at(opened, keys):
    runner = opened(READS_AGAIN, ACROSS.replace("KEYS", keys))
    with pytest.raises(OrderError, match="not made yet"):
        runner["part"](x=torch.ones(4, 3))
    runner["whole"](x=torch.ones(4, 3))
    assert torch.equal(runner["part"](x=torch.zeros(4, 3))["y"], torch.full((4, 3), 2.0))
    runner["whole"](x=torch.ones(3, 3))
    with pytest.raises(OrderError, match="made it last at batch=3"):
        runner["part"](x=torch.ones(4, 3))
    runner["whole"](x=torch.ones(2, 3))
    with pytest.raises(OrderError, match=r"made it last at batch=2|too late"):
        runner["part"](x=torch.ones(4, 3))


def test_a_run_that_shows_no_size_does_not_return_the_padding_of_an_earlier_one(opened):
    runner = opened(TWO_REGIONS, """
        dims: {batch: [4]}
        buffers:
          x: {shape: [3, batch], dtype: float32, pad: -3}
          h: {role: output, shape: [3, batch], dtype: float32}
          y: {role: output, shape: [3, batch], dtype: float32}
        regions:
          first: {call: model.first, inputs: [x], outputs: h}
          second: {call: model.second, inputs: [h], outputs: y}
        replay: {whole: [first, second], part: [second]}
    """)  # fmt: skip
    runner["whole"](x=torch.ones(3, 2))
    with pytest.raises(OrderError, match="made it last at batch=2"):
        runner["part"]()


WRITES = """
def first(self, x):
    h = x * 2
    return RETURNED

def second(self, h):
    WRITE
    return h + 1
"""


def refusal(opened, returned, write, outputs, buffers="", *, keys=""):
    methods = WRITES.replace("RETURNED", returned).replace("WRITE", write)
    with pytest.raises(HazardError) as error:
        opened(methods, f"""
            buffers:
              x: {{shape: [3], dtype: float32}}
              y: {{role: output, shape: [SHAPE], dtype: float32}}
              {buffers}
            regions:
              first: {{call: model.first, inputs: [x], outputs: {outputs}{keys}}}
              second: {{call: model.second, inputs: [h], outputs: y}}
            replay: [first, second]
        """.replace("SHAPE", "3, 1" if "unsqueeze" in write else "3"))  # fmt: skip
    return error


def test_a_write_into_what_an_eager_region_made_is_refused(opened):
    """It would reach a copy: here the buffer of the model would stay as it was."""
    error = refusal(opened, "self.scale", "h.add_(1)", "h", keys=", eager: true")
    assert refused(error) == ["GS729"]
    assert "which an eager region made" in str(error.value)


def test_a_write_into_a_static_result_is_refused(opened):
    error = refusal(opened, "h", "h.add_(1)", "h", "h: {role: output, shape: [3], dtype: float32, static: true}")
    assert refused(error) == ["GS729"]


def test_a_write_into_a_result_through_another_name_is_refused(opened):
    error = refusal(opened, "h, h", "h.add_(1)", "[h, z]", "z: {role: output, shape: [3], dtype: float32}")
    assert refused(error) == ["GS729"]
    assert "work on z.clone()" in str(error.value)


def test_a_change_of_shape_of_what_another_region_made_is_refused(opened):
    error = refusal(opened, "h", "h.unsqueeze_(-1)", "h")
    assert refused(error) == ["GS724"]


def test_a_change_of_shape_of_what_an_eager_region_made_is_refused(opened):
    error = refusal(opened, "h", "h.unsqueeze_(-1)", "h", keys=", eager: true")
    assert refused(error) == ["GS724"]


def test_the_maximum_of_all_elements_is_replayed_from_cpp(opened):
    runner = opened("""
        def step(self, x):
            return x.max() - x.min()
    """, """
        buffers:
          x: {shape: [3], dtype: float32}
        regions:
          step: {call: model.step, inputs: [x], outputs: y}
    """)  # fmt: skip
    assert runner.warnings == ()
    assert runner.run(x=torch.tensor([1.0, 5.0, 2.0]))["y"].item() == 4


HANDED_ON = """
def first(self, x, s):
    return s.add_(1) * 1 + x

def second(self, h):
    return h, h.exp().log().sum()

def third(self, g, k):
    return (g * 3).tanh() + (g * k).cos() + g
"""
HANDED_ON_SPEC = """
buffers:
  x: {shape: [3], dtype: float32}
  s: {role: state, shape: [3], dtype: float32}
  y: {role: output, shape: [3], dtype: float32}
POOL
regions:
  first: {call: model.first, inputs: [x, s], outputs: h}
  second: {call: model.second, inputs: [h], outputs: [g, k]}
  third: {call: model.third, inputs: [g, k], outputs: y}
replay: STEPS
"""


@pytest.mark.parametrize("pool", ["pools: {shared: [first, second, third]}", ""])
def test_a_value_that_a_region_passes_on_keeps_its_memory_for_the_readers_of_that_region(opened, pool):
    spec = HANDED_ON_SPEC.replace("POOL", pool).replace("STEPS", "[first, second, third]")
    runner = opened(HANDED_ON, spec)
    for run in range(1, 4):
        x = torch.randn(3)
        h = torch.full((3,), float(run)) + x
        runner.poison()
        wanted = (h * 3).tanh() + (h * h.exp().log().sum()).cos() + h
        assert torch.allclose(runner.run(x=x)["y"], wanted, rtol=1e-4, atol=1e-5)


def test_a_value_passed_on_is_refused_where_its_maker_runs_again_before_the_reader(opened):
    spec = HANDED_ON_SPEC.replace("POOL", "").replace("STEPS", "[first, second, first, third]")
    with pytest.raises(HazardError) as error:
        opened(HANDED_ON, spec)
    assert set(refused(error)) == {"GS729"}
    assert "region 'third' reads 'g', which lies in the memory of 'h'" in str(error.value)


def test_a_region_that_sets_what_it_reads_to_other_memory_is_refused(opened):
    error = refusal(opened, "h", "h.set_(self.scale)", "h")
    assert "GS724" in refused(error)
    assert "changes the memory of 'h'" in str(error.value)


def test_an_eager_region_may_reshape_the_state_it_is_given_on_every_run(opened):
    runner = opened("""
        def look(self, s):
            s.add_(1).unsqueeze_(-1)
            return s.sum(-1) * 1

        def step(self, x, seen):
            return x + seen
    """, """
        buffers:
          x: {shape: [3], dtype: float32}
          s: {role: state, shape: [3], dtype: float32}
        regions:
          look: {call: model.look, inputs: [s], outputs: seen, eager: true}
          step: {call: model.step, inputs: [x, seen], outputs: y}
        replay: [look, step]
    """)  # fmt: skip
    found = [runner.run(x=torch.ones(3))["y"].tolist() for _ in range(3)]
    assert found == [[2] * 3, [3] * 3, [4] * 3]


def test_a_specialized_param_of_one_sequence_makes_no_graphs_anew_for_another(opened):
    runner = opened("""
        def first(self, x):
            return x * 2

        def second(self, h, kind):
            return h + 1 if kind == "plus" else h * 5
    """, """
        params:
          kind: {type: str, choices: [plus, times], default: plus, specialize: true}
        buffers:
          x: {shape: [3], dtype: float32}
        regions:
          first: {call: model.first, inputs: [x], outputs: h}
          second: {call: model.second, inputs: [h, kind], outputs: y}
        replay: {whole: [first, second], part: [first]}
    """)  # fmt: skip
    assert runner["whole"](x=torch.ones(3))["y"].tolist() == [3, 3, 3]
    assert runner["part"](x=torch.ones(3))["h"].tolist() == [2, 2, 2]
    assert runner["whole"](x=torch.ones(3), kind="times")["y"].tolist() == [10, 10, 10]
    assert runner["part"](x=torch.ones(3))["h"].tolist() == [2, 2, 2]
    assert len(runner.graphs) == 4


VIEW_OF_AN_INPUT = """
def first(self, x):
    return x.view(-1)

def second(self, h, z):
    return h + z
"""
VIEW_OF_AN_INPUT_SPEC = """
buffers:
  x: {shape: [2, 3], dtype: float32}
  z: {shape: [6], dtype: float32}
  h: {role: output, shape: [6], dtype: float32 KEYS}
  y: {role: output, shape: [6], dtype: float32}
regions:
  first: {call: model.first, inputs: [x], outputs: h EAGER}
  second: {call: model.second, inputs: [h, z], outputs: y}
replay: STEPS
"""


def view_of_an_input(opened, keys, eager, steps):
    spec = VIEW_OF_AN_INPUT_SPEC.replace("KEYS", keys).replace("EAGER", eager).replace("STEPS", steps)
    return opened(VIEW_OF_AN_INPUT, spec)


ACROSS_RUNS = "{whole: [first, second], part: [second]}"


def test_a_view_of_an_input_is_read_in_its_own_run_only(opened):
    runner = view_of_an_input(opened, "", "", "[first, second]")
    for value in (1.0, 2.0):
        assert runner.run(x=torch.full((2, 3), value), z=torch.ones(6))["y"].tolist() == [value + 1] * 6
    with pytest.raises(HazardError, match="lies in the memory of 'x'") as error:
        view_of_an_input(opened, "", "", ACROSS_RUNS)
    assert set(refused(error)) == {"GS729"}


def test_a_view_of_an_input_is_not_lent(opened):
    with pytest.raises(HazardError, match="which the next run overwrites"):
        view_of_an_input(opened, ", copy: false", "", "[first, second]")


def test_what_an_eager_region_returns_of_an_input_outlives_the_run(opened):
    runner = view_of_an_input(opened, "", ", eager: true", "{whole: [first, second], part: [second], again: [first]}")
    runner["whole"](x=torch.ones(2, 3), z=torch.zeros(6))
    assert runner["part"](z=torch.ones(6))["y"].tolist() == [2.0] * 6


# -- random programs over values


def test_a_fallback_reads_a_static_output_of_its_own_run(opened):
    runner = opened("def first(self, x): return x * 1.5\ndef second(self, h): return h * 1", """
        dims: {batch: [4]}
        buffers:
          x: {shape: [batch, 2], dtype: float32}
          h: {role: output, shape: [batch, 2], dtype: float32, static: true}
          y: {role: output, shape: [batch, 2], dtype: float32}
        regions:
          first: {call: model.first, inputs: [x], outputs: h}
          second: {call: model.second, inputs: [h], outputs: y}
        replay: [first, second]
    """)  # fmt: skip
    x = torch.randn(3, 2)
    assert torch.equal(runner.sequences["replay"].eager({"x": x})["y"], x * 1.5)
    assert torch.equal(runner.verify(x=x)["y"], x * 1.5)


@pytest.mark.parametrize("last", ["captured", "eager"])
def test_an_eager_region_that_returns_other_rows_than_the_runs_is_refused(opened, last):
    runner = opened("""
        def first(self, x): return x * 2
        def second(self, h, x): return h * 1
        def third(self, v): return v + 0
    """, f"""
        dims: {{batch: [2, 4]}}
        buffers:
          x: {{shape: [batch, 2], dtype: float32}}
          h: {{role: output, shape: [batch, 2], dtype: float32}}
          v: {{role: output, shape: [batch, 2], dtype: float32}}
          y: {{role: output, shape: [batch, 2], dtype: float32}}
        regions:
          first: {{call: model.first, inputs: [x], outputs: h}}
          second: {{call: model.second, inputs: [h, x], outputs: v, eager: true}}
          third: {{call: model.third, inputs: [v], outputs: y{", eager: true" * (last == "eager")}}}
        replay: {{one: [first], two: [second, third]}}
    """)  # fmt: skip
    runner["one"](x=torch.ones(4, 2))
    with pytest.raises(
        CaptureError, match=r"'v' is declared \[batch, 2\], here \[3, 2\], and the call returned \[4, 2\]"
    ):
        runner["two"](x=torch.ones(3, 2))
    assert torch.equal(runner["two"](x=torch.ones(4, 2))["y"], torch.full((4, 2), 2.0))


@pytest.mark.parametrize("anew", ["write", "reset"])
def test_what_an_eager_region_kept_of_a_state_is_its_own_when_the_state_is_written_from_outside(opened, anew):
    runner = opened("def main(self, s, x): s.add_(x); self.log = [*getattr(self, 'log', []), s]; return s * 1", """
        buffers:
          x: {shape: [2], dtype: float32}
          s: {role: state, shape: [2], dtype: float32, init: 1}
          y: {role: output, shape: [2], dtype: float32}
        regions:
          main: {call: model.main, inputs: [s, x], outputs: y, eager: true}
        replay: [main]
    """)  # fmt: skip
    for _ in range(3):
        runner.run(x=torch.ones(2))
    runner.state.write("s", torch.full((2,), 7.0)) if anew == "write" else runner.reset()
    assert [each.tolist() for each in runner.model.log] == [[4, 4]] * 3
    runner.run(x=torch.ones(2))
    assert [each.tolist() for each in runner.model.log[:3]] == [[4, 4]] * 3


@pytest.mark.parametrize("write", ["h.mul_(.5)", "h.view(-1)[:1] = 9", "h[0].zero_()"])
def test_a_lent_result_that_an_eager_region_writes_into_cannot_be_read(opened, write):
    runner = opened(f"def first(self, x): return x * 2\ndef second(self, h, x): {write}; return h + x", """
        buffers:
          x: {shape: [3, 2], dtype: float32}
          h: {role: output, shape: [3, 2], dtype: float32, copy: false}
          y: {role: output, shape: [3, 2], dtype: float32}
        regions:
          first: {call: model.first, inputs: [x], outputs: h}
          second: {call: model.second, inputs: [h, x], outputs: y, eager: true}
        replay: {both: [first, second], one: [first]}
    """)  # fmt: skip
    for _ in range(4):  # at first eager regions work on copies
        lent = runner["both"](x=torch.ones(3, 2))["h"]
        with pytest.raises(OrderError, match="region 'second', which writes into it"):
            lent + 1
        lent = runner["one"](x=torch.ones(3, 2))["h"]
        assert torch.equal(lent * 1, torch.full((3, 2), 2.0))


@pytest.mark.parametrize("captured", [False, True])
def test_what_an_eager_region_kept_of_more_rows_it_may_write_in_a_run_of_fewer(opened, captured):
    step = "third: {call: model.third, inputs: [s, x], outputs: z}" if captured else ""
    runner = opened("""
        def first(self, s):
            self.log = [*getattr(self, "log", []), s]
            return s + 2

        def second(self, x):
            self.log[0].add_(1)
            return x * 1

        def third(self, s, x):
            s.mul_(1).add_(x)
            return s * 1
    """, f"""
        dims: {{batch: [4]}}
        buffers:
          x: {{shape: [batch, 2], dtype: float32}}
          s: {{role: state, shape: [batch, 2], dtype: float32, init: 1}}
          y: {{role: output, shape: [batch, 2], dtype: float32}}
          {"z: {role: output, shape: [batch, 2], dtype: float32}" if captured else "x-none: 0"}
        regions:
          first: {{call: model.first, inputs: [s], outputs: h, eager: true}}
          second: {{call: model.second, inputs: [x], outputs: y, eager: true}}
          {step or "x-none: 0"}
        replay: [first, second{", third" * captured}]
    """)  # fmt: skip
    state = torch.ones(4, 2)
    for rows in (3, 1, 2, 4, 1):
        x = torch.full((rows, 2), 10.0)
        runner.run(x=x)
        state[:3] += 1
        state[:rows] += 10 * captured
        assert torch.equal(runner.state["s"], state)
        assert torch.equal(runner.model.log[0], state[:3])


def test_random_numbers_that_nobody_reads_are_drawn_all_the_same(case):
    """Draws 31002840, 31003446: torch's passes had removed the call, so that later draws were others."""
    body = """
    def forward(self, x):
        torch.randint_like(x, 3)
        torch.normal(0.0, 1.0, (3,))
        return torch.rand_like(x)
    """
    spec = """
    buffers:
      x: {shape: [4], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
    """
    runner = case.open(body, spec)
    for seed in range(4):
        x = torch.randn(4)
        torch.manual_seed(seed)
        came = runner.run(x=x)["y"]
        torch.manual_seed(seed)
        assert torch.equal(came, runner.model(x))
