"""Results: copies by default, in the structure and types of the call, and the same run after run."""

import dataclasses

import pytest
import torch

from graphspec.errors import CaptureError, GraphSpecError, HazardError, OrderError

SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""


@pytest.mark.case("C20")
def test_a_result_is_a_copy_that_later_runs_leave_alone(case):
    runner = case.open("def forward(self, x): return x + 1", SPEC)
    first = runner.run(x=torch.tensor([1.0, 1.0]))["y"]
    second = runner.run(x=torch.tensor([5.0, 5.0]))["y"]
    assert first.tolist() == [2, 2]
    assert second.tolist() == [6, 6]
    first.fill_(9)  # nor does it belong to the graph
    assert runner.run(x=torch.tensor([0.0, 0.0]))["y"].tolist() == [1, 1]


BORROWED = """
    buffers:
      x: {shape: [2], dtype: float32}
      y: {role: output, shape: [2], dtype: float32, copy: false}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""


@pytest.mark.case("C20")
def test_a_borrowed_result_read_after_the_next_run_is_an_error_that_names_it(case):
    runner = case.open("def forward(self, x): return x + 1", BORROWED)
    first = runner.run(x=torch.tensor([1.0, 1.0]))["y"]
    assert (first * 1).tolist() == [2, 2]
    second = runner.run(x=torch.tensor([5.0, 5.0]))["y"]
    with case.refused(OrderError, "'y'"):
        first * 1
    assert (second * 1).tolist() == [6, 6]


@pytest.mark.case("C20")
@pytest.mark.parametrize(
    "read", [lambda y: y.tolist(), lambda y: y.sum(), lambda y: y.numpy(), lambda y: y.clone(), lambda y: y[0],
             lambda y: torch.add(y, 1), str, lambda y: torch.zeros(2).copy_(y), lambda y: y.add_(1)]
)  # fmt: skip
def test_no_way_to_read_a_borrowed_result_too_late_gives_a_number(case, read):
    runner = case.open("def forward(self, x): return x + 1", BORROWED)
    y = runner.run(x=torch.ones(2))["y"]
    read(runner.run(x=torch.ones(2))["y"])
    with case.refused(OrderError, "'y'"):
        read(y)


LEFT = """
    def forward(self, x):
        self.last = x * 3
        return x + 1
"""


@pytest.mark.case("C21")
def test_a_tensor_left_on_an_attribute_is_an_output_by_its_path(case):
    runner = case.open(LEFT, SPEC.replace("outputs: y", "outputs: {y: '', last: model.last}"))
    for value in (1.0, 2.0, 3.0):
        got = runner.run(x=torch.full((2,), value))
        assert got["last"].tolist() == [3 * value] * 2
        assert got["y"].tolist() == [value + 1] * 2


@pytest.mark.case("C21")
@pytest.mark.parametrize("start", ["", "self.last = None", "self.last = torch.zeros(2)", "self.last = 0"])
def test_an_attribute_rebound_by_every_call_is_a_warning_that_names_it(case, start):
    model = f"""
        def __init__(self):
            super().__init__()
            {start or "pass"}

        def forward(self, x):
            self.last = x * 3
            return x + 1
    """
    runner = case.open(model, SPEC)
    assert any("model.last" in warning for warning in runner.warnings), runner.warnings
    assert runner.run(x=torch.ones(2))["y"].tolist() == [2, 2]


CELL = """
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x, h):
        h = self.cell(x, h)
        return h.sum(1), h
