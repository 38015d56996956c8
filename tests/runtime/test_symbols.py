"""Where the value of a param goes in a region: right for every value, or a finding with its line and what to do."""

import importlib.util
import itertools
import textwrap

import pytest
import torch

import graphspec
from graphspec.errors import FindingsError, HazardError
from graphspec.runtime.symbols.interval import Interval, decided
from graphspec.runtime.symbols.node import Node
from graphspec.runtime.symbols.operations import node_of, symbol

FLOAT = "s: {type: float, default: 2.0}"
UNIT = "s: {type: float, min: 0, max: 1, default: 0.5}"
INT = "n: {type: int, min: 0, max: 8, default: 2}"
FLOATS = [2.0, 5.0, -3.5, 0.0, 1.0, 0.1]
INTS = [2, 3, 0, 8, 7]


class Workbench:
    """Opens a one-region model whose forward is ``body``, and holds its runs against the same code in eager."""

    def __init__(self, folder):
        self._folder, self._numbers, self._opened = folder, itertools.count(), []

    def open(self, body, params, *, updates="", inputs=None, takes=None, buffers="", model=None):
        names = [line.partition(":")[0].strip() for line in params.splitlines()]
        folder = self._folder / f"m{next(self._numbers)}"
        folder.mkdir()
        self.source = (
            "import math\nimport numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
            f"class Model(nn.Module):\n    def forward(self, {takes or ', '.join(['x', *names])}):\n"
            + textwrap.indent(body, " " * 8)
            + "\n"
        )
        (folder / "model.py").write_text(self.source)
        picks = "".join(f"\n      - {update}" for update in updates.splitlines())
        (folder / "m.yaml").write_text(
            "graphspec: 1\nname: m\nmodel: {factory: model.py:Model}\nparams:\n"
            + textwrap.indent(params, "  ")
            + f"\nbuffers:\n  x: {{shape: [4, 4], dtype: float32}}\n{textwrap.indent(buffers, '  ')}\n"
            + f"regions:\n  main:\n    call: model\n    inputs: {inputs or '[' + ', '.join(['x', *names]) + ']'}\n"
            + "    outputs: y\n"
            + (f"    updates:{picks}\n" if updates else "")
            + "replay: [main]\n"
        )
        self._path = folder / "model.py"
        runner = graphspec.open(folder / "m.yaml", model=model, device="cpu")
        self._opened.append(runner)
        return runner

    def eager(self):
        found = importlib.util.spec_from_file_location(f"eager{next(self._numbers)}", self._path)
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module.Model().eval()

    def right(self, body, params, values, **options):
        """Each of ``values`` (one a param, or a tuple) gives the bytes of eager, in turn and back again."""
        runner = self.open(body, params, **options)
        model = self.eager()
        names = [line.partition(":")[0].strip() for line in params.splitlines()]
        for value in (*values, values[0]):
            given = value if isinstance(value, tuple) else (value,)
            x = torch.randn(4, 4)
            want = model(x.clone(), *given)
            have = runner.run(x=x, **dict(zip(names, given, strict=True)))["y"]
            torch.testing.assert_close(have, want, rtol=1e-6, atol=1e-6, equal_nan=True)

    def refused(self, body, params, code, *words, at=None, **options):
        """Opening gives a finding of ``code`` with ``words`` at the line that holds ``at``; returns all findings."""
        with pytest.raises(FindingsError) as caught:
            self.open(body, params, **options)
        found = [finding for finding in caught.value.diagnostics if finding.code == code]
        assert found, str(caught.value)
        text = "\n".join(map(str, found))
        assert all(word in text for word in words), text
        assert all(finding.hint for finding in found), text
        if at is not None:
            (line,) = [n for n, source in enumerate(self.source.splitlines(), 1) if at in source]
            assert line in {finding.line for finding in found}, text
        return caught.value.diagnostics

    def close(self):
        for runner in self._opened:
            runner.close()


@pytest.fixture
def bench(tmp_path):
    made = Workbench(tmp_path)
    torch.manual_seed(3)
    with torch.no_grad():
        yield made
    made.close()


def update(op, arg, param="s", **more):
    rest = "".join(f", {key}: {value}" for key, value in more.items())
    return f'{{op: "aten::{op}", arg: {arg}, from: {param}{rest}}}'


# -- what may be declared under updates

