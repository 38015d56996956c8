"""What a run is given: exact shapes and dtypes, nothing broadcast, nothing cast in silence, aliases kept apart."""

import numpy as np
import pytest
import torch

from graphspec.errors import HazardError, InputError, SpecError

SPEC = """
    buffers:
      x: {shape: [4, 3], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
DOUBLE = "def forward(self, x): return x * 2"


@pytest.mark.case("C30")
@pytest.mark.parametrize(
    "shape", [[3], [1, 3], [], [2, 3], [4, 1], [4], [3, 4], [12], [1, 4, 3], [4, 3, 1], [0, 3], [4, 0], [5, 3]]
)
def test_a_wrong_shape_is_refused_with_both_shapes(case, shape):
    runner = case.open(DOUBLE, SPEC)
    with pytest.raises(InputError, match="input 'x'") as caught:
        runner.run(x=torch.zeros(shape))
    assert "[4, 3]" in str(caught.value)
    assert str(shape) in str(caught.value)
    assert runner.run(x=torch.ones(4, 3))["y"].tolist() == [[2.0] * 3] * 4


@pytest.mark.case("C30")
def test_tensors_without_elements_inside_a_region_equal_eager(case):
    runner = case.open("def forward(self, x): return x[:0].sum(0) + 1, torch.cat([x[:0], x * 2]), x[:, 3:]", SPEC)
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(4, 3)
        for got, want in zip(runner.run(x=x)["y"], eager(x), strict=True):
            assert got.shape == want.shape
            assert torch.equal(got, want)


DTYPES = ["int64", "int32", "int16", "int8", "uint8", "bool", "float16", "bfloat16", "float32", "float64", "complex64"]
TYPED = """
    buffers:
      x: {{shape: [2], dtype: {dtype}{more}}}
    regions:
      main: {{call: model, inputs: [x], outputs: y}}
    replay: [main]
