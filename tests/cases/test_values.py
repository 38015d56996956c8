"""One memory of what exists: values across sequences, variants, eager regions, fallbacks and runners of one model."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch

import graphspec
from graphspec.errors import HazardError, InputError, ModelError, OrderError

KEYS = "x: {shape: [3], dtype: float32}"


def x(*values):
    return torch.tensor([float(value) for value in values] if len(values) > 1 else [float(values[0])] * 3)


# -- eager regions: what they are given, keep, write and reshape


def pipeline(case, methods, **regions):
    """Regions in order, each given as `inputs -> outputs`; those whose name begins with e are eager."""
    lines = []
    for name, wires in regions.items():
        inputs, outputs = (part.strip() for part in wires.split("->"))
        eager = ", eager: true" if name.startswith("e") else ""
        lines.append(f"      {name}: {{call: model.{name}, inputs: [{inputs}], outputs: {outputs}{eager}}}")
    spec = "\n".join([
        "    buffers:", f"      {KEYS}", "      s: {role: state, shape: [3], dtype: float32}", "    regions:", *lines,
        f"    replay: [{', '.join(regions)}]",
    ])  # fmt: skip
    return case.open(methods, spec)


def test_a_change_in_place_by_a_later_eager_region_reaches_a_captured_reader(case):
    runner = pipeline(
        case,
        """
        def e0(self, x):
            return x * 2

        def e1(self, h):
            h.mul_(0.5)
            return h.sum()

        def c2(self, h):
            return h + 1
        """,
        e0="x -> h", e1="h -> n", c2="h -> y",
    )  # fmt: skip
    for value in (1, 5, 7):
        assert runner.run(x=x(value))["y"].tolist() == [value + 1] * 3


@pytest.mark.parametrize("write", ["h.data.mul_(0.5)", "h.numpy()[:] *= 0.5", "self.kept.mul_(0.5)"])
def test_so_does_one_that_no_version_shows(case, write):
    runner = pipeline(
        case,
        f"""
        def e0(self, x):
            self.kept = x * 2
            return self.kept

        def e1(self, h):
            {write}
            return h.sum()

        def c2(self, h):
            return h + 1
        """,
        e0="x -> h", e1="h -> n", c2="h -> y",
    )  # fmt: skip
    for value in (1, 5, 7):
        assert runner.run(x=x(value))["y"].tolist() == [value + 1] * 3


def test_a_captured_region_that_writes_into_the_memory_of_an_eager_value_it_reads_is_refused(case):
    with pytest.raises(HazardError, match="GS750") as caught:
        pipeline(
            case,
            """
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(3))

            def e0(self, x):
                return self.count

            def c1(self, x, h):
                self.count.add_(1)
                return h * 1
            """,
            e0="x -> h", c1="x, h -> y",
        )  # fmt: skip
    assert "writes into the memory of 'h'" in str(caught.value)


def test_one_that_does_so_in_a_later_run_only_is_refused_then(case):
    runner = pipeline(
        case,
        """
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))
            self.runs = 0

        def e0(self, x):
            self.runs += 1
            return self.count if self.runs == 3 else x * 1

        def c1(self, x, h):
            self.count.add_(1)
            return h * 1
        """,
        e0="x -> h", c1="x, h -> y",
    )  # fmt: skip
    for value in (1, 2):
        assert runner.run(x=x(value))["y"].tolist() == [value] * 3
    with case.refused(OrderError, "'c1'", "'h'"):
        runner.run(x=x(1))
    assert runner.run(x=x(4))["y"].tolist() == [4] * 3


def test_a_captured_region_does_not_hand_on_what_an_eager_one_made(case):
    with pytest.raises(HazardError, match="GS750"):
        pipeline(
            case,
            """
            def e0(self, x):
                return x * 2

            def c1(self, h):
                return h, h + 1

            def e2(self, h):
                h.mul_(10)
                return h.sum()

            def c3(self, g):
                return g * 1
            """,
            e0="x -> h", c1="h -> [g, k]", e2="h -> n", c3="g -> y",
        )  # fmt: skip


DIFFERENCE = """
    def __init__(self):
        super().__init__()
        self.prev = None
        self.log = []

    def e0(self, SOURCE):
        d = SOURCE * 1 if self.prev is None else SOURCE - self.prev
        self.prev = KEEP
        self.log.append(KEEP)
        return d

    def c0(self, x):
        return x * 10

    def c1(self, d):
        return d + 0
