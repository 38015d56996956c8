"""Buckets: rows that are padding reach neither results nor states, and every size is served or refused by name."""

import pytest
import torch

from graphspec.errors import InputError, ModelError, SpecError

SPEC = """
    dims: {batch: [1, 2, 4, 8]}
    buffers:
      x: {shape: [batch, 2], dtype: float32}
      y: {role: output, shape: [batch, 2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: yMORE}
    replay: [main]
"""
DOUBLE = "def forward(self, x): return x * 2"


@pytest.mark.case("C69")
def test_rows_of_a_state_beyond_the_real_ones_are_as_before(case):
    runner = case.open(
        "def forward(self, x, s): return s + x, s + x",
        """
        dims: {batch: [1, 2, 4]}
        buffers:
          x: {shape: [batch, 2], dtype: float32, pad: 100}
          s: {role: state, shape: [batch, 2], dtype: float32, init: 1}
          y: {role: output, shape: [batch, 2], dtype: float32}
        regions:
          main: {call: model, inputs: [x, s], outputs: [y, s]}
        replay: [main]
        """,
    )
    state = torch.ones(4, 2)
    for rows in (3, 4, 1, 3, 2, 4, 3):
        x = torch.randn(rows, 2)
        state[:rows] += x
        assert torch.equal(runner.run(x=x)["y"], state[:rows])
        assert torch.equal(runner.state["s"], state)


OWNED = """
    dims: {batch: [1, 2, 4]}
    buffers:
      x: {shape: [batch, 2], dtype: float32, pad: 100}
      s: {role: state, attr: "model.*", shape: SHAPE}
      y: {role: output, shape: [batch, 2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
OWNER = """
    def __init__(self):
        super().__init__()
        self.register_buffer("sums", torch.ones(4, 2))
        self.register_buffer("last", torch.zeros(4, 2))

    def forward(self, x):
        rows = x.shape[0]
        self.last[:rows] = x
        return self.sums[:rows].add_(x) * 1
"""


@pytest.mark.case("C69")
def test_rows_of_a_state_that_the_model_owns_are_as_before_where_its_shape_is_declared(case):
    runner = case.open(OWNER, OWNED.replace("SHAPE", "[batch, 2]"))
    sums, last = torch.ones(4, 2), torch.zeros(4, 2)
    for rows in (3, 4, 1, 3, 2, 3):
        x = torch.randn(rows, 2)
        sums[:rows] += x
        last[:rows] = x
        assert torch.equal(runner.run(x=x)["y"], sums[:rows])
        assert torch.equal(runner.model.sums, sums)
        assert torch.equal(runner.model.last, last)


def test_a_declared_shape_that_is_not_that_of_the_models_tensor_is_refused_with_both(case):
    with case.refused(ModelError, "'s'", "[batch, 3]", "[4, 2]", "[4, 3]"):
        case.open(OWNER, OWNED.replace("SHAPE", "[batch, 3]"))


@pytest.mark.case("C69")
def test_a_state_updated_in_place_keeps_its_padded_rows_too(case):
    runner = case.open(
        "def forward(self, x, s): s.mul_(2).add_(x); return s * 1",
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          s: {role: state, shape: [batch], dtype: float32, init: 1}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x, s], outputs: y}
        replay: [main]
        """,
    )
    state = torch.ones(4)
    for rows in (3, 1, 4, 3):
        x = torch.randn(rows)
        state[:rows] = state[:rows] * 2 + x
        assert torch.equal(runner.run(x=x)["y"], state[:rows])
        assert torch.equal(runner.state["s"], state)


@pytest.mark.case("C69")
def test_a_state_bucketed_in_its_second_axis_keeps_rows_and_columns(case):
    runner = case.open(
        "def forward(self, x, s): return s + x, s + x",
        """
        dims: {batch: [2, 4], heads: 3}
        buffers:
          x: {shape: [heads, batch], dtype: float32}
          s: {role: state, shape: [heads, batch], dtype: float32, init: 0}
          y: {role: output, shape: [heads, batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x, s], outputs: [y, s]}
        replay: [main]
        """,
    )
    state = torch.zeros(3, 4)
    for rows in (3, 1, 4, 2, 3):
        x = torch.randn(3, rows)
        state[:, :rows] += x
        assert torch.equal(runner.run(x=x)["y"], state[:, :rows])
        assert torch.equal(runner.state["s"], state)