"""
SAME = "def forward(self, x): return x.clone()"


@pytest.mark.case("C31")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_other_dtype_is_refused_with_both_dtypes(case, dtype):
    runner = case.open(SAME, TYPED.format(dtype=dtype, more=""))
    for other in DTYPES:
        value = torch.ones(2).to(getattr(torch, other))
        if other == dtype:
            assert torch.equal(runner.run(x=value)["y"], value)
            continue
        with pytest.raises(InputError, match="input 'x'") as caught:
            runner.run(x=value)
        assert f"torch.{dtype}" in str(caught.value)
        assert f"torch.{other}" in str(caught.value)


LOSSY = [
    ("int64", torch.tensor([1.9, 1.0])),
    ("float16", torch.tensor([1e6, 1.0])),
    ("float16", torch.tensor([0.1, 1.0])),
    ("int32", torch.tensor([2**31 + 5, 1])),
    ("bool", torch.tensor([0.3, 1.0])),
    ("bool", torch.tensor([2, 1])),
    ("bool", torch.tensor([2.0, 1.0])),
    ("bool", torch.tensor([float("nan"), 1.0])),
    ("uint8", torch.tensor([-1, 1])),
    ("uint8", torch.tensor([256, 1])),
    ("uint8", torch.tensor([-1, 1], dtype=torch.int8)),
    ("int8", torch.tensor([255, 1], dtype=torch.uint8)),
    ("float32", torch.tensor([1 + 2j, 1])),
    ("float32", torch.tensor([1 + 0j, 1])),
    ("int64", torch.tensor([float("nan"), 1.0])),
    ("int64", torch.tensor([float("inf"), 1.0])),
    ("int64", torch.tensor([2.0**63, 1.0], dtype=torch.float64)),
    ("float32", torch.tensor([2**24 + 1, 1])),
    ("float32", torch.tensor([2**63 - 1, 1])),
    ("float64", torch.tensor([2**53 + 1, 1])),
    ("float64", torch.tensor([2**63 - 1, 1])),
    ("float32", torch.tensor([1e300, 1.0], dtype=torch.float64)),
    ("float32", torch.tensor([0.1, 1.0], dtype=torch.float64)),
    ("float32", torch.tensor([1e-300, 1.0], dtype=torch.float64)),
    ("bfloat16", torch.tensor([257, 1])),
    ("complex64", torch.tensor([0.1, 1.0], dtype=torch.float64)),
    ("complex64", torch.tensor([2**24 + 1, 1])),
]


@pytest.mark.case("C31")
@pytest.mark.parametrize(("dtype", "value"), LOSSY, ids=lambda part: str(part).replace("\n", ""))
def test_a_cast_that_changes_a_value_is_refused_even_where_casts_are_allowed(case, dtype, value):
    runner = case.open(SAME, TYPED.format(dtype=dtype, more=", cast: true"))
    with pytest.raises(InputError, match="input 'x'") as caught:
        runner.run(x=value)
    assert f"torch.{dtype}" in str(caught.value)
    assert str(value.dtype) in str(caught.value)


EXACT = [
    ("int64", torch.tensor([2.0, -3.0])),
    ("float16", torch.tensor([2048, -3])),
    ("int32", torch.tensor([2**31 - 1, -(2**31)])),
    ("bool", torch.tensor([0, 1])),
    ("bool", torch.tensor([0.0, 1.0])),
    ("uint8", torch.tensor([255, 0])),
    ("float32", torch.tensor([2**24, 0])),
    ("float32", torch.tensor([float("nan"), float("-inf")], dtype=torch.float64)),
    ("float32", torch.tensor([True, False])),
    ("float64", torch.tensor([0.1, 1.0])),
    ("float64", torch.tensor([-(2**62), 2**53])),
    ("complex64", torch.tensor([0.5, -1.0])),
    ("int64", torch.tensor([True, False])),
]


@pytest.mark.case("C31")
@pytest.mark.parametrize(("dtype", "value"), EXACT, ids=lambda part: str(part).replace("\n", ""))
def test_a_cast_that_keeps_every_value_is_done_where_it_is_allowed(case, dtype, value):
    runner = case.open(SAME, TYPED.format(dtype=dtype, more=", cast: true"))
    y = runner.run(x=value)["y"]
    assert y.dtype == getattr(torch, dtype)
    assert torch.equal(y.nan_to_num(7.0), value.to(y.dtype).nan_to_num(7.0))


@pytest.mark.case("C31")
@pytest.mark.parametrize("value", [1.9, [1.0, 2.0], np.ones(2, dtype=np.float32), None, "x", torch.nn.Linear(1, 1)])
def test_what_is_no_tensor_is_refused_by_name(case, value):
    runner = case.open(SAME, TYPED.format(dtype="float32", more=""))
    with case.refused(InputError, "'x'"):
        runner.run(x=value)


@pytest.mark.case("C31")
@pytest.mark.parametrize("layout", ["to_sparse", "to_mkldnn"])
def test_a_tensor_of_another_storage_layout_is_refused_by_name(case, layout):
    runner = case.open(DOUBLE, SPEC)
    with pytest.raises(InputError, match="input 'x'"):
        runner.run(x=getattr(torch.ones(4, 3), layout)())


@pytest.mark.case("C31")
def test_a_tensor_of_another_device_is_refused_by_name(case):
    runner = case.open(DOUBLE, SPEC)
    with pytest.raises(InputError, match="input 'x'"):
        runner.run(x=torch.ones(4, 3, device="meta"))


@pytest.mark.case("C31")
@pytest.mark.parametrize("dtype", ["complex64", "complex128", "bool", "uint8", "int16", "bfloat16", "float64"])
def test_every_declared_dtype_runs_and_equals_eager(case, dtype):
    runner = case.open("def forward(self, x): return x.flip(0), (x == x).sum()", TYPED.format(dtype=dtype, more=""))
    eager = case.eager()
    for number in range(3):
        x = torch.tensor([number, 1]).to(getattr(torch, dtype))
        x = x * (1 + 2j) if x.is_complex() else x
        for got, want in zip(runner.run(x=x)["y"], eager(x), strict=True):
            assert torch.equal(got, want)


@pytest.mark.case("C31")
def test_a_conjugated_or_negated_view_is_taken_by_its_values(case):
    runner = case.open(SAME, TYPED.format(dtype="complex64", more=""))
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert runner.run(x=x.conj())["y"].tolist() == [1 - 2j, 3 + 4j]
    real = case.open(SAME, TYPED.format(dtype="float32", more=""))
    assert real.run(x=x.conj().imag)["y"].tolist() == [-2.0, 4.0]


VIEWS = {
    "transposed": lambda: torch.randn(3, 4).t(),
    "strided": lambda: torch.randn(8, 6)[::2, ::2],
    "expanded": lambda: torch.randn(1, 3).expand(4, 3),
    "flipped by a view of a view": lambda: torch.randn(6, 3)[1:5],
    "offset": lambda: torch.randn(13)[1:].view(4, 3),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(4, 3), requires_grad=False),
    "an inference tensor": lambda: torch.inference_mode()(torch.randn)(4, 3),
    "a tensor subclass": lambda: torch.randn(4, 3).as_subclass(type("Sub", (torch.Tensor,), {})),
}


@pytest.mark.case("C32")
@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS.keys())
def test_an_input_in_any_strides_is_taken_by_its_values(case, make):
    runner = case.open("def forward(self, x): return x * 2 + x.sum(0)", SPEC)
    eager = case.eager()
    for _ in range(3):
        x = make()
        y = runner.run(x=x)["y"]
        assert type(y) is torch.Tensor
        assert torch.equal(y, eager(torch.Tensor(x.contiguous())))


IMAGE = """
    buffers:
      x: {{shape: [2, 3, 4, 5], dtype: float32{more}}}
    regions:
      main: {{call: model, inputs: [x], outputs: y}}
    replay: [main]