"""


@pytest.mark.case("C22")
def test_a_recurrent_cell_that_writes_its_state_back_equals_eager_run_after_run(case):
    runner = case.open(
        CELL,
        """
        buffers:
          x: {shape: [2, 3], dtype: float32}
          h: {role: state, shape: [2, 4], dtype: float32, init: 0}
        regions:
          main: {call: model, inputs: [x, h], outputs: [y, h]}
        replay: [main]
        """,
    )
    eager, h = case.eager(), torch.zeros(2, 4)
    for step in range(6):
        if step == 4:
            runner.reset()
            h = torch.zeros(2, 4)
        x = torch.randn(2, 3)
        y, h = eager(x, h)
        got = runner.run(x=x)
        torch.testing.assert_close(got["y"], y)
        torch.testing.assert_close(runner.state["h"], h)


@pytest.mark.case("C22")
def test_a_model_that_updates_its_input_dict_in_place_gives_its_new_state(case):
    model = """
        def forward(self, state):
            state["h"] = state["h"] * 2 + state["x"]
            return state
    """
    runner = case.open(
        model,
        """
        buffers:
          x: {shape: [2], dtype: float32}
          h: {role: state, shape: [2], dtype: float32, init: 1}
        regions:
          main: {call: model, inputs: [{dict: {x: x, h: h}}], outputs: {h: h}}
        replay: [main]
        """,
    )
    h = torch.ones(2)
    for _ in range(4):
        x = torch.randn(2)
        h = h * 2 + x
        runner.run(x=x)
        assert torch.equal(runner.state["h"], h)


@pytest.mark.case("C22")
def test_a_state_returned_unchanged_and_two_states_exchanged_equal_eager(case):
    runner = case.open(
        "def forward(self, x, a, b): return a + x, b, a",
        """
        buffers:
          x: {shape: [2], dtype: float32}
          a: {role: state, shape: [2], dtype: float32, init: 1}
          b: {role: state, shape: [2], dtype: float32, init: 2}
        regions:
          main: {call: model, inputs: [x, a, b], outputs: [y, a, b]}
        replay: [main]
        """,
    )
    a, b = torch.ones(2), torch.full((2,), 2.0)
    for _ in range(5):
        x = torch.randn(2)
        y, a, b = a + x, b, a
        assert torch.equal(runner.run(x=x)["y"], y)
        assert torch.equal(runner.state["a"], a)
        assert torch.equal(runner.state["b"], b)


@pytest.mark.case("C22")
def test_the_old_state_returned_beside_the_new_one_keeps_the_old_content(case):
    runner = case.open(
        "def forward(self, x, a): return a, a[:1], a + x",
        """
        buffers:
          x: {shape: [2], dtype: float32}
          a: {role: state, shape: [2], dtype: float32, init: 0}
        regions:
          main: {call: model, inputs: [x, a], outputs: [old, part, a]}
        replay: [main]
        """,
    )
    for count in range(3):
        got = runner.run(x=torch.ones(2))
        assert got["old"].tolist() == [count] * 2
        assert got["part"].tolist() == [count]
        assert runner.state["a"].tolist() == [count + 1] * 2


@pytest.mark.case("C22")
def test_a_view_of_a_state_read_after_another_region_wrote_the_state_back_is_refused(case):
    model = """
        def look(self, a):
            return a[:1]

        def step(self, a):
            return a + 1

        def use(self, part, x):
            return part + x
    """
    spec = """
        buffers:
          x: {shape: [2], dtype: float32}
          a: {role: state, shape: [2], dtype: float32, init: 0}
        regions:
          look: {call: model.look, inputs: [a], outputs: part}
          step: {call: model.step, inputs: [a], outputs: a}
          use: {call: model.use, inputs: [part, x], outputs: y}
        replay: [look, step, use]
    """
    with case.refused(HazardError, "region 'use'", "'part'", "state 'a'", "region 'step'"):
        case.open(model, spec)
    runner = case.open(model.replace("return a[:1]", "return a[:1].clone()"), spec)
    assert [runner.run(x=torch.zeros(2))["y"].tolist() for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.case("C22")
def test_an_eager_region_that_exchanges_two_states_equals_eager(case):
    runner = case.open(
        """
        def swap(self, a, b):
            return b, a

        def forward(self, x, a, b):
            return a * 10 + b + x
        """,
        """
        buffers:
          x: {shape: [], dtype: float32}
          a: {role: state, shape: [], dtype: float32, init: 1}
          b: {role: state, shape: [], dtype: float32, init: 2}
        regions:
          swap: {call: model.swap, inputs: [a, b], outputs: [a, b], eager: true}
          main: {call: model, inputs: [x, a, b], outputs: y}
        replay: [swap, main]
        """,
    )
    assert [runner.run(x=torch.zeros(()))["y"].item() for _ in range(3)] == [21, 12, 21]


@pytest.mark.case("C22")
def test_views_and_shifts_of_a_state_written_back_to_it_equal_eager(case):
    runner = case.open(
        "def forward(self, x, ring): ring = torch.cat([ring[1:], x[None]]); return ring.mean(0), ring",
        """
        buffers:
          x: {shape: [2], dtype: float32}
          ring: {role: state, shape: [3, 2], dtype: float32, init: 0}
        regions:
          main: {call: model, inputs: [x, ring], outputs: [y, ring]}
        replay: [main]
        """,
    )
    ring = torch.zeros(3, 2)
    for _ in range(5):
        x = torch.randn(2)
        ring = torch.cat([ring[1:], x[None]])
        assert torch.equal(runner.run(x=x)["y"], ring.mean(0))
    flipped = case.open(
        "def forward(self, x, ring): return x * 1, ring.flip(0), ",
        """
        buffers:
          x: {shape: [2], dtype: float32}
          ring: {role: state, shape: [3], dtype: float32, init: [1, 2, 3]}
        regions:
          main: {call: model, inputs: [x, ring], outputs: [y, ring]}
        replay: [main]
        """,
    )
    flipped.run(x=torch.zeros(2))
    assert flipped.state["ring"].tolist() == [3, 2, 1]


@pytest.mark.case("C22")
def test_an_overlapping_view_of_a_state_written_back_to_it_equals_eager(case):
    runner = case.open(
        "def forward(self, x, ring): return x * 1, ring.view(2, 2).t().reshape(4), ring.as_strided((4,), (1,))",
        """
        buffers:
          x: {shape: [2], dtype: float32}
          ring: {role: state, shape: [4], dtype: float32, init: [1, 2, 3, 4]}
        regions:
          main: {call: model, inputs: [x, ring], outputs: [y, ring, same]}
        replay: [main]
        """,
    )
    runner.run(x=torch.zeros(2))
    assert runner.state["ring"].tolist() == [1, 3, 2, 4]


@pytest.mark.case("C22")
def test_a_transposed_view_of_a_state_written_back_to_it_equals_eager(case):
    runner = case.open(
        "def forward(self, x, m): return x * 1, m.t()",
        """
        buffers:
          x: {shape: [2], dtype: float32}
          m: {role: state, shape: [3, 3], dtype: float32, init: [[1, 2, 3], [4, 5, 6], [7, 8, 9]]}
        regions:
          main: {call: model, inputs: [x, m], outputs: [y, m]}
        replay: [main]
        """,
    )
    m = runner.state["m"]
    for _ in range(3):
        runner.run(x=torch.zeros(2))
        m = m.t()
        assert torch.equal(runner.state["m"], m)


KINDS = """
    import dataclasses
    from collections import OrderedDict, namedtuple
    from transformers.modeling_outputs import BaseModelOutputWithPast

    Pair = namedtuple("Pair", "a b")

    @dataclasses.dataclass
    class Point:
        x: torch.Tensor
        more: object = None

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        x: torch.Tensor
        point: Point

    @dataclasses.dataclass(slots=True)
    class Slotted:
        x: torch.Tensor

    class Config(dict):
        pass

    class Unknown:
        def __init__(self, x):
            self.x = x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            y = x * 2
            return RETURN