@pytest.mark.case("C69")
def test_a_state_with_two_bucketed_axes_keeps_everything_outside_the_real_block(case):
    runner = case.open(
        "def forward(self, x, s): return s + x, s + x",
        """
        dims: {a: [2, 4], b: [3, 5]}
        buffers:
          x: {shape: [a, b], dtype: float32}
          s: {role: state, shape: [a, b], dtype: float32, init: 0}
          y: {role: output, shape: [a, b], dtype: float32}
        regions:
          main: {call: model, inputs: [x, s], outputs: [y, s]}
        replay: [main]
        """,
    )
    state = torch.zeros(4, 5)
    for a, b in ((3, 4), (1, 1), (4, 5), (3, 2), (1, 5)):
        x = torch.randn(a, b)
        state[:a, :b] += x
        assert torch.equal(runner.run(x=x)["y"], state[:a, :b])
        assert torch.equal(runner.state["s"], state)


@pytest.mark.case("C69")
def test_a_states_rows_written_by_an_eager_region_stop_at_the_real_ones(case):
    runner = case.open(
        """
        def step(self, x, s):
            return s + x

        def forward(self, s):
            return s * 2
        """,
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          s: {role: state, shape: [batch], dtype: float32, init: 1}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          step: {call: model.step, inputs: [x, s], outputs: s, eager: true}
          main: {call: model, inputs: [s], outputs: y}
        replay: [step, main]
        """,
    )
    state = torch.ones(4)
    for rows in (3, 4, 1):
        x = torch.randn(rows)
        state[:rows] += x
        assert torch.equal(runner.run(x=x)["y"], state[:rows] * 2)
        assert torch.equal(runner.state["s"], state)


@pytest.mark.case("C69")
def test_a_state_is_read_where_it_was_last_written_by_eager_and_captured_regions_in_turn(case):
    runner = case.open(
        """
        def first(self, x, s):
            return s + x

        def second(self, s):
            return s * 2

        def third(self, s):
            return s + 100
        """,
        """
        buffers:
          x: {shape: [2], dtype: float32}
          s: {role: state, shape: [2], dtype: float32, init: 0}
        regions:
          first: {call: model.first, inputs: [x, s], outputs: s, eager: true}
          second: {call: model.second, inputs: [s], outputs: s}
          third: {call: model.third, inputs: [s], outputs: y, eager: true}
        replay: [first, second, third]
        """,
    )
    s = torch.zeros(2)
    for _ in range(4):
        x = torch.randn(2)
        s = (s + x) * 2
        torch.testing.assert_close(runner.run(x=x)["y"], s + 100)
        torch.testing.assert_close(runner.state["s"], s)


@pytest.mark.case("C69")
def test_rows_of_a_state_can_be_written_read_and_reset_from_outside(case):
    runner = case.open(
        "def forward(self, x, s): return s + x, s + x",
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          s: {role: state, shape: [batch], dtype: float32, init: [1, 2, 3, 4]}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x, s], outputs: [y, s]}
        replay: [main]
        """,
    )
    runner.state.write("s", torch.tensor([10.0, 30.0]), rows=[0, 2])
    assert runner.state["s"].tolist() == [10, 2, 30, 4]
    assert runner.run(x=torch.ones(3))["y"].tolist() == [11, 3, 31]
    runner.state.write("s", torch.tensor([7.0]), rows=slice(3, 4))
    assert runner.run(x=torch.zeros(4))["y"].tolist() == [11, 3, 31, 7]
    runner.state.write("s", torch.zeros(4))
    assert runner.state["s"].tolist() == [0] * 4
    read = runner.state["s"]
    read.fill_(9)  # a copy
    assert runner.state["s"].tolist() == [0] * 4
    runner.reset()
    assert runner.state["s"].tolist() == [1, 2, 3, 4]
    runner.recapture()
    runner.state.write("s", torch.ones(4))
    runner.recapture()
    assert runner.state["s"].tolist() == [1] * 4