"""
STRIDES = """
    def forward(self, x):
        # what a view of the memory shows depends on the strides
        return torch.as_strided(x, (x.numel(),), (1,)) * 1, x + 1, torch.full((4,), 0.0) + x.stride(1)
"""


@pytest.mark.case("C32")
def test_a_declared_channels_last_keeps_its_strides(case):
    runner = case.open(STRIDES, IMAGE.format(more=", layout: channels_last"))
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        got, want = runner.run(x=x)["y"], eager(x)
        for mine, theirs in zip(got, want, strict=True):
            assert torch.equal(mine, theirs)
            assert mine.stride() == theirs.stride()


@pytest.mark.case("C32")
def test_a_contiguous_image_for_a_channels_last_buffer_is_refused_or_converted_alike(case):
    runner = case.open(STRIDES, IMAGE.format(more=", layout: channels_last"))
    x = torch.randn(2, 3, 4, 5)
    try:
        got = runner.run(x=x)["y"]
    except InputError as error:
        assert "channels_last" in str(error)  # noqa: PT017
        return
    want = case.eager()(x.to(memory_format=torch.channels_last))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, want, strict=True))


@pytest.mark.case("C32")
def test_a_channels_last_image_for_a_contiguous_buffer_is_refused_by_name(case):
    runner = case.open(STRIDES, IMAGE.format(more=""))
    with case.refused(InputError, "input 'x'", "channels_last"):
        runner.run(x=torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    x = torch.randn(2, 3, 4, 5)
    assert torch.equal(runner.run(x=x)["y"][0], case.eager()(x)[0])


@pytest.mark.case("C32")
def test_an_image_in_another_permuted_format_gives_what_the_contiguous_one_gives(case):
    runner = case.open(STRIDES, IMAGE.format(more=""))
    eager = case.eager()
    x = torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0)
    try:
        got = runner.run(x=x)["y"]
    except InputError as error:
        assert "'x'" in str(error)  # noqa: PT017
        return
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, eager(x.contiguous()), strict=True))


@pytest.mark.case("C32")
def test_results_keep_the_strides_that_eager_gives_them(case):
    model = (
        "def forward(self, x): return x.transpose(1, 3) * 1, x.permute(0, 2, 3, 1), x[..., ::2], x.expand(2, 3, 4, 5)"
    )
    runner = case.open(model, IMAGE.format(more=""))
    x = torch.randn(2, 3, 4, 5)
    for got, want in zip(runner.run(x=x)["y"], case.eager()(x), strict=True):
        assert torch.equal(got, want)


@pytest.mark.case("C33")
@pytest.mark.parametrize(
    "make", [lambda: torch.ones(4, 3, requires_grad=True), lambda: torch.ones(4, 3, requires_grad=True) * 2]
)
def test_an_input_with_grad_history_is_refused_by_name(case, make):
    runner = case.open(DOUBLE, SPEC)
    with torch.enable_grad():
        x = make()
        with case.refused(InputError, "input 'x'", "grad", "detach"):
            runner.run(x=x)
        y = runner.run(x=x.detach())["y"]
    assert not y.requires_grad
    assert y.tolist() == (x * 2).tolist()


@pytest.mark.case("C33")
def test_a_run_in_grad_mode_fills_buffers_and_returns_results_without_autograd(case):
    model = """
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x)
    """
    with torch.enable_grad():
        runner = case.open(model, SPEC)
        eager = case.eager()
        for _ in range(3):
            x = torch.randn(4, 3)
            y = runner.run(x=x)["y"]
            assert not y.requires_grad
            assert torch.equal(y, eager(x))
        assert all(parameter.grad is None for parameter in runner.model.parameters())


OPTIONAL = """
    buffers:
      x: {shape: [4, 3], dtype: float32}
      mask: {shape: [4, 3], dtype: float32, optional: true}
    regions:
      main: {call: model, inputs: {x: x, mask: mask}, outputs: y}
    replay: [main]