EXACT = {
    "x*s": ("return x * s", update("mul", "other")),
    "s*x": ("return s * x", update("mul", "other")),
    "x+s": ("return x + s", update("add", "other")),
    "s-x": ("return s - x", update("rsub", "other")),
    "x/s": ("return x / s", update("div", "other")),
    "s/x": ("return s / x", update("mul", "other")),
    "in place": ("y = x.clone()\ny.mul_(s)\nreturn y", update("mul_", "other")),
    "clamp": ("return torch.clamp(x, max=s)", update("clamp", "max")),
    "alpha": ("return torch.add(x, x, alpha=s)", update("add", "alpha")),
    "beta": ("return torch.addmm(x, x, x, beta=s)", update("addmm", "beta")),
    "value": ("return x.addcmul(x, x, value=s)", update("addcmul", "value")),
    "full": ("return torch.full((2,), s)", update("full", "fill_value")),
    "full_like": ("return torch.full_like(x, s)", update("full_like", "fill_value")),
    "new_full": ("return x.new_full((2,), s)", update("new_full", "fill_value")),
    "where": ("return torch.where(x > 0, s, x)", update("scalar_tensor", "s")),
    "masked_fill": ("return x.masked_fill(x > 0, s)", update("masked_fill", "value")),
    "comparison": ("return torch.where(x > s, x, -x)", update("gt", "other")),
    "lerp": ("return x.lerp(-x, s)", update("lerp", "weight")),
    "leaky_relu": ("return F.leaky_relu(x, s)", update("leaky_relu", "negative_slope")),
    "pad": ("return F.pad(x, (1, 1), value=s)", update("constant_pad_nd", "value")),
    "remainder": ("return x % (s)", update("remainder", "other")),
    "foreach": ("return torch._foreach_mul([x, x], s)[1]", update("_foreach_mul", "scalar")),
    "twice": ("return x * s + s", f"{update('mul', 'other')}\n{update('add', 'other')}"),
    "one of two calls": ("return (x * s) * 3.0", update("mul", "other", at="[0]")),
    "double": ("return x.double() * s", update("mul", "other")),
    "bfloat16": ("return x.bfloat16() * s", update("mul", "other")),
    "a check against None": ("return x * (s if s is not None else 1.0)", update("mul", "other")),
    "sdpa": (
        "q = x.view(1, 1, 4, 4)\nreturn F.scaled_dot_product_attention(q, q, q, scale=s)",
        update("_scaled_dot_product_flash_attention_for_cpu", "scale"),
    ),
    "an operator by name": (
        "return torch.ops.aten.leaky_relu(x, s)",
        update("leaky_relu", "negative_slope"),
    ),
}


@pytest.mark.parametrize(("body", "updates"), EXACT.values(), ids=EXACT.keys())
def test_an_argument_that_is_the_param_takes_each_new_value_once_declared(bench, body, updates):
    bench.right(body, FLOAT, FLOATS, updates=updates)


@pytest.mark.parametrize(("body", "updates"), EXACT.values(), ids=EXACT.keys())
def test_an_argument_that_is_the_param_and_undeclared_is_a_finding_with_the_update_to_add(bench, body, updates):
    findings = bench.refused(body, FLOAT, "GS511", "'s'", "from: s")
    missing = [finding for finding in findings if finding.code == "GS511"]
    declared = "\n".join(finding.hint.partition("updates: [")[2].removesuffix("]") for finding in missing)
    assert len(missing) == updates.count("op:")
    bench.right(body, FLOAT, FLOATS, updates=declared)  # what the finding says to add is what is right


def test_a_power_takes_each_exponent(bench):
    bench.right("return x.abs() ** s", FLOAT, [2.0, 3.0, 0.5, 0.0, -1.0], updates=update("pow", "exponent"))
    bench.right("return s ** x", FLOAT, [2.0, 0.5, 3.25], updates=update("pow", "self"))


def test_a_double_argument_is_followed_through_the_functions_of_torch(bench):
    body = "return F.layer_norm(x, (4,), eps=s)"
    bench.refused(body, UNIT, "GS511", "native_layer_norm", "arg: eps")
    bench.right(body, UNIT, [0.5, 0.25, 1.0, 0.001], updates=update("native_layer_norm", "eps"))


