"""Sizes that no input shows: free axes, sizes that a run states, a limit to padding; and values that are no results."""

import re

import pytest
import torch

from graphspec.cli import main
from graphspec.errors import InputError, MismatchError

PATCHES = """
    def forward(self, x, side):
        n = (side.shape[0] // 16) ** 2 + 1
        return x.sum(0).expand(n, 4) * torch.arange(n).unsqueeze(1), x * 2
"""
FREE = """
    dims: {batch: [2, 4], side: {sizes: [32, 64], exact: true}}
    buffers:
      x: {shape: [batch, 4], dtype: float32}
      side: {shape: [side], dtype: float32}
      h: {role: output, shape: [_, 4], dtype: float32}
      y: {role: output, shape: [batch, 4], dtype: float32}
    regions:
      main: {call: model, inputs: [x, side], outputs: [h, y]}
"""


def test_an_axis_that_is_free_is_whatever_the_graph_makes(case):
    runner = case.open(PATCHES, FREE)
    assert main(["check", str(case.path), "--device", "cpu"]) == 0
    for rows, side in ((4, 64), (3, 32), (1, 64)):
        x, image = torch.randn(rows, 4), torch.randn(side)
        got, want = runner.run(x=x, side=image), runner.model(x, image)
        torch.testing.assert_close(got["h"], want[0])
        torch.testing.assert_close(got["y"], want[1])


@pytest.mark.parametrize("shape", ["[_]", "[_, 5]", "[batch, _, 4]"])
def test_a_free_axis_declares_the_others_and_their_number(case, shape):
    with pytest.raises(MismatchError, match=re.escape(f"'h' is declared {shape}")):
        case.open(PATCHES, FREE.replace("[_, 4]", shape))


STATED = """
    dims: {batch: [2, 4, 8]}
    buffers:
      x: {shape: [batch, 4], dtype: float32}
      real: {shape: [], dtype: int64, from: {size: batch}}
      padded: {shape: [], dtype: int64, from: {bucket: batch}}
      y: {role: output, shape: [batch, 4], dtype: float32}
      n: {role: output, shape: [2], dtype: int64}
    regions:
      main: {call: model, inputs: [x, real, padded], outputs: [y, n]}
"""
STATED_MODEL = """
    def forward(self, x, real, padded):
        return x * 2, torch.stack([real, padded])
"""


def test_a_stated_size_takes_its_bucket_and_results_keep_the_rows_of_the_inputs(case):
    runner = case.open(STATED_MODEL, STATED)
    for rows, stated, bucket in ((1, 8, 8), (3, 3, 4), (2, 4, 4), (0, 2, 2)):
        x = torch.randn(rows, 4)
        got = runner.run(x=x, sizes={"batch": stated})
        torch.testing.assert_close(got["y"], x * 2)
        assert got["n"].tolist() == [rows, bucket]
    assert runner.run(x=torch.randn(2, 4))["n"].tolist() == [2, 2]
    assert runner.verify(x=torch.randn(2, 4), sizes={"batch": 2})["n"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"batch": 2}, "the run states batch=2, and its inputs have batch=3"),
        ({"batch": 9}, "the largest batch is 8"),
        ({"rows": 4}, "has no bucketed dim 'rows'"),
        ({"batch": "4"}, "'4' came"),
        ({"batch": True}, "True came"),
        ({"batch": -1}, "-1 came"),
        (8, "a int came"),
    ],
)
def test_a_stated_size_that_makes_no_sense_is_one_clear_error(case, sizes, said):
    runner = case.open(STATED_MODEL, STATED)
    with case.refused(InputError, said) if "came" not in said else pytest.raises(InputError, match=said):
        runner.run(x=torch.randn(3, 4), sizes=sizes)


def test_an_input_may_bear_the_name_sizes(case):
    spec = """
        buffers: {sizes: {shape: [2], dtype: float32}}
        regions: {main: {call: model, inputs: [sizes], outputs: y}}
    """
    runner = case.open("def forward(self, sizes): return sizes * 2", spec)
    x = torch.randn(2)
    torch.testing.assert_close(runner.run(sizes=x)["y"], x * 2)