"""
MASKED = "def forward(self, x, mask=None): return x + 1 if mask is None else (x + 1) * mask"


@pytest.mark.case("C34")
def test_an_optional_input_may_come_and_go_and_is_part_of_the_signature(case):
    runner = case.open(MASKED, OPTIONAL)
    eager = case.eager()
    for with_mask in (False, True, False, True, True, False):
        x, mask = torch.randn(4, 3), torch.rand(4, 3)
        given = {"mask": mask, "x": x} if with_mask else {"x": x}
        assert torch.equal(runner.run(**given)["y"], eager(**given))


@pytest.mark.case("C34")
def test_an_optional_input_given_as_none_is_absent(case):
    runner = case.open(MASKED, OPTIONAL)
    x, mask = torch.randn(4, 3), torch.rand(4, 3)
    assert torch.equal(runner.run(x=x, mask=mask)["y"], case.eager()(x, mask))
    assert torch.equal(runner.run(x=x, mask=None)["y"], case.eager()(x))


@pytest.mark.case("C34")
def test_an_input_that_the_signature_does_not_have_is_refused_by_name(case):
    runner = case.open(MASKED, SPEC)
    with case.refused(InputError, "'mask'"):
        runner.run(x=torch.ones(4, 3), mask=torch.ones(4, 3))


@pytest.mark.case("C34")
def test_an_input_of_the_signature_that_is_left_out_is_refused_by_name(case):
    runner = case.open(MASKED, OPTIONAL.replace(", optional: true", ""))
    with case.refused(InputError, "'mask'"):
        runner.run(x=torch.ones(4, 3))
    with case.refused(InputError, "'mask'"):
        runner.run(x=torch.ones(4, 3), mask=None)


@pytest.mark.case("C34")
def test_a_misspelt_input_is_refused_with_the_nearest_name(case):
    runner = case.open(MASKED, OPTIONAL)
    with case.refused(InputError, "'maks'", "'mask'"):
        runner.run(x=torch.ones(4, 3), maks=torch.ones(4, 3))


@pytest.mark.case("C34")
def test_the_order_of_keywords_does_not_matter(case):
    runner = case.open(
        "def forward(self, a, b): return a - 2 * b",
        """
        buffers:
          a: {shape: [3], dtype: float32}
          b: {shape: [3], dtype: float32}
        regions:
          main: {call: model, inputs: {b: b, a: a}, outputs: y}
        replay: [main]
        """,
    )
    a, b = torch.randn(3), torch.randn(3)
    assert torch.equal(runner.run(a=a, b=b)["y"], a - 2 * b)
    assert torch.equal(runner.run(b=b, a=a)["y"], a - 2 * b)


@pytest.mark.case("C34")
def test_a_held_input_keeps_its_content_until_it_is_given_again(case):
    runner = case.open(
        MASKED,
        OPTIONAL.replace("optional: true", "hold: true"),
    )
    eager = case.eager()
    x, mask = torch.randn(4, 3), torch.rand(4, 3)
    with case.refused(InputError, "'mask'"):
        runner.run(x=x)
    kept = mask.clone()
    assert torch.equal(runner.run(x=x, mask=mask)["y"], eager(x, kept))
    mask.fill_(float("nan"))  # the caller's tensor was copied
    assert torch.equal(runner.run(x=x)["y"], eager(x, kept))


COUNTED = """
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        self.n.add_(1)
        return x + self.n