INT_EXACT = {
    "to a float": ("return x + n", update("add", "other", "n")),
    "times ints": ("return (x > 0).long() * n", update("mul", "other", "n")),
    "a float argument": ("return F.leaky_relu(x, n)", update("leaky_relu", "negative_slope", "n")),
    "a list of one": ("return x.roll(n, 0)", update("roll", "shifts", "n")),
    "a filled tensor": ("return torch.full((3,), n)", update("full", "fill_value", "n")),
}


@pytest.mark.parametrize(("body", "updates"), INT_EXACT.values(), ids=INT_EXACT.keys())
def test_an_int_param_takes_each_new_value_in_the_dtype_of_eager(bench, body, updates):
    bench.right(body, INT, INTS, updates=updates)
    bench.refused(body, INT, "GS511", "'n'", "from: n")


def test_an_int_given_for_a_float_param_is_that_float(bench):
    whole = "s: {type: float, default: 2}"
    runner = bench.open("return torch.full((2,), s)", whole, updates=update("full", "fill_value"))
    for value in (3, 4.5):
        y = runner.run(x=torch.ones(4, 4), s=value)["y"]
        assert y.dtype == torch.float32
        assert y.tolist() == [float(value)] * 2


def test_a_list_param_is_the_param_where_a_list_is_taken(bench):
    params = "w: {type: float, shape: [2], default: 2.0}"
    bench.right(
        "return torch._foreach_mul([x, x + 1], w)[1]", params, [[1.0, 2.0], [3.0, -4.0]],
        updates=update("_foreach_mul", "scalars", "w"),
    )  # fmt: skip
    bench.refused("return torch._foreach_mul([x, x], w)[1]", params, "GS511", "from: w")
    bench.refused("return torch._foreach_mul([x, x], w[::-1])[1]", params, "GS722", "`[w[1], w[0]]`")
    bench.refused("return torch._foreach_mul([x, x], [w[0], 1.0])[1]", params, "GS722", "`[w[0], 1.0]`")


def test_items_of_a_list_are_spread_over_the_calls_in_order_only(bench):
    params = "w: {type: float, shape: [2], default: 2.0}"
    each = update("mul", "other", "w", each="occurrence")
    bench.refused("return x * w[0] * w[1]", params, "GS511", "each: occurrence")
    bench.right("return x * w[0] * w[1]", params, [[2.0, 3.0], [-1.0, 5.0]], updates=each)
    bench.right("return x * w[0] + x * w[1]", params, [[2.0, 3.0], [-1.0, 5.0]], updates=each)
    bench.refused("return x * w[1] + x * w[0]", params, "GS510", "`w[1]`", updates=each)
    bench.refused("return x * w[0] + w[1]", params, "GS511", "'w[0]'", "a param of its own")


def test_two_params_of_one_value_are_told_apart(bench):
    params = "s: {type: float, default: 2.0}\nt: {type: float, default: 2.0}"
    right = f"{update('mul', 'other', 's')}\n{update('add', 'other', 't')}"
    crossed = f"{update('mul', 'other', 't')}\n{update('add', 'other', 's')}"
    bench.right("return x * s + t", params, [(2.0, 3.0), (-1.0, 0.0), (7.0, 7.0)], updates=right)
    findings = bench.refused("return x * s + t", params, "GS510", "from 't'", "from 's'", updates=crossed)
    assert len(findings) == 2


def test_numbers_inside_structured_arguments_are_followed(bench):
    inputs = "{x: x, given: {dict: {scales: {list: [s]}}}}"
    body = "return x * given['scales'][0]"
    bench.refused(body, FLOAT, "GS511", "from: s", inputs=inputs, takes="x, given")
    runner = bench.open(body, FLOAT, inputs=inputs, takes="x, given", updates=update("mul", "other"))
    for value in FLOATS:
        assert torch.equal(runner.run(x=torch.ones(4, 4), s=value)["y"], torch.full((4, 4), value))


def test_a_bool_may_be_a_factor(bench):
    bench.right("return x * b", "b: {type: bool, default: true}", [True, False], updates=update("mul", "other", "b"))


# -- what may not

EXPRESSIONS = {
    "s**2": "y = x * s**2",
    "s + 1": "y = x * (s + 1)",
    "2*s": "y = x * (2 * s)",
    "-s": "y = x * -s",
    "s/2": "y = x * (s / 2)",
    "abs(s)": "y = x * abs(s)",
    "sqrt(s)": "y = x * torch.sym_sqrt(s)",
    "1 - (s + 2)*s": "y = x.clamp(max=1 - (s + 2) * s)",
    "max(s, 0.7)": "y = x * torch.sym_max(s, 0.7)",
    "round(s, 1)": "y = x * round(s, 1)",
}