@pytest.mark.case("C69")
@pytest.mark.parametrize(
    ("value", "rows"),
    [(torch.zeros(3), None), (torch.zeros(1), None), (torch.tensor(0.0), None), (torch.zeros(2), [0]),
     (torch.zeros(1), [4]), (torch.zeros(1), [-5]), (torch.tensor([0.5, 1, 1, 1], dtype=torch.float64) / 3, None),
     (torch.zeros(4, dtype=torch.complex64), None), ([0.0] * 4, None), (torch.zeros(4, 1), None),
     (torch.zeros(2), [0, 0]), (torch.zeros(4, device="meta"), None), (torch.zeros(1), 0),
     (torch.zeros(2), [1, -3]), (torch.zeros(1), [True]), (torch.zeros(1), ["0"]), (torch.zeros(4).to_sparse(), None)],
)  # fmt: skip
def test_a_wrong_write_of_a_state_is_refused_by_name_and_changes_nothing(case, value, rows):
    runner = case.open(
        "def forward(self, x, s): return s + x, s + x",
        """
        buffers:
          x: {shape: [4], dtype: float32}
          s: {role: state, shape: [4], dtype: float32, init: 1}
        regions:
          main: {call: model, inputs: [x, s], outputs: [y, s]}
        replay: [main]
        """,
    )
    with pytest.raises(InputError, match="'s'"):
        runner.state.write("s", value, rows=rows)
    assert runner.state["s"].tolist() == [1] * 4


@pytest.mark.case("C69")
def test_an_unknown_state_is_refused_with_the_ones_there_are(case):
    runner = case.open(
        "def forward(self, x, s): return s + x, s + x",
        """
        buffers:
          x: {shape: [4], dtype: float32}
          s: {role: state, shape: [4], dtype: float32, init: 1}
        regions:
          main: {call: model, inputs: [x, s], outputs: [y, s]}
        replay: [main]
        """,
    )
    with case.refused(InputError, "'t'", "s"):
        runner.state["t"]
    with case.refused(InputError, "'t'", "s"):
        runner.state.write("t", torch.zeros(4))


@pytest.mark.case("C70")
def test_a_smaller_run_after_a_larger_one_sees_no_stale_rows(case):
    runner = case.open(
        "def forward(self, x, count): return x.sum(0, keepdim=True) / count",
        """
        dims: {batch: [4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          count: {shape: [], dtype: int64, from: {size: batch}}
          y: {role: output, shape: [1], dtype: float32}
        regions:
          main: {call: model, inputs: [x, count], outputs: y}
        replay: [main]
        """,
    )
    assert runner.run(x=torch.ones(4))["y"].tolist() == [1]
    assert runner.run(x=torch.tensor([5.0, 5.0]))["y"].tolist() == [5]
    assert runner.run(x=torch.tensor([7.0]))["y"].tolist() == [7]


@pytest.mark.case("C70")
@pytest.mark.parametrize("fill", [0, -3, 1.5])
def test_the_rows_a_bucket_adds_hold_pad_on_every_run(case, fill):
    runner = case.open(
        "def forward(self, x): return x.sum().reshape(1)",
        f"""
        dims: {{batch: [4]}}
        buffers:
          x: {{shape: [batch], dtype: float32, pad: {fill}}}
          y: {{role: output, shape: [1], dtype: float32}}
        regions:
          main: {{call: model, inputs: [x], outputs: y}}
        replay: [main]
        """,
    )
    for rows in (4, 2, 3, 1, 4):
        x = torch.ones(rows)
        assert runner.run(x=x)["y"].item() == rows + fill * (4 - rows)
        runner.poison()


