"""Rows that a bucket adds are nobody's: a spec is opened only where they change nothing but themselves."""

import pytest
import torch

from graphspec.errors import HazardError, ModelError, SpecError

SPEC = """
    dims: {batch: [1, 2, 4]}
    buffers:
      x: {shape: [batch, 2], dtype: float32}
      y: {role: output, shape: [batch, 2], dtype: float32}
      MORE
    regions:
      main: {call: model, inputs: INPUTS, outputs: OUTPUTS}
    replay: [main]
"""


def spec(more="x-none: 0", inputs="[x]", outputs="y"):
    return SPEC.replace("MORE", more).replace("INPUTS", inputs).replace("OUTPUTS", outputs)


def with_buffers(forward, **buffers):
    """A model with buffers of its own, by their source."""
    made = "\n".join(f"    self.register_buffer({name!r}, {source})" for name, source in buffers.items())
    return f"def __init__(self):\n    super().__init__()\n{made}\n\n{forward}"


HALVED = "def forward(self, x): h = self.h[:x.shape[0]]; h.mul_(.5).add_(x); return h * 1"
SLOTS = "def forward(self, x, slots): self.kv[slots] = x; return x + self.kv[slots]"
SLOT = "slots: {shape: [batch], dtype: int64, pad: 0, sample: {randint: [1, 8]}}"
KV = "kv: {role: state, attr: model.kv}"


# -- what the model owns


@pytest.mark.parametrize("state", ["x-none: 0", "h: {role: state, attr: model.h}", "h: {role: state, attr: 'model.*'}"])
@pytest.mark.parametrize("content", ["torch.ones(4, 2)", "torch.zeros(4, 2)", "torch.zeros(6, 2)"])
def test_rows_of_a_tensor_that_no_state_declares_are_refused_with_its_name_and_the_line(case, state, content):
    with case.refused(HazardError, "GS752", "model.h", "declare its shape"):
        case.open(with_buffers(HALVED, h=content), spec(state))


@pytest.mark.parametrize("rows", [4, 7])
def test_a_declared_state_keeps_the_rows_that_are_not_the_runs_and_may_have_more_than_any_bucket(case, rows):
    runner = case.open(
        with_buffers(HALVED, h=f"torch.ones({rows}, 2)"), spec("h: {role: state, attr: model.h, shape: [batch, 2]}")
    )
    h = torch.ones(rows, 2)
    for size in (3, 4, 1, 3, 2):
        x = torch.randn(size, 2)
        h[:size] = h[:size] * 0.5 + x
        assert torch.equal(runner.run(x=x)["y"], h[:size])
        assert torch.equal(runner.model.h, h)
        assert torch.equal(runner.state["h"], h)


def test_a_state_of_more_rows_is_read_written_and_reset_whole(case):
    runner = case.open(
        with_buffers(HALVED, h="torch.ones(6, 2)"), spec("h: {role: state, attr: model.h, shape: [batch, 2]}")
    )
    runner.state.write("h", torch.full((1, 2), 5.0), rows=[5])
    runner.run(x=torch.zeros(3, 2))
    assert runner.model.h[:, 0].tolist() == [0.5, 0.5, 0.5, 1, 1, 5]
    runner.reset()
    assert runner.model.h.tolist() == torch.ones(6, 2).tolist()


def test_a_state_of_fewer_rows_than_the_largest_bucket_or_more_columns_is_refused(case):
    for shape in ("3, 2", "4, 3"):
        with case.refused(ModelError, "'h'", "[batch, 2]", f"[{shape}]", "or have more such rows"):
            case.open(
                with_buffers("def forward(self, x): return x * 2", h=f"torch.ones({shape})"),
                spec("h: {role: state, attr: model.h, shape: [batch, 2]}"),
            )


@pytest.mark.parametrize("step", ["self.mean.mul_(.9).add_(x.mean(0))", "self.mean += x.shape[0]"])
def test_a_statistic_over_padded_rows_is_refused(case, step):
    case.needs_values = True
    with case.refused(HazardError, "GS752", "model.mean", "batch=3 in batch=4"):
        case.open(with_buffers(f"def forward(self, x): {step}; return x * 2", mean="torch.zeros(2)"), spec())


# -- slots