@pytest.mark.parametrize(("expression", "line"), EXPRESSIONS.items(), ids=EXPRESSIONS.keys())
@pytest.mark.parametrize("updates", ["", update("mul", "other")], ids=["undeclared", "declared"])
def test_an_expression_of_a_param_is_a_finding_that_names_it(bench, expression, line, updates):
    if "clamp" in line:
        updates = updates.replace("mul", "clamp").replace("other", "max")
    bench.refused(f"{line}\nreturn y", FLOAT, "GS722", f"`{expression}`", "'s'", "`from: s`", at=line, updates=updates)


def test_an_expression_of_an_int_param_is_named_too(bench):
    bench.refused("return x * (n + 1)", INT, "GS722", "`n + 1`")
    bench.refused("return x * sum(w)", "w: {type: int, shape: [3], default: 1}", "GS722", "`w[0] + w[1] + w[2]`")


def test_an_expression_of_two_params_names_both(bench):
    params = "s: {type: float, default: 2.0}\nt: {type: float, default: 2.0}"
    bench.refused("return x * (s * t)", params, "GS722", "`s*t`", "'s' and 't'")


READS = {
    "s > 1": ("y = x * 2 if s > 1 else x * 10", "branch on `s > 1`"),
    "bool of a comparison": ("y = x * (2.0 if bool(s > 1) else 2.0)", "branch on `s > 1`"),
    "max": ("y = x * max(s, 0.7)", "branch on `s < 0.7`"),
    "min": ("y = x * min(s, 99.0)", "branch on `s > 99`"),
    "truth": ("y = x * (s or 1.0)", "branch on `s`"),
    "and": ("y = x if s > 1 and s < 9 else -x", "branch on `s > 1`"),
    "while": ("y = x\n        while s > 9: y = -y; break", "branch on `s > 9`"),
    "assert": ("y = x; assert s < 99", "branch on `s < 99`"),
    "a key": ("y = x * {True: 1.0, False: 2.0}[s > 1]", "branch on `s > 1`"),
    "membership": ("y = x * (1.0 if s in (2.5, 3.5) else 2.0)", "branch on `s == 2.5`"),
    "int": ("y = x * int(s)", "needs `int(s)` as a Python int"),
    "float": ("y = x * float(s)", "needs `s` as a Python float"),
    "math": ("y = x * math.sqrt(s)", "needs `s` as a Python float"),
    "numpy": ("y = x * float(np.exp(np.float64(s)))", "needs `s` as a Python float"),
    "format": ("y = x * float(f'{s:.0f}')", "needs `s` as a Python float"),
    "text": ("y = x * float(str(s)[0])", "makes text of `s`"),
    "tensor": ("y = x * torch.tensor(s)", "makes a tensor of `s`"),
    "as_tensor": ("y = x * torch.as_tensor(s)", "makes a tensor of `s`"),
    "in a helper": ("y = (lambda v, k: v * 2 if k > 1 else v * 10)(x, s)", "branch on `s > 1`"),
    "of an expression": ("y = x * 2 if s * s > 1 else x * 10", "branch on `s*s > 1`"),
}


@pytest.mark.parametrize(("line", "said"), READS.values(), ids=READS.keys())
@pytest.mark.parametrize("updates", ["", update("mul", "other")], ids=["undeclared", "declared"])
def test_what_python_makes_of_a_param_is_a_finding_at_its_line(bench, line, said, updates):
    first = line.splitlines()[0]
    bench.refused(
        textwrap.dedent(f"        {line}\n        return y"), FLOAT, "GS512", said, "specialize: true"
        if "tensor" not in said else "from: s", at=first if "while" not in line else "while s", updates=updates,
    )  # fmt: skip


INT_READS = {
    "range": "y = sum(x for _ in range(n))",
    "a repeated list": "y = torch.stack([x] * n)",
    "an index of a list": "y = x * [1.0, 2.0, 3.0, 4.0][n]",
    "a key of a dict": "y = x * {2: 1.0, 3: 2.0}.get(n, 5.0)",
    "an index of a tensor": "y = x[n % 4] * 1",
    "a slice of a list": "y = x * sum([1.0, 2.0, 3.0][:n])",
}