"""


@pytest.mark.parametrize("keep", ["SOURCE", "SOURCE[1:]", "SOURCE.view(3, 1)", "SOURCE.numpy()", "(SOURCE, 1)"])
@pytest.mark.parametrize("source", ["x", "h"])
def test_what_an_eager_region_keeps_is_its_own(case, source, keep):
    methods = DIFFERENCE.replace("KEEP", keep).replace("SOURCE", source)
    methods = methods.replace(f"{source} - self.prev", f"{source} - PREV")
    whole = {
        "[1:]": "torch.cat([self.prev[:1], self.prev])",
        "view": "self.prev.view(3)",
        "numpy": "torch.tensor(self.prev)",
    }
    previous = next((text for mark, text in whole.items() if mark in keep), "self.prev")
    methods = methods.replace("PREV", "self.prev[0]" if keep.startswith("(") else previous)
    runner = pipeline(case, methods, c0="x -> h", e0=f"{source} -> d", c1="d -> y")
    scale = 10 if source == "h" else 1
    found = [runner.run(x=x(value))["y"].tolist() for value in (1, 5, 7, 2, 2)]
    assert found == [[value * scale] * 3 for value in (1, 4, 2, -5, 0)]
    kept = [each[0] if isinstance(each, tuple) else torch.as_tensor(each) for each in runner.model.log]
    assert [each.flatten()[-1].item() for each in kept] == [value * scale for value in (1, 5, 7, 2, 2)]


def test_a_region_that_begins_to_keep_late_is_served_too(case):
    methods = DIFFERENCE.replace("KEEP", "SOURCE if len(self.log) % 4 == 3 else None").replace("SOURCE", "h")
    runner = pipeline(case, methods, c0="x -> h", e0="h -> d", c1="d -> y")
    for value in range(1, 14):
        runner.run(x=x(value))
    kept = [each[0].item() for each in runner.model.log if each is not None]
    assert kept == [40, 80, 120]


def test_an_address_kept_late_by_numpy_is_said_once_and_then_served(case):
    methods = DIFFERENCE.replace("self.log.append(KEEP)", "self.log.append(h.numpy() if len(self.log) > 3 else 0)")
    methods = methods.replace("KEEP", "None").replace("SOURCE", "h")
    runner = pipeline(case, methods, c0="x -> h", e0="h -> d", c1="d -> y")
    for value in range(1, 5):
        runner.run(x=x(value))
    with case.refused(OrderError, "'h'", "numpy"):
        runner.run(x=x(5))
    for value in (6, 7, 8):
        runner.run(x=x(value))
    assert [each[0].item() for each in runner.model.log[5:]] == [60, 70, 80]


def test_the_difference_of_a_state_that_is_written_back_is_that_of_eager(case):
    runner = pipeline(
        case,
        """
        def __init__(self):
            super().__init__()
            self.prev = None

        def c0(self, x, s):
            return s + x

        def e1(self, s):
            d = s * 1 if self.prev is None else s - self.prev
            self.prev = s
            return d

        def c2(self, d):
            return d * 1
        """,
        c0="x, s -> s", e1="s -> d", c2="d -> y",
    )  # fmt: skip
    assert [runner.run(x=x(value))["y"].tolist() for value in (1, 5, 7, 2)] == [[v] * 3 for v in (1, 5, 7, 2)]
    runner.reset()
    assert runner.model.prev.tolist() == [15] * 3, "what the region kept is its own, also over a reset"


def test_a_kept_tensor_sees_what_is_written_in_place_as_in_eager(case):
    runner = pipeline(
        case,
        """
        def c0(self, x):
            return x * 2

        def e1(self, h):
            self.kept = h
            return h.sum()

        def c2(self, h):
            h.add_(1)
            return h * 10

        def e3(self, h):
            self.kept.mul_(2)
            return h.sum()

        def c4(self, h):
            return h * 1
        """,
        c0="x -> h", e1="h -> n", c2="h -> z", e3="h -> m", c4="h -> y",
    )  # fmt: skip
    for value in range(1, 7):
        assert runner.run(x=x(value))["y"].tolist() == [2 * (2 * value + 1)] * 3
        assert runner.model.kept.tolist() == [2 * (2 * value + 1)] * 3


def test_an_eager_region_writes_into_graph_memory_and_inputs_in_place(case):
    runner = pipeline(
        case,
        """
        def c0(self, x):
            return x * 2

        def e1(self, h, x):
            h[0] = 100.0
            x.data.neg_()
            return h.sum()

        def c2(self, h, x):
            return h + x
        """,
        c0="x -> h", e1="h, x -> n", c2="h, x -> y",
    )  # fmt: skip
    for value in range(1, 6):
        assert runner.run(x=x(value))["y"].tolist() == [100 - value, value, value]


def test_a_shape_changed_by_an_eager_region_is_seen_by_eager_readers_and_refused_for_captured_ones(case):
    methods = """
        def c0(self, x):
            return x * 2

        def e1(self, h):
            h.unsqueeze_(-1)
            return h.sum()

        def e2(self, h):
            return h * 1

        def c2(self, h):
            return h * 1
    """
    runner = pipeline(case, methods, c0="x -> h", e1="h -> n", e2="h -> y")
    for value in (1, 2, 3, 4):
        assert runner.run(x=x(value))["y"].tolist() == [[2 * value]] * 3
    with pytest.raises(HazardError, match="GS751"):
        pipeline(case, methods, c0="x -> h", e1="h -> n", c2="h -> y")


def test_a_shape_changed_only_later_is_refused_where_it_would_be_read(case):
    runner = pipeline(
        case,
        """
        def __init__(self):
            super().__init__()
            self.runs = 0

        def c0(self, x):
            return x * 2

        def e1(self, h):
            self.runs += 1
            if self.runs == 3:
                h.t_() if h.dim() == 2 else h.set_(torch.zeros(3))
            return h.sum()

        def c2(self, h):
            return h * 1
        """,
        c0="x -> h", e1="h -> n", c2="h -> y",
    )  # fmt: skip
    for value in (1, 2):
        assert runner.run(x=x(value))["y"].tolist() == [2 * value] * 3
    with case.refused(OrderError, "'c2'", "'h'"):
        runner.run(x=x(3))
    assert runner.run(x=x(4))["y"].tolist() == [8] * 3


def test_a_region_that_keeps_nothing_is_given_the_very_memory(case):
    runner = pipeline(
        case,
        """
        def c0(self, x):
            return x * 2

        def e1(self, h):
            self.address = h.data_ptr()
            return h.sum()
        """,
        c0="x -> h", e1="h -> y",
    )  # fmt: skip
    seen = []
    for value in range(5):
        runner.run(x=x(value))
        seen.append(runner.model.address)
    graph = runner.graph("c0").graph.outputs[0].data_ptr()
    assert seen[-2:] == [graph, graph]


# -- variants, sequences and fallbacks

VARIANTS = """
    def enc(self, x, m):
        h = x * 10
        return h + 2 if m is None else h + m

    def dec(self, h):
        return h + 1