"""
WARMUP = """
    buffers:
      x: {{shape: [2], dtype: float32}}
    regions:
      main: {{call: model, inputs: [x], outputs: y, warmup: {warmup}}}
    replay: [main]
"""


@pytest.mark.case("C35")
@pytest.mark.parametrize("warmup", [0, 1, 3, 7])
def test_a_counter_counts_runs_and_not_warmups(case, warmup):
    runner = case.open(COUNTED, WARMUP.format(warmup=warmup))
    assert runner.model.n.item() == 0
    for count in (1, 2, 3):
        assert runner.run(x=torch.zeros(2))["y"].tolist() == [count, count]
        assert runner.model.n.item() == count
    runner.recapture()
    assert runner.model.n.item() == 3
    assert runner.run(x=torch.zeros(2))["y"].tolist() == [4.0, 4.0]


MUTATIONS = {
    "in place": "x.mul_(2); return x.sum()",
    "through a view": "x[0].add_(1); return x.sum()",
    "through a slice assignment": "x[1:] = 0; return x.sum()",
    "with out": "torch.add(x, 1, out=x); return x.sum()",
    "through detach": "x.detach().zero_(); return x.sum()",
    "through data": "x.data.zero_(); return x.sum()",
    "with relu": "F.relu(x, inplace=True); return x.sum()",
    "with an augmented assignment": "x += 1; return x.sum()",
    "with copy_": "x.copy_(x.flip(0)); return x.sum()",
    "with foreach": "torch._foreach_mul_([x], 2.0); return x.sum()",
    "with dropout": "F.dropout(x, 0.5, True, inplace=True); return x.sum()",
    "with index_put": "x[torch.arange(2)] = 1.0; return x.sum()",
    "through numpy": "return x.sum() + float(x.numpy().fill(0) is None)",
    "with resize": "x.resize_(2, 2); return x.sum()",
    "with t_": "x.t_(); return x * 2",
    "with unsqueeze_": "x.unsqueeze_(0); return x * 2",
    "through a transposed view": "x.t().mul_(2); return x.sum()",
    "returned": "return x.mul_(2)",
    "as running statistics": "torch.batch_norm_update_stats(x * 1, x[0], x[1], 0.1); return x.sum()",
    "by a batch norm in training": "F.batch_norm(x * 1, x[0], x[1], training=True); return x.sum()",
}


@pytest.mark.case("C35")
@pytest.mark.parametrize("body", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_region_that_writes_into_its_input_is_refused_by_name(case, body):
    with case.refused(HazardError, "region 'main'"):
        case.open(f"def forward(self, x):\n    {body}\n", SPEC)


@pytest.mark.case("C35")
def test_in_place_operators_on_intermediates_and_views_of_them_equal_eager(case):
    model = """
        def forward(self, x):
            h = x * 2
            v = h[1:]
            v.add_(x[:-1])
            h.t()[0].mul_(3)
            h[h.shape[0] - 1] = 7
            flat = h.view(-1)
            flat[::2].neg_()
            return h, v, flat
    """
    runner = case.open(model, SPEC)
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(4, 3)
        for got, want in zip(runner.run(x=x)["y"], eager(x), strict=True):
            assert torch.equal(got, want)


TWO = """
    buffers:
      a: {shape: [3], dtype: float32}
      b: {shape: [3], dtype: float32}
      c: {role: state, shape: [3], dtype: float32, init: 1}
      p: {role: output, shape: [3], dtype: float32COPY}
      q: {role: output, shape: [3], dtype: float32COPY}
    regions:
      main: {call: model, inputs: [a, b, c], outputs: [p, q]}
    replay: [main]