@pytest.mark.parametrize("line", INT_READS.values(), ids=INT_READS.keys())
def test_an_int_that_python_needs_is_a_finding_at_its_line(bench, line):
    bench.refused(f"{line}\nreturn y", INT, "GS512", "'n'" if "%" in line else "`n`", at=line)


SIZES = {
    "slice": ("y = x[:n] * 2", "aten::slice"),
    "view": ("y = x.reshape(-1).view(n, -1) * 2", "aten::view"),
    "reshape": ("y = x.reshape(n, -1) * 2", "aten::"),
    "arange": ("y = torch.arange(n) * 2", "aten::arange"),
    "zeros": ("y = torch.zeros(n, 3) + 1", "aten::zeros"),
    "repeat": ("y = x.repeat(n, 1) * 2", "aten::repeat"),
    "expand": ("y = x[:1].expand(n, 4) * 2", "aten::expand"),
    "split": ("y = torch.stack(x.split(n)) * 2", "aten::split"),
    "eye": ("y = torch.eye(n) * 2", "aten::eye"),
    "topk": ("y = x.topk(n).values * 2", "aten::topk"),
    "narrow": ("y = x.narrow(0, 0, n) * 2", "aten::"),
    "an expression": ("y = x[: n + 1] * 2", "`n + 1`"),
}


@pytest.mark.parametrize(("line", "word"), SIZES.values(), ids=SIZES.keys())
def test_a_size_or_a_view_made_of_a_param_is_a_finding_at_its_line(bench, line, word):
    params = "n: {type: int, min: 1, max: 4, default: 2}"
    bench.refused(f"{line}\nreturn y", params, "GS513", word, at=line)


def test_an_update_that_would_change_a_size_is_refused_although_the_next_value_would_not(bench):
    params = "n: {type: int, min: 4, max: 9, default: 4}"
    body = "return torch.arange(0, n, 3) * 2"  # 4, 5 and 6 all give two items
    bench.refused(body, params, "GS513", "'end'", updates=update("arange", "end", "n"))


INSIDE_TORCH = {
    "the square root of a scale": "q = x.view(1, 1, 4, 4)\n"
    "y = torch.ops.aten._scaled_dot_product_attention_math(q, q, q, scale=s)[0]",
    "one minus a probability": "y = F.dropout(x, p=s)",
    "an item that is written": "y = x.clone(); y[0] = s",
}


@pytest.mark.parametrize("body", INSIDE_TORCH.values(), ids=INSIDE_TORCH.keys())
def test_what_torch_computes_of_a_param_on_the_host_is_a_finding(bench, body):
    params = "s: {type: float, min: 0, max: 1, default: 0.25}"
    with pytest.raises(HazardError, match=r"model\.py"):
        bench.open(f"{body}\nreturn y", params)


def test_torch_computing_a_number_of_calls_of_a_param_is_a_finding_even_where_two_values_agree(bench):
    params = "n: {type: int, min: 2, max: 4, default: 2}"  # chunks of 4 rows by 2 and by 3 are the same two views
    bench.refused("return x.chunk(n)[0] * 1", params, "GS722", "chunk", "'n'")


def test_an_argument_that_torch_never_uses_is_no_finding(bench):
    bench.right("return F.dropout(x, p=s, training=False) * 2", UNIT, [0.5, 0.0, 1.0])


def test_a_comparison_with_one_answer_over_the_whole_range_is_no_branch(bench):
    params = "s: {type: float, min: 1.5, max: 9, default: 2.0}"
    body = "return x * (2 if s > 1 and s * s < 99 else 10) * max(s, 0.7)"
    bench.right(body, params, [2.0, 1.5, 9.0], updates=update("mul", "other", at="[1]"))
    bench.refused(body.replace("0.7", "1.7"), params, "GS512", "`s < 1.7`", updates=update("mul", "other", at="[1]"))


def test_the_pad_of_a_list_counts_to_its_range(bench):
    params = "w: {type: int, shape: [2], min: 1, max: 9, pad: 0, default: 1}"
    bench.refused("return x * (2.0 if w[0] > 0 else 3.0)", params, "GS512", "`w[0] > 0`")


def test_a_branch_that_a_bool_hides_is_found(bench):
    params = "b: {type: bool, default: false}\ns: {type: float, default: 2.0}"
    body = "return x * s if (b and s > 1) else x * s"
    bench.refused(body, params, "GS512", "`b`", updates=update("mul", "other"))