@pytest.mark.case("C70")
def test_the_bucket_size_and_the_real_size_reach_the_graph(case):
    runner = case.open(
        "def forward(self, x, real, padded): return x * 0 + real * 10 + padded",
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          real: {shape: [], dtype: int64, from: {size: batch}}
          padded: {shape: [], dtype: int64, from: {bucket: batch}}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x, real, padded], outputs: y}
        replay: [main]
        """,
    )
    assert [runner.run(x=torch.zeros(rows))["y"][0].item() for rows in (1, 2, 3, 4)] == [12, 22, 34, 44]


@pytest.mark.case("C71")
def test_sizes_out_of_order_and_listed_twice_are_findings(case):
    with pytest.raises(SpecError) as caught:
        case.open(DOUBLE, SPEC.replace("MORE", "").replace("[1, 2, 4, 8]", "[8, 4, 4, 2]"))
    assert {"GS401", "GS402"} <= {finding.code for finding in caught.value.diagnostics}
    assert all(finding.line for finding in caught.value.diagnostics)


@pytest.mark.case("C71")
@pytest.mark.parametrize(("rows", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (7, 8), (8, 8)])
def test_a_run_takes_the_smallest_bucket_that_holds_it_and_is_cut_back(case, rows, bucket):
    runner = case.open(DOUBLE, SPEC.replace("MORE", ""))
    x = torch.randn(rows, 2)
    y = runner.run(x=x)["y"]
    assert torch.equal(y, x * 2)
    assert runner.stats.bucket_hits == {f"batch={bucket}": 1}
    assert runner.stats.padded_fraction == pytest.approx(1 - rows / bucket)


@pytest.mark.case("C71")
def test_no_rows_at_all_give_no_rows(case):
    runner = case.open(DOUBLE, SPEC.replace("MORE", ""))
    assert runner.run(x=torch.zeros(0, 2))["y"].shape == (0, 2)


@pytest.mark.case("C71")
def test_more_rows_than_the_largest_bucket_are_refused_with_the_largest(case):
    runner = case.open(DOUBLE, SPEC.replace("MORE", ""))
    with case.refused(InputError, "batch=9", "8"):
        runner.run(x=torch.zeros(9, 2))
    assert runner.stats.fallbacks == 0


@pytest.mark.case("C71")
def test_more_rows_than_the_largest_bucket_fall_back_to_eager_by_declaration_and_are_counted(case):
    runner = case.open(DOUBLE, SPEC.replace("MORE", ", on_miss: eager"))
    for rows in (9, 3, 20):
        x = torch.randn(rows, 2)
        assert torch.equal(runner.run(x=x)["y"], x * 2)
    assert (runner.stats.fallbacks, runner.stats.replays) == (2, 1)


@pytest.mark.case("C71")
def test_inputs_that_disagree_on_a_size_are_refused_with_both(case):
    runner = case.open(
        "def forward(self, a, b): return a + b",
        """
        dims: {batch: [1, 2, 4]}
        buffers:
          a: {shape: [batch], dtype: float32}
          b: {shape: [batch], dtype: float32}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: [a, b], outputs: y}
        replay: [main]
        """,
    )
    with pytest.raises(InputError, match=r"'a'.*'b'") as caught:
        runner.run(a=torch.zeros(3), b=torch.zeros(4))
    assert "3" in str(caught.value)
    assert "4" in str(caught.value)
    with pytest.raises(InputError):
        runner.run(a=torch.zeros(3), b=torch.zeros(1))


@pytest.mark.case("C71")
def test_a_scaled_dim_takes_its_multiple_and_refuses_what_is_none(case):
    runner = case.open(
        "def forward(self, x, pairs): return x + pairs.view(-1, 2).sum(1), pairs * 2",
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          pairs: {shape: [2*batch], dtype: float32}
          y: {role: output, shape: [batch], dtype: float32}
          z: {role: output, shape: [2*batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x, pairs], outputs: [y, z]}
        replay: [main]
        """,
    )
    for rows in (1, 3, 2, 4):
        x, pairs = torch.randn(rows), torch.randn(2 * rows)
        got = runner.run(x=x, pairs=pairs)
        assert torch.equal(got["y"], x + pairs.view(-1, 2).sum(1))
        assert torch.equal(got["z"], pairs * 2)
    for wrong in (3, 5, 8):
        with pytest.raises(InputError, match="'pairs'"):
            runner.run(x=torch.zeros(2), pairs=torch.zeros(wrong))


@pytest.mark.case("C71")
def test_an_exact_dim_refuses_every_size_between(case):
    runner = case.open(
        DOUBLE,
        SPEC.replace("MORE", "").replace("[1, 2, 4, 8]", "{sizes: [2, 4], exact: true}"),
    )
    for rows in (2, 4):
        x = torch.randn(rows, 2)
        assert torch.equal(runner.run(x=x)["y"], x * 2)
    with case.refused(InputError, "batch=3", "exact", "2, 4"):
        runner.run(x=torch.zeros(3, 2))