"""
VARIANTS_SPEC = """
    buffers:
      x: {shape: [3], dtype: float32}
      m: {shape: [3], dtype: float32, optional: true}
      KEYS
    regions:
      enc: {call: model.enc, inputs: [x, m], outputs: h}
      dec: {call: model.dec, inputs: [h], outputs: y}
    replay: {a: [enc], b: [dec]}
"""


@pytest.mark.parametrize("keys", ["", "h: {role: output, shape: [3], dtype: float32, static: true}"])
def test_what_another_variant_made_last_is_what_a_sequence_reads(case, keys):
    runner = case.open(VARIANTS, VARIANTS_SPEC.replace("KEYS", keys))
    runner["a"](x=x(1), m=x(1))
    assert runner["b"]()["y"].tolist() == [12] * 3
    runner["a"](x=x(5))
    assert runner["b"]()["y"].tolist() == [53] * 3
    assert runner["b"]()["y"].tolist() == [53] * 3
    runner["a"](x=x(7), m=x(0))
    assert runner["b"]()["y"].tolist() == [71] * 3


def test_what_was_made_is_still_there_after_recapture(case):
    runner = case.open(VARIANTS, VARIANTS_SPEC.replace("KEYS", ""))
    runner["a"](x=x(5), m=x(1))
    runner.recapture()
    assert runner["b"]()["y"].tolist() == [52] * 3
    runner["a"](x=x(6), m=x(1))
    assert runner["b"]()["y"].tolist() == [62] * 3


def test_a_static_output_made_by_one_variant_at_another_size_is_not_read_at_the_old_one(case):
    runner = case.open(
        VARIANTS
        + """
    def add(self, w, z):
        return w + z
    """,
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          m: {shape: [batch], dtype: float32, optional: true}
          z: {shape: [batch], dtype: float32}
          h: {role: output, shape: [batch], dtype: float32, static: true}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          enc: {call: model.enc, inputs: [x, m], outputs: h}
          dec: {call: model.dec, inputs: [h], outputs: w}
          add: {call: model.add, inputs: [w, z], outputs: y}
        replay: {a: [enc], b: [dec, add]}
        """,
    )
    one = torch.ones(4)
    runner["a"](x=one, m=one)
    assert runner["b"](z=one)["y"].tolist() == [13] * 4
    runner["a"](x=one[:2])
    with case.refused(OrderError, "'h'", "batch=2"):
        runner["b"](z=one)
    assert runner["b"](z=one[:2])["y"].tolist() == [14] * 2