@pytest.mark.parametrize("state", ["x-none: 0", KV])
@pytest.mark.parametrize("x", ["float32}", "float32, pad: 0}"])
@pytest.mark.parametrize("write", ["self.kv[slots] = x", "self.kv[slots] *= 0.5"])
def test_padded_indices_that_are_real_slots_are_refused(case, state, x, write):
    case.needs_values = True
    forward = SLOTS.replace("self.kv[slots] = x", write)
    with case.refused(HazardError, "GS752", "model.kv", "pad_rows"):
        case.open(
            with_buffers(forward, kv="torch.zeros(8, 2)"),
            spec(f"{state}\n      {SLOT}", "[x, slots]").replace(
                "[batch, 2], dtype: float32}", f"[batch, 2], dtype: {x}", 1
            ),
        )


def test_scratch_slots_may_be_written_by_padded_rows_and_all_others_are_eagers(case):
    runner = case.open(
        with_buffers(SLOTS, kv="torch.zeros(8, 2)"),
        spec(f"{KV}\n      {SLOT}", "[x, slots]", "y, pad_rows: {kv: [0]}"),
    )
    kv = torch.zeros(8, 2)
    for size in (3, 4, 1, 3, 2):
        x, slots = torch.randn(size, 2), torch.randperm(7)[:size] + 1
        kv[slots] = x
        assert torch.equal(runner.run(x=x, slots=slots)["y"], x * 2)
        assert torch.equal(runner.model.kv[1:], kv[1:])


def test_scratch_slots_are_those_and_no_others(case):
    case.needs_values = True
    with case.refused(HazardError, "GS752", "model.kv[0,"):
        case.open(
            with_buffers(SLOTS, kv="torch.zeros(8, 2)"),
            spec(f"{KV}\n      {SLOT}", "[x, slots]", "y, pad_rows: {kv: [1, 2]}"),
        )


def test_scratch_slots_that_the_state_has_not_are_refused(case):
    with case.refused(ModelError, "row 8", "'kv'", "[8, 2]"):
        case.open(
            with_buffers(SLOTS, kv="torch.zeros(8, 2)"),
            spec(f"{KV}\n      {SLOT}", "[x, slots]", "y, pad_rows: {kv: [8]}"),
        )
    with pytest.raises(SpecError, match="GS229"):
        case.open(
            with_buffers(SLOTS, kv="torch.zeros(8, 2)"),
            spec(f"{KV}\n      {SLOT}", "[x, slots]", "y, pad_rows: {vk: [0]}"),
        )


# -- states of graphspec's own, and results


def test_a_state_that_is_fed_from_padded_frames_is_refused(case):
    case.needs_values = True
    with case.refused(HazardError, "GS752", "state h"):
        case.open(
            """
            def __init__(self):
                super().__init__()
                self.cell = nn.GRU(2, 2)

            def forward(self, x, h):
                y, h = self.cell(x.unsqueeze(1), h)
                return y.squeeze(1), h
            """,
            spec("h: {role: state, shape: [1, 1, 2], dtype: float32, init: 0}", "[x, h]", "[y, h]"),
        )


def test_padded_rows_between_real_ones_are_refused(case):
    case.needs_values = True
    guidance = spec().replace("y: {role: output, shape: [batch", "y: {role: output, shape: [2*batch")
    with case.refused(HazardError, "GS753", "y[", "batch=3 in batch=4"):
        case.open("def forward(self, x): return torch.cat([x, x * 10])", guidance)
    runner = case.open("def forward(self, x): return torch.stack([x, x * 10], 1).flatten(0, 1)", guidance)
    x = torch.randn(3, 2)
    assert torch.equal(runner.run(x=x)["y"], torch.stack([x, x * 10], 1).flatten(0, 1))


def test_the_size_of_the_bucket_handed_to_an_eager_region_is_refused(case):
    case.needs_values = True
    with case.refused(HazardError, "GS753", "y["):
        case.open(
            "def f(self, x): return x * 2, x.shape[0]\ndef g(self, h, n): return h / n",
            """
            dims: {batch: [1, 2, 4]}
            buffers:
              x: {shape: [batch, 2], dtype: float32}
              y: {role: output, shape: [batch, 2], dtype: float32}
            regions:
              f: {call: model.f, inputs: [x], outputs: [h, n]}
              g: {call: model.g, inputs: [h, n], outputs: y, eager: true}
            replay: [f, g]
            """,
        )