def test_every_finding_of_a_region_comes_in_one_pass(bench):
    body = "y = x * s\nif s > 1:\n    y = y + 1\nreturn y * s**2"
    findings = bench.refused(body, FLOAT, "GS512", at="if s > 1")
    assert {finding.code for finding in findings} == {"GS511", "GS512", "GS722"}


# -- updates that do not meet the param


def test_an_update_that_would_overwrite_another_number_is_refused_with_the_occurrences_to_pick(bench):
    bench.refused("return x * s * 3.0", FLOAT, "GS510", "at: [0]", updates=update("mul", "other"))


def test_an_update_that_would_overwrite_a_tensor_is_refused_with_the_occurrences_to_pick(bench):
    bench.refused("return x * x * s", FLOAT, "GS510", "passes a tensor", "at: [1]", updates=update("mul", "other"))


def test_an_update_of_a_number_that_the_region_is_not_given_replaces_it(bench):
    runner = bench.open("return F.leaky_relu(x, 0.5)", UNIT, inputs="[x]", takes="x",
                        updates=update("leaky_relu", "negative_slope"))  # fmt: skip
    x = -torch.ones(4, 4)
    assert torch.equal(runner.run(x=x, s=0.25)["y"], x * 0.25)


# -- where symbols cannot be used

TYPED = {
    "raises": "if not isinstance(s, float): raise TypeError('a float, please')",
    "converts": "if not isinstance(s, float): s = float(s)",
    "asserts": "assert type(s) is float",
    "takes another way": "if not isinstance(s, float): return -x",
    "has no such method": "s = s if isinstance(s, float) else s.item()",
}


@pytest.mark.parametrize("look", TYPED.values(), ids=TYPED.keys())
def test_a_model_that_looks_at_the_type_of_a_number_is_not_blamed_for_a_symbol(bench, look):
    bench.right(f"{look}\nreturn x * s", FLOAT, FLOATS, updates=update("mul", "other"))
    bench.refused(f"{look}\nreturn x * s", FLOAT, "GS511", "from: s")


@pytest.mark.parametrize("look", [TYPED["raises"], TYPED["converts"], TYPED["asserts"]])
@pytest.mark.parametrize("use", ["x * (2 if s > 1 else 10)", "x * max(s, 0.7)", "x * 2 if s > 1 else -x", "x * s**2"])
def test_where_no_symbol_works_many_values_are_tried(bench, look, use):
    for updates in ("", update("mul", "other")):
        with pytest.raises(HazardError, match=r"model\.py:"):
            bench.open(f"{look}\nreturn {use}", FLOAT, updates=updates)


def test_one_param_that_takes_no_symbol_does_not_hide_the_others(bench):
    params = "s: {type: float, default: 2.0}\nt: {type: float, default: 3.0}"
    updates = f"{update('mul', 'other', 's')}\n{update('add', 'other', 't')}"
    body = "assert isinstance(t, float)\nreturn x * {} + t"
    bench.right(body.format("s"), params, [(2.0, 3.0), (-1.0, 0.5)], updates=updates)
    bench.refused(body.format("max(s, 0.7)"), params, "GS512", "`s < 0.7`", updates=updates)


def test_a_param_kept_in_an_attribute_is_followed_there_and_is_a_finding(bench):
    body = "self.s = s\nreturn x * 2 if self.s > 1 else x * 10"
    bench.refused(body, FLOAT, "GS512", "`s > 1`", at="self.s > 1")
    bench.refused("self.s = s\nreturn x * self.s", FLOAT, "GS511", "from: s", at="x * self.s")
    bench.right("self.s = s\nreturn x * self.s", FLOAT, (0.5, 2.0, 3.0), updates=update("mul", "other"))


def test_tracing_leaves_no_symbol_behind(bench):
    class Keeper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.kinds = 0.0, {"nothing"}

        def forward(self, x, s):
            self.last = s
            self.kinds.add(type(s).__name__)
            return x * s

    model = Keeper().eval()
    with pytest.raises(HazardError):
        bench.open("return x", FLOAT, updates=update("mul", "other"), model=model)
    assert (model.last, model.kinds) == (0.0, {"nothing"})


def test_a_state_is_advanced_once_a_run_although_tracing_ran_the_region_more_often(bench):
    runner = bench.open(
        "c.add_(1)\nreturn x * s + c", FLOAT, inputs="[x, s, c]", takes="x, s, c", updates=update("mul", "other"),
        buffers="c: {role: state, shape: [1], dtype: float32, init: 0}",
    )  # fmt: skip
    for turn in (1.0, 2.0, 3.0):
        assert torch.equal(runner.run(x=torch.zeros(4, 4), s=7.0)["y"], torch.full((4, 4), turn))