FALLBACK = """
    def a(self, x):
        return x * 2

    def b(self, h):
        return h.sum() * 1

    def e(self, h, w):
        return h + w
"""


@pytest.mark.parametrize("static", ["false", "true"])
def test_a_fallback_makes_values_as_a_graph_does(case, static):
    runner = case.open(
        FALLBACK,
        f"""
        dims: {{batch: [1, 2]}}
        buffers:
          x: {{shape: [batch, 2], dtype: float32}}
          w: {{shape: [batch, 2], dtype: float32}}
          h: {{role: output, shape: [batch, 2], dtype: float32, static: {static}}}
          z: {{role: output, shape: [batch, 2], dtype: float32}}
        regions:
          a: {{call: model.a, inputs: [x], outputs: h, on_miss: eager}}
          e: {{call: model.e, inputs: [h, w], outputs: z, eager: true}}
        replay: {{make: [a], look: [e]}}
        """,
    )
    with pytest.raises(OrderError, match="not made yet"):
        runner["look"](w=torch.ones(1, 2))
    for rows in (2, 5, 1, 3):
        runner["make"](x=torch.full((rows, 2), float(rows)))
        assert runner["look"](w=torch.ones(rows, 2))["z"].tolist() == [[2.0 * rows + 1] * 2] * rows