"""
RETURNS = {
    "a dict with a None": "{'y': y, 'none': None}",
    "a namedtuple": "Pair(y, x + 1)",
    "a list in a dict": "{'ys': [y, x + 1]}",
    "a dataclass": "Point(y)",
    "a dataclass with a nested None": "Point(y, {'a': None, 'b': [None, x + 1]})",
    "a frozen dataclass": "Frozen(y, Point(x + 1))",
    "a dataclass with slots": "Slotted(y)",
    "an int leaf": "{'y': y, 'count': 3}",
    "every plain leaf": "(y, 1, 2.5, True, 'text', None, 1j, x.shape, x.dtype, x.device)",
    "the same tensor twice": "(y, y)",
    "the same tensor in two structures": "{'a': y, 'b': [y]}",
    "an ordered dict": "OrderedDict(b=y, a=x + 1)",
    "a subclass of dict": "Config(y=y)",
    "a ModelOutput": "BaseModelOutputWithPast(last_hidden_state=y, hidden_states=(y, x + 1))",
    "nested tuples": "((y, (x + 1,)), ())",
    "an empty dict beside": "(y, {})",
    "integer keys": "{0: y, 1: x + 1}",
    "an empty tensor": "(y, y[:0], y.new_zeros(0, 3))",
    "a bool tensor": "(y > 0, y.isnan())",
    "a complex tensor": "torch.complex(y, x)",
    "a 0-d tensor": "y.sum()",
    "an expanded tensor": "y[:, None].expand(2, 3)",
    "a view of an intermediate": "(y, y[1:], y.flip(0)[:1])",
    "the input": "x",
    "a view of the input": "x[1:]",
    "the input and a result": "(x, y)",
    "a parameter": "(y, self.weight)",
    "a view of a parameter": "self.weight[1:]",
    "a conjugate": "torch.complex(y, x).conj()",
    "a negative view": "torch.complex(y, x).conj().imag",
    "a transposed intermediate": "(y[:, None] * x).t()",
    "a torch return type": "torch.max(y[None], 1)",
}


def same(got, want):
    """The same structure, types and values."""
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert torch.equal(got, want)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for mine, theirs in zip(got, want, strict=True):
            same(mine, theirs)
    elif dataclasses.is_dataclass(want):
        for field in dataclasses.fields(want):
            same(getattr(got, field.name), getattr(want, field.name))
    else:
        assert got == want


@pytest.mark.case("C23")
@pytest.mark.parametrize("returned", RETURNS.values(), ids=RETURNS.keys())
def test_structure_types_and_values_of_three_results_in_a_row_equal_eager(case, returned):
    runner = case.open(KINDS.replace("RETURN", returned), SPEC)
    eager = case.eager()
    kinds = runner.model.forward.__func__.__globals__
    eager.forward.__func__.__globals__.update(
        {name: kinds[name] for name in ("Pair", "Point", "Frozen", "Slotted", "Config")}
    )
    inputs = [torch.randn(2) for _ in range(3)]
    results = [runner.run(x=x)["y"] for x in inputs]
    for x, got in zip(inputs, results, strict=True):
        want = eager(x)
        same(got, torch.Tensor(want.data) if isinstance(want, torch.nn.Parameter) else parameters_as_tensors(want))


def parameters_as_tensors(want):
    """A replay hands out copies: of a parameter, a plain tensor."""
    if type(want) is tuple:
        return tuple(item.detach() if isinstance(item, torch.nn.Parameter) else item for item in want)
    return want


@pytest.mark.case("C23")
def test_the_same_tensor_twice_is_one_tensor_twice(case):
    runner = case.open("def forward(self, x): y = x * 2; return {'a': y, 'b': [y]}", SPEC)
    got = runner.run(x=torch.ones(2))["y"]
    assert got["a"] is got["b"][0]


@pytest.mark.case("C23")
@pytest.mark.parametrize("returned", ["Unknown(y)", "{'a': Unknown(y)}", "iter([y])", "(v for v in [y])", "lambda: y"])
def test_a_type_that_cannot_be_put_together_again_is_refused_by_name(case, returned):
    with case.refused(CaptureError, "region 'main'", "output 'y'") as caught:
        case.open(KINDS.replace("RETURN", returned), SPEC)
    assert any(name in str(caught.value) for name in ("Unknown", "iterator", "generator", "function"))


@pytest.mark.case("C23")
@pytest.mark.parametrize("returned", ["(y, float(self.n))", "(y, {'n': self.n})", "(y, f'{self.n}')"])
def test_a_host_value_in_a_result_that_changes_between_runs_is_refused(case, returned):
    model = f"""
        import io

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.file = io.BytesIO(bytes(99))

            @property
            def n(self):
                return len(self.file.read(1)) * self.file.tell()

            def forward(self, x):
                y = x * 2
                return {returned}
    """
    with case.refused(HazardError, "region 'main'", "'y'"):
        case.open(model, SPEC)


@pytest.mark.case("C23")
def test_a_call_that_only_updates_a_state_returns_its_none(case):
    runner = case.open(
        "def forward(self, x, s): s.add_(x)",
        """
        buffers:
          x: {shape: [2], dtype: float32}
          s: {role: state, shape: [2], dtype: float32, init: 0}
        regions:
          main: {call: model, inputs: [x, s], outputs: y}
        replay: [main]
        """,
    )
    for count in (1, 2, 3):
        assert runner.run(x=torch.ones(2)) == {"y": None}
        assert runner.state["s"].tolist() == [count] * 2


@pytest.mark.case("C23")
@pytest.mark.parametrize(
    ("returned", "declared"),
    [("x[:1] * 1", "shape: [2], dtype: float32"), ("x.double()", "shape: [2], dtype: float32"),
     ("(x * 1, x)", "shape: [2], dtype: float32"), ("None", "shape: [2], dtype: float32"),
     ("3.0", "shape: [], dtype: float32"), ("x > 0", "shape: [2], dtype: uint8")],
)  # fmt: skip
def test_a_declared_output_that_is_something_else_is_refused_by_name(case, returned, declared):
    spec = SPEC.replace("x: {", f"y: {{role: output, {declared}}}\n      x: {{", 1)
    with pytest.raises(GraphSpecError, match="'y'"):
        case.open(f"def forward(self, x): return {returned}", spec)


@pytest.mark.case("C23")
def test_a_path_that_leads_nowhere_is_refused_with_what_is_there(case):
    with pytest.raises(CaptureError, match=r"'hidden'.*logits"):
        case.open("def forward(self, x): return {'logits': x * 1}", SPEC.replace("outputs: y", "outputs: {y: hidden}"))


ALIASES = {
    "two names for one tensor": "y = x * 2; return y, y",
    "a tensor and its view": "y = x * 2; return y, y[:1]",
    "overlapping views": "y = torch.cat([x, x]); return y[:3], y[1:]",
    "input and its view": "return x, x.view(2, 1)",
    "input under two names": "return x, x",
    "an in-place result and its base": "y = x * 2; z = y.add_(1); return y, z",
    "a detached result": "y = x * 2; return y, y.detach()",
    "a parameter and a result": "return self.w, self.w * x",
    "a buffer written after being returned": "b = self.b; y = b + x; b.add_(1); return y, b",
}


@pytest.mark.case("C23")
@pytest.mark.parametrize("body", ALIASES.values(), ids=ALIASES.keys())
def test_results_that_alias_each_other_or_the_model_hold_their_own_values(case, body):
    model = f"""
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([2.0, 3.0]))
            self.register_buffer("b", torch.zeros(2))

        def forward(self, x):
            {body}
    """
    runner = case.open(model, SPEC.replace("outputs: y", "outputs: [p, q]"))
    eager = case.eager()
    kept = []
    for _ in range(3):
        x = torch.randn(2)
        want = [value.detach().clone() for value in eager(x)]
        got = runner.run(x=x)
        kept.append((got, want))
        for mine, theirs in zip((got["p"], got["q"]), want, strict=True):
            assert torch.equal(mine, theirs)
    for got, want in kept:  # and they still do after the later runs
        for mine, theirs in zip((got["p"], got["q"]), want, strict=True):
            assert torch.equal(mine, theirs)
    for value in (got["p"], got["q"]):
        value.fill_(7)  # writing a result reaches neither the model nor the graph
    x = torch.randn(2)
    for mine, theirs in zip(runner.run(x=x).values(), eager(x), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.case("C23")
def test_a_state_returned_as_a_result_is_its_value_then(case):
    runner = case.open(
        "def forward(self, x, s): s.add_(x); return s, s[:1]",
        """
        buffers:
          x: {shape: [2], dtype: float32}
          s: {role: state, shape: [2], dtype: float32, init: 0}
        regions:
          main: {call: model, inputs: [x, s], outputs: [y, first]}
        replay: [main]
        """,
    )
    results = [runner.run(x=torch.ones(2)) for _ in range(3)]
    assert [got["y"].tolist() for got in results] == [[1, 1], [2, 2], [3, 3]]
    assert [got["first"].tolist() for got in results] == [[1], [2], [3]]


@pytest.mark.case("C23")
def test_an_output_with_a_static_copy_is_one_address_for_all_buckets(case):
    runner = case.open(
        "def forward(self, x): return x + 1",
        """
        dims: {batch: [1, 2, 4]}
        buffers:
          x: {shape: [batch, 2], dtype: float32}
          y: {role: output, shape: [batch, 2], dtype: float32, static: true, copy: false}
        regions:
          main: {call: model, inputs: [x], outputs: y}
        replay: [main]
        """,
    )
    addresses = {runner.run(x=torch.zeros(rows, 2))["y"].data_ptr() for rows in (1, 2, 3, 4)}
    assert len(addresses) == 1


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "complex64", "uint16", "bool"])
def test_results_of_rare_dtypes_are_captured(case, dtype):
    runner = case.open(f"def forward(self, x): return (x * 2).to(torch.{dtype})", SPEC)
    x = torch.tensor([1.0, 3.0])
    have, want = runner.run(x=x)["y"], (x * 2).to(getattr(torch, dtype))
    assert have.dtype == want.dtype
    assert have.tolist() == want.tolist()