@pytest.mark.case("C71")
def test_two_dims_and_a_region_that_depends_on_one_of_them_only(case):
    runner = case.open(
        """
        def embed(self, tokens):
            return tokens.float() * 2

        def forward(self, h, mask):
            return h[:, None] * mask
        """,
        """
        dims: {batch: [2, 4], length: [3, 6]}
        buffers:
          tokens: {shape: [batch], dtype: int64, pad: 0}
          mask: {shape: [batch, length], dtype: float32}
          y: {role: output, shape: [batch, length], dtype: float32}
        regions:
          embed: {call: model.embed, inputs: [tokens], outputs: h}
          main: {call: model, inputs: [h, mask], outputs: y}
        replay: [embed, main]
        """,
    )
    assert len(runner.graphs) == 2 + 4
    for rows, length in ((1, 1), (4, 6), (3, 2), (2, 5), (4, 3), (1, 6)):
        tokens, mask = torch.randint(0, 9, (rows,)), torch.randn(rows, length)
        assert torch.equal(runner.run(tokens=tokens, mask=mask)["y"], (tokens.float() * 2)[:, None] * mask)


@pytest.mark.case("C71")
def test_integer_inputs_without_a_pad_are_refused_in_the_spec(case):
    with pytest.raises(SpecError, match="pad"):
        case.open(DOUBLE, SPEC.replace("MORE", "").replace("dtype: float32}\n      y", "dtype: int64}\n      y"))


@pytest.mark.case("C70")
@pytest.mark.parametrize("body", ["x[:3] * 2", "x.new_zeros(4, 2) + x[:1]"])
def test_a_size_that_the_model_froze_differs_between_buckets_and_is_refused_or_cut_right(case, body):
    spec = SPEC.replace("MORE", "").replace("[1, 2, 4, 8]", "[4, 8]")
    with pytest.raises(Exception, match="'y'"):
        case.open(f"def forward(self, x): return {body}", spec)


@pytest.mark.case("C71")
def test_a_bucketed_param_is_given_with_each_size_and_padded(case):
    runner = case.open(
        "def forward(self, x, lens): return x * lens",
        """
        dims: {batch: [2, 4]}
        params:
          lens: {type: int, shape: [batch], min: 1, max: 9, default: 1, pad: 1}
        buffers:
          x: {shape: [batch], dtype: float32}
          lens_on_device: {shape: [batch], dtype: int64, from: lens}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: {x: x, lens: lens_on_device}, outputs: y}
        replay: [main]
        """,
    )
    assert runner.run(x=torch.ones(3), lens=[2, 3, 4])["y"].tolist() == [2, 3, 4]
    assert runner.run(x=torch.ones(3))["y"].tolist() == [2, 3, 4]
    with case.refused(InputError, "'lens'", "again"):
        runner.run(x=torch.ones(2))
    with pytest.raises(InputError, match="'lens'"):
        runner.run(x=torch.ones(3), lens=[1, 2])
    with pytest.raises(InputError, match="'lens'"):
        runner.run(x=torch.ones(3), lens=[1, 2, 10])
    assert runner.run(x=torch.ones(3), lens=[9, 1, 5])["y"].tolist() == [9, 1, 5]


@pytest.mark.case("C70")
def test_poisoned_inputs_and_graph_memory_between_runs_change_nothing(case):
    runner = case.open(
        "def forward(self, x): h = torch.relu(x) * 2; return h - h.mean(1, keepdim=True)", SPEC.replace("MORE", "")
    )
    eager = case.eager()
    for rows in (3, 8, 1, 5, 4):
        x = torch.randn(rows, 2)
        runner.poison()
        torch.testing.assert_close(runner.run(x=x)["y"], eager(x))


@pytest.mark.parametrize("rows", ["real", "bucket"])
def test_results_of_an_eager_region_have_the_real_rows_whatever_rows_it_sees(case, rows):
    spec = SPEC.replace("outputs: yMORE", f"outputs: y, eager: true, rows: {rows}")
    runner = case.open("def forward(self, x): self.seen = x.shape[0]; return x * 2", spec)
    x = torch.randn(3, 2)
    assert torch.equal(runner.run(x=x)["y"], x * 2)
    assert runner.model.seen == {"real": 3, "bucket": 4}[rows]