def test_a_graph_reads_what_a_fallback_made_at_a_size_that_it_has(case):
    runner = case.open(
        """
        def a(self, x, w):
            return x * 2, w.sum(0)

        def b(self, h, z):
            return h + z
        """,
        """
        dims: {batch: [1, 2]}
        buffers:
          x: {shape: [3], dtype: float32}
          w: {shape: [batch, 3], dtype: float32}
          z: {shape: [3], dtype: float32}
          t: {role: output, shape: [3], dtype: float32}
          h: {role: output, shape: [3], dtype: float32, static: true}
          y: {role: output, shape: [3], dtype: float32}
        regions:
          a: {call: model.a, inputs: [x, w], outputs: [h, t], on_miss: eager}
          b: {call: model.b, inputs: [h, z], outputs: y}
        replay: {make: [a], read: [b]}
        """,
    )
    for rows in (2, 5, 1, 7):
        runner["make"](x=x(rows), w=torch.ones(rows, 3))
        assert runner["read"](z=x(0))["y"].tolist() == [2 * rows] * 3
    assert runner.stats.fallbacks == 2


# -- results without a copy

LENT = """
    def a(self, x):
        return x * 2

    def v(self, h):
        return h[1:]

    def c(self, z):
        return z + 1
"""
LENT_SPEC = """
    buffers:
      x: {shape: [3], dtype: float32}
      z: {shape: [3], dtype: float32}
      y: {role: output, shape: [2], dtype: float32, copy: false}
    regions:
      a: {call: model.a, inputs: [x], outputs: h}
      v: {call: model.v, inputs: [h], outputs: y}
      c: {call: model.c, inputs: [z], outputs: w}
    replay: {whole: [a, v], only: [a], other: [c]}
"""

WAYS = {
    "itself": lambda y: y,
    "a view": lambda y: y[:1],
    "copy.copy": copy.copy,
    "a view of a copy": lambda y: copy.copy(y)[1:],
    "detach": lambda y: y.detach(),
    "data": lambda y: y.data,
    "torch.as_tensor": torch.as_tensor,
}
COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda y: pickle.loads(pickle.dumps(y)),  # noqa: S301 - its own
    "numpy": lambda y: y.numpy(),
    "np.asarray": np.asarray,
    "from_dlpack": torch.from_dlpack,
    "np.from_dlpack": np.from_dlpack,
    "set_": lambda y: torch.empty(0).set_(y),
    "storage": lambda y: torch.empty(0).set_(y.untyped_storage(), 0, (2,), (1,)),
    "as_subclass": lambda y: y.as_subclass(torch.Tensor),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_lent_result_is_watched_by_the_memory_it_lies_in(case, way):
    runner = case.open(LENT, LENT_SPEC)
    lent = way(runner["whole"](x=x(1))["y"])
    assert lent.tolist() == [2] * len(lent)
    runner["other"](z=x(5))
    assert lent.tolist() == [2] * len(lent), "other memory was written"
    runner["only"](x=x(5))
    with case.refused(OrderError, "'y'", "'a'"):
        lent.tolist()


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES.keys())
def test_what_nobody_could_watch_is_a_copy(case, way):
    runner = case.open(LENT, LENT_SPEC)
    out = way(runner["whole"](x=x(1))["y"])
    for value in (5, 6, 7):
        runner["only"](x=x(value))
        gc.collect()
    assert out.tolist() == [2, 2]


STATIC = """
    def main(self, x, m):
        return x * 2 if m is None else x + m
"""
STATIC_SPEC = """
    buffers:
      x: {shape: [3], dtype: float32}
      m: {shape: [3], dtype: float32, optional: true}
      y: {role: output, shape: [3], dtype: float32, copy: false, static: true}
    regions:
      main: {call: model.main, inputs: [x, m], outputs: y}
"""


@pytest.mark.parametrize("recapture", [False, True])
def test_a_lent_static_result_ends_with_a_run_of_any_variant(case, recapture):
    runner = case.open(STATIC, STATIC_SPEC)
    lent = runner.run(x=x(1), m=x(1))["y"]
    if recapture:
        runner.recapture()
        assert lent.tolist() == [2] * 3
    runner.run(x=x(5))
    with case.refused(OrderError, "'y'", "'main'"):
        lent.tolist()