UNNAMED = """
    dims: {patches: [4, 16]}
    buffers:
      x: {shape: [4], dtype: float32}
      table: {role: state, shape: [patches, 4], dtype: float32, init: 1}
      y: {role: output, shape: [patches, 4], dtype: float32}
    regions:
      main: {call: model, inputs: [x, table], outputs: {y: "0", table: "1"}}
"""


def test_a_size_that_no_input_shows_is_stated_by_the_run(case, capsys):
    runner = case.open("def forward(self, x, table): return x * table, table * 1", UNNAMED)
    x = torch.randn(4)
    for size in (16, 3, 4):
        got = runner.run(x=x, sizes={"patches": size})["y"]
        torch.testing.assert_close(got, x.expand(size, 4))
    with case.refused(InputError, "needs a size for dim 'patches'", "sizes={'patches': ...}"):
        runner.run(x=x)
    assert main(["run", str(case.path), "--device", "cpu", "--steps", "2"]) == 0
    assert "replay matches eager" in capsys.readouterr().out


LIMITED = """
    dims: {batch: [2, 8]}
    buffers:
      x: {shape: [batch, 4], dtype: float32}
      y: {role: output, shape: [batch, 4], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y, on_miss: eager, max_pad: 2}
"""


def test_a_run_that_would_be_padded_beyond_the_limit_runs_eagerly(case, capsys):
    runner = case.open("def forward(self, x): return x * 2", LIMITED)
    for rows, fallbacks in ((1, 0), (2, 0), (3, 1), (4, 1), (8, 1), (9, 2), (0, 3)):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(runner.run(x=x)["y"], x * 2)
        assert runner.stats.fallbacks == fallbacks, rows
    runner.run(x=torch.randn(4, 4), sizes={"batch": 8})  # what ranks agree on decides
    assert runner.stats.fallbacks == 3
    assert main(["run", str(case.path), "--device", "cpu", "--steps", "2"]) == 0
    assert "MISMATCH" not in capsys.readouterr().out
    assert runner.plan.sequences["replay"].max_pad == 2


PIPELINE = """
    def first(self, x):
        return x.repeat_interleave(2, 0), x.sum()

    def host(self, h):
        return h * (3 if h.shape[0] else 1)

    def last(self, h, g):
        return h + g
"""
KEPT = """
    dims: {batch: [2, 4]}
    buffers:
      x: {shape: [batch, 4], dtype: float32}
      h: {role: intermediate, shape: ["2*batch", 4], dtype: float32%s}
      g: {role: intermediate, shape: ["2*batch", 4], dtype: float32}
      y: {role: output, shape: ["2*batch", 4], dtype: float32}
    regions:
      first: {call: model.first, inputs: [x], outputs: [h, s]}
      host: {call: model.host, inputs: [h], outputs: g, eager: true}
      last: {call: model.last, inputs: [h, g], outputs: y}
    replay: [first, host, last]
"""


@pytest.mark.parametrize("static", ["", ", static: true"])
def test_an_intermediate_is_declared_and_cut_and_no_result(case, static):
    runner = case.open(PIPELINE, KEPT % static)
    assert main(["check", str(case.path), "--device", "cpu"]) == 0
    for rows in (4, 2, 2, 4):
        x = torch.randn(rows, 4)
        got = runner.run(x=x)
        assert list(got) == ["y"]
        torch.testing.assert_close(got["y"], x.repeat_interleave(2, 0) * 4)


def test_the_shape_of_an_intermediate_is_checked(case):
    with pytest.raises(MismatchError, match=r"'h' is declared \[3, 4\]"):
        case.open(
            PIPELINE,
            """
            buffers:
              x: {shape: [2, 4], dtype: float32}
              h: {role: intermediate, shape: [3, 4], dtype: float32}
            regions:
              first: {call: model.first, inputs: [x], outputs: [h, s]}
            """,
        )


def test_the_last_region_returns_everything_but_intermediates(case):
    runner = case.open(
        PIPELINE,
        """
        buffers:
          x: {shape: [2, 4], dtype: float32}
          h: {role: intermediate, shape: [4, 4], dtype: float32}
        regions:
          first: {call: model.first, inputs: [x], outputs: [h, s]}
        """,
    )
    assert list(runner.run(x=torch.randn(2, 4))) == ["s"]