@pytest.mark.parametrize(("g", "refused"), [("h - h.mean(0) + x", True), ("h * 3 + x", False)])
def test_a_sequence_that_reads_what_another_made_is_run_after_it(case, g, refused):
    case.needs_values = True

    def opened():
        return case.open(
            f"def f(self, x): return x * 2\ndef g(self, h, x): return {g}",
            """
            dims: {batch: [1, 2, 4]}
            buffers:
              x: {shape: [batch, 2], dtype: float32}
              h: {role: output, shape: [batch, 2], dtype: float32}
              y: {role: output, shape: [batch, 2], dtype: float32}
            regions:
              f: {call: model.f, inputs: [x], outputs: h}
              g: {call: model.g, inputs: [h, x], outputs: y}
            replay: {one: [f], two: [g]}
            """,
        )

    if refused:
        with case.refused(HazardError, "GS753", "y["):
            opened()
    else:
        assert opened().warnings == ()


def test_a_result_that_rows_of_another_content_would_change_is_warned_of(case):
    """Right with the zeros that are there on every run; not a refusal."""
    runner = case.open("def forward(self, x): return x + x.sum(0)", spec())
    (warning,) = runner.warnings
    assert "GS753" in warning
    x = torch.randn(3, 2)
    torch.testing.assert_close(runner.run(x=x)["y"], x + x.sum(0))


def test_a_size_that_eager_cannot_run_is_said_not_to_be_shown(case):
    source = "def forward(self, x): assert x.shape[0] != 3, 'not three'; return x * 2"
    runner = case.open(source, spec())
    (warning,) = runner.warnings
    assert "not shown at batch=3 in batch=4" in warning
    assert torch.equal(runner.run(x=torch.ones(4, 2))["y"], torch.full((4, 2), 2.0))


# -- opening leaves no trace


def test_what_is_shown_at_opening_leaves_nothing_behind(case):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.register_buffer("h", torch.zeros(4, 2))
            self.seen = []

        def f(self, x, s):
            self.h[:x.shape[0]].add_(x)
            return s + x + torch.rand_like(x)

        def g(self, s, x):
            self.seen.append(s)
            return s * 1
        """,
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch, 2], dtype: float32, hold: true}
          s: {role: state, shape: [batch, 2], dtype: float32, init: 1}
          h: {role: state, attr: model.h, shape: [batch, 2]}
          y: {role: output, shape: [batch, 2], dtype: float32}
        regions:
          f: {call: model.f, inputs: [x, s], outputs: s}
          g: {call: model.g, inputs: [s, x], outputs: y, eager: true}
        replay: {step: [f], look: [g]}
        """,
    )
    stream = torch.get_rng_state()
    assert runner.model.seen == []
    assert not runner.model.h.any()
    assert torch.equal(runner.state["s"], torch.ones(4, 2))
    with pytest.raises(ValueError, match="must be given once"):
        runner["step"]()
    assert (runner.stats.replays, runner.stats.fallbacks) == (0, 0)
    runner.recapture()
    assert torch.equal(torch.get_rng_state(), stream)


def test_what_an_eager_region_kept_in_one_shown_run_is_not_written_back_in_the_next(case):
    """The proof of padding puts bytes back between runs: a copy that was lent before must not follow."""
    source = """
    def triple(self, x):
        return x * 2 + x

    def read(self, x, s):
        return s * 0.5 + x, s + x

    def same(self, s):
        return s

    def less(self, v0, v2, x):
        return v0 * -1 + v2
    """
    spec = """
    dims: {rows: [1, 4]}
    buffers:
      x: {shape: [rows, 2], dtype: float32}
      s: {role: state, shape: [rows, 2], dtype: float32, init: 1}
      v0: {role: output, shape: [rows, 2], dtype: float32}
      v1: {role: output, shape: [rows, 2], dtype: float32}
      v2: {role: output, shape: [rows, 2], dtype: float32}
      v3: {role: output, shape: [rows, 2], dtype: float32}
    regions:
      triple: {call: model.triple, inputs: [x], outputs: v0, eager: true}
      read: {call: model.read, inputs: [x, s], outputs: [s, v1], eager: true}
      same: {call: model.same, inputs: [s], outputs: v2}
      less: {call: model.less, inputs: [v0, v2, x], outputs: v3}
    replay:
      a: [triple, read, same]
      b: [less]
      c: [triple, read, same, less]
    """
    runner = case.open(source, spec)
    for name in ("a", "c", "a"):
        x, state = torch.randn(2, 2), runner.state["s"][:2].clone()
        came = runner[name](x=x)
        assert torch.equal(came["v1"], state + x)
        assert torch.equal(came["v2"], state * 0.5 + x)