"""
PAIR = "def forward(self, a, b, c): return a - 2 * b + c, a * b"


@pytest.mark.case("C22")
def test_one_tensor_for_two_inputs_gives_what_eager_gives(case):
    runner = case.open(PAIR, TWO.replace("COPY", ""))
    eager = case.eager()
    x = torch.randn(6)
    for a, b in ((x[:3], x[:3]), (x[:3], x[1:4]), (x[3:], x[:3]), (x[:3].flip(0), x[:3])):
        got = runner.run(a=a, b=b)
        want = eager(a, b, torch.ones(3))
        assert torch.equal(got["p"], want[0])
        assert torch.equal(got["q"], want[1])


@pytest.mark.case("C22")
@pytest.mark.parametrize("copy", ["", ", copy: false"])
def test_results_fed_back_and_swapped_give_what_eager_gives(case, copy):
    runner = case.open(PAIR, TWO.replace("COPY", copy))
    eager = case.eager()
    a, b = torch.randn(3), torch.randn(3)
    got = runner.run(a=a, b=b)
    want = dict(zip("pq", eager(a, b, torch.ones(3)), strict=True))
    for _ in range(3):
        got = runner.run(a=got["q"], b=got["p"])
        want = dict(zip("pq", eager(want["q"], want["p"], torch.ones(3)), strict=True))
        torch.testing.assert_close(got["p"] * 1, want["p"])
        torch.testing.assert_close(got["q"] * 1, want["q"])


@pytest.mark.case("C22")
def test_inputs_that_are_views_of_static_memory_are_taken_by_their_values(case):
    runner = case.open(PAIR, TWO.replace("COPY", ""))
    eager = case.eager()
    inside = runner._context.buffers
    a, b = torch.randn(3), torch.randn(3)
    runner.run(a=a, b=b)
    for first, second in ((inside.static["b"].largest, inside.static["a"].largest),) * 2:
        want = eager(first.clone(), second.clone(), torch.ones(3))
        got = runner.run(a=first, b=second)
        assert torch.equal(got["p"], want[0])


@pytest.mark.case("C22")
def test_a_state_given_as_an_input_is_taken_by_its_value(case):
    model = "def forward(self, a, c): return a + c, c + 1"
    runner = case.open(
        model,
        """
        buffers:
          a: {shape: [3], dtype: float32}
          c: {role: state, shape: [3], dtype: float32, init: 1}
        regions:
          main: {call: model, inputs: [a, c], outputs: [p, c]}
        replay: [main]
        """,
    )
    assert runner.run(a=runner.state["c"])["p"].tolist() == [2.0] * 3
    assert runner.run(a=runner.state["c"])["p"].tolist() == [4.0] * 3
    assert runner.run(a=runner.state.tensors("c")["c"])["p"].tolist() == [6.0] * 3


@pytest.mark.case("C30")
def test_the_callers_tensor_is_neither_kept_nor_changed(case):
    runner = case.open(DOUBLE, SPEC)
    x = torch.ones(4, 3)
    version = x._version
    y = runner.run(x=x)["y"]
    assert (x._version, x.tolist()) == (version, [[1.0] * 3] * 4)
    x.fill_(9)
    assert y.tolist() == [[2.0] * 3] * 4


@pytest.mark.case("C30")
def test_an_input_without_a_shape_is_refused_in_the_spec(case):
    with pytest.raises(SpecError, match="shape"):
        case.open(DOUBLE, SPEC.replace("shape: [4, 3], ", ""))