# -- the same value as a tensor


@pytest.mark.parametrize(
    "body",
    ["return x * v", "return x * v**2", "return x * torch.clamp(v, min=0.7)",
     "return torch.where(v > 1, x * 2, x * 10)",
     "q = x.view(1, 1, 4, 4)\nreturn F.scaled_dot_product_attention(q * v * 2, q, q)"],
)  # fmt: skip
def test_the_device_copy_of_a_param_is_right_in_every_expression(bench, body):
    runner = bench.open(body, FLOAT, inputs="[x, v]", takes="x, v", buffers="v: {shape: [], dtype: float32, from: s}")
    model = bench.eager()
    for value in FLOATS:
        x = torch.randn(4, 4)
        torch.testing.assert_close(runner.run(x=x, s=value)["y"], model(x, torch.tensor(value)))


def test_a_specialized_param_and_a_text_are_no_symbols(bench):
    special = "s: {type: float, default: 2.0, specialize: true}"
    bench.right("assert type(s) is float\nreturn x * max(s, 0.7) if s > 1 else -x", special, [2.0, 0.5, 3.0])


# -- the parts


class _Noted(list):
    def read(self, kind, node, file):
        self.append((kind, node.text, file))


def _number(value, name="s", low=float("-inf"), high=float("inf")):
    reads = _Noted()
    node = Node(reads, value, name, params=frozenset({name}), origin=(name, ()), interval=Interval(low, high))
    return symbol(node), reads


@pytest.mark.parametrize(
    ("make", "text", "value"),
    [
        (lambda s: s * 2 + 1, "s*2 + 1", 7.0),
        (lambda s: (s + 1) * 2, "(s + 1)*2", 8.0),
        (lambda s: 2 - (s - 1), "2 - (s - 1)", 0.0),
        (lambda s: 2 / s, "2/s", 2 / 3),
        (lambda s: s**2, "s**2", 9.0),
        (lambda s: -s, "-s", -3.0),
        (lambda s: s % 2, "s%2", 1.0),
        (lambda s: s / (s * s), "s/(s*s)", 1 / 3),
    ],
)
def test_an_expression_reads_as_python_and_has_the_value_python_gives(make, text, value):
    number, reads = _number(3.0)
    node = node_of(make(number))
    assert (node.text, node.value, node.origin) == (text, value, None)
    assert not reads


@pytest.mark.parametrize("make", [lambda s: s * 1, lambda s: s / 1, lambda s: +s])
def test_an_expression_that_changes_nothing_is_still_the_param(make):
    assert node_of(make(_number(3.0)[0])).origin == ("s", ())


def test_a_long_expression_is_cut():
    number, _ = _number(1)
    total = number
    for _ in range(5000):
        total = total + number
    assert len(node_of(total).text) <= 80
    assert node_of(total).value == 5001


@pytest.mark.parametrize(
    ("comparison", "one", "other", "answer"),
    [
        ("lt", (0, 1), (2, 3), True), ("lt", (2, 3), (0, 2), False), ("lt", (0, 2), (2, 3), None),
        ("le", (0, 2), (2, 3), True), ("le", (3, 4), (0, 2), False), ("gt", (2, 3), (0, 1), True),
        ("ge", (2, 3), (0, 2), True), ("eq", (0, 1), (2, 3), False), ("eq", (1, 1), (1, 1), True),
        ("ne", (0, 1), (2, 3), True), ("ne", (0, 1), (1, 3), None), ("add", (0, 1), (2, 3), None),
    ],
)  # fmt: skip
def test_a_comparison_is_decided_only_where_every_pair_of_values_agrees(comparison, one, other, answer):
    assert decided(comparison, Interval(*one), Interval(*other)) is answer


def test_intervals_hold_every_value_of_an_expression():
    number, _ = _number(2.0, low=-1.0, high=4.0)
    makes = (lambda s: s * s - 3, lambda s: -s + 2 * s, lambda s: abs(s) * 3, lambda s: torch.sym_max(s, 1.0))
    for make in makes:
        interval = node_of(make(number)).interval
        assert all(interval.low <= make(-1.0 + step / 20) <= interval.high for step in range(101))