def test_a_lent_result_survives_recapture_and_close(case):
    runner = case.open(LENT, LENT_SPEC)
    lent = runner["whole"](x=x(1))["y"]
    runner.recapture()
    assert lent.tolist() == [2, 2]
    runner["whole"](x=x(5))
    again = runner["whole"](x=x(6))["y"]
    assert lent.tolist() == [2, 2], "its memory is its own by now"
    runner.close()
    assert again.tolist() == [12, 12]


OWNED = """
    def __init__(self):
        super().__init__()
        self.h = torch.zeros(3)

    def look(self, x):
        return self.h[1:]

    def step(self, x):
        self.h.add_(x)
        return x * 1
"""
OWNED_SPEC = """
    buffers:
      x: {shape: [3], dtype: float32}
      h: {role: state, attr: model.h}
      y: {role: output, shape: [2], dtype: float32, copy: false}
    regions:
      look: {call: model.look, inputs: [x], outputs: y}
      step: {call: model.step, inputs: [x], outputs: z}
    replay: {look: [look], step: [step]}
"""


@pytest.mark.parametrize("ends", ["step", "reset", "write", "another runner"])
def test_a_result_that_lies_in_a_state_ends_with_what_is_written_there(case, ends):
    runner = case.open(OWNED, OWNED_SPEC)
    other = graphspec.open(case.path, device="cpu", model=runner.model)
    runner["step"](x=x(1))
    lent = runner["look"](x=x(0))["y"]
    assert lent.tolist() == [1, 1]
    if ends == "step":
        runner["step"](x=x(1))
    elif ends == "reset":
        runner.reset()
    elif ends == "write":
        runner.state.write("h", x(9))
    else:
        other["step"](x=x(1))
    with case.refused(OrderError, "'y'"):
        lent.tolist()
    other.close()


def test_an_input_lent_by_way_of_two_views_is_refused(case):
    with pytest.raises(HazardError, match="which the next run overwrites"):
        case.open(
            """
            def a(self, x):
                return x[1:]

            def v(self, h):
                return h[1:]
            """,
            """
            buffers:
              x: {shape: [3], dtype: float32}
              y: {role: output, shape: [1], dtype: float32, copy: false}
            regions:
              a: {call: model.a, inputs: [x], outputs: h}
              v: {call: model.v, inputs: [h], outputs: y}
            replay: [a, v]
            """,
        )


def test_errors_in_an_eager_region_do_not_make_later_runs_copy(case):
    runner = pipeline(
        case,
        """
        def c0(self, x):
            return x * 2

        def e1(self, h):
            self.address = h.data_ptr()
            if h.sum() > 100:
                raise ValueError("too much")
            return h.sum()
        """,
        c0="x -> h", e1="h -> y",
    )  # fmt: skip
    for value in (1, 2, 3):
        runner.run(x=x(value))
    with pytest.raises(ModelError, match="too much"):
        runner.run(x=x(1000))
    runner.run(x=x(1))
    assert runner.model.address == runner.graph("c0").graph.outputs[0].data_ptr()


def test_a_list_that_an_eager_region_changes_is_not_the_next_runs(case):
    runner = case.open(
        """
        def look(self, x, n):
            n.append(99)
            return x * len(n)
        """,
        """
        params:
          n: {type: int, shape: [2], default: 1}
        buffers:
          x: {shape: [3], dtype: float32}
        regions:
          look: {call: model.look, inputs: [x, n], outputs: y, eager: true}
        replay: [look]
        """,
    )
    runner.run(x=x(1), n=[5, 6])
    assert runner.run(x=x(1))["y"].tolist() == [3] * 3
    with pytest.raises(InputError):
        runner.run(x=x(1), n=[1, 2, 3])
