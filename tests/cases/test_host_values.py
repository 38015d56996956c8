"""A value read on the host, or a size that depends on data, would be frozen at capture: it is refused by line."""

import pytest
import torch

from graphspec.errors import CaptureError, HazardError

SPEC = """
    buffers:
      x: {shape: [4], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""


@pytest.mark.case("C01")
def test_a_branch_on_a_value_is_refused_with_region_operator_line_and_fix(case):
    model = """
        def forward(self, x):
            return x * 2 if (x > 0).all() else x * 10
    """
    with case.refused(HazardError, "region 'main'", "GS701", "__bool__", "torch.where") as caught:
        case.open(model, SPEC)
    assert case.line("if (x > 0).all()") in str(caught.value)


READS = {
    "tolist": "k = x.tolist()[0]",
    "numpy": "k = float(x.numpy()[0])",
    "numpy of a detached tensor": "k = float(x.detach().numpy().sum())",
    "numpy asarray": "import numpy; k = float(numpy.asarray(x)[0])",
    "numpy ufunc": "import numpy; k = float(numpy.sin(x)[0])",
    "format": "k = float(f'{x[0]}')",
    "format with a spec": "k = float(f'{x[0]:.3f}')",
    "percent format": "k = float('%f' % x[0])",
    "str": "k = len(str(x))",
    "repr": "k = len(repr(x))",
    "print": "print(x); k = 1",
    "equal": "k = 1.0 if torch.equal(x, x * 1) else 2.0",
    "allclose": "k = 1.0 if torch.allclose(x, x * 1) else 2.0",
    "item": "k = x[0].item()",
    "item of a sum": "k = x.sum().item()",
    "float": "k = float(x[0])",
    "int": "k = int(x[0])",
    "complex": "k = complex(x[0]).real",
    "bool": "k = 1.0 if x.sum() > 0 else 2.0",
    "and": "k = 1.0 if x[0] > 0 and x[1] > 0 else 2.0",
    "not": "k = 1.0 if not x[0] > 0 else 2.0",
    "assert": "assert x.sum() < 1e9; k = 1.0",
    "while": "k = 1.0\nwhile x.sum() > 1e9: k += 1",
    "index": "k = [1.0, 2.0, 3.0, 4.0][x.argmax()]",
    "range": "k = float(sum(range(x.argmax())))",
    "in": "k = 1.0 if 0.5 in x else 2.0",
    "in a list": "k = 1.0 if x[0] in [torch.tensor(1.0)] else 2.0",
    "max of Python": "k = max(x[0], x[1]) * 1.0",
    "min of Python": "k = min(list(x))",
    "sorted": "k = sorted(list(x))[0]",
    "math": "import math; k = math.exp(x[0])",
    "round": "k = float(round(float(x[0])))",
    "any of Python": "k = 1.0 if any(x > 0) else 2.0",
    "all of Python": "k = 1.0 if all(x > 0) else 2.0",
    "filter": "k = float(len([v for v in x if v > 0]))",
    "is_nonzero": "k = 1.0 if torch.is_nonzero(x[0]) else 2.0",
    "data_ptr through ctypes": "import ctypes; k = ctypes.c_float.from_address(x.data_ptr()).value",
    "dlpack": "import numpy; k = float(numpy.from_dlpack(x)[0])",
    "storage": "k = float(x.untyped_storage()[0])",
    "storage as a list": "k = float(x.untyped_storage().tolist()[0])",
    "iterating numbers": "k = sum(v.item() for v in x)",
    "deepcopy then item": "import copy; k = copy.deepcopy(x).sum().item()",
    "pickle": "import pickle; k = float(len(pickle.dumps(x)))",
    "save": "import io; torch.save(x, io.BytesIO()); k = 1.0",
    "hash of the bytes": "k = float(hash(x.numpy().tobytes()) % 7)",
    "a size from a value": "k = torch.ones(int(x.abs().sum()) + 1).sum()",
    "arange of a value": "k = torch.arange(x.abs().sum()).sum()",
    "full of a value": "k = torch.full((4,), x[0])",
    "linspace of a value": "k = torch.linspace(x[0], x[1], 4)",
    "clamp with an item": "k = x.clamp(min=x[0].item())",
    "slice by a value": "k = x[: x.argmax()].sum()",
    "split by a value": "k = x.tensor_split(torch.tensor([1, 2]))[0].sum()",
    "histc": "k = x.histc(4)",
    "one_hot": "k = F.one_hot(x.argmax()).sum()",
    "data": "k = x.data.sum().item()",
    "isclose": "k = 1.0 if torch.isclose(x, x).all() else 2.0",
    "match": "match bool(x[0] > 0):\n    case True: k = 1.0\n    case False: k = 2.0",
    "dict key": "k = {True: 1.0, False: 2.0}[bool(x[0] > 0)]",
    "lambda": "k = (lambda v: v.item())(x[0])",
    "nested function": "def inner(v):\n    return v.item()\nk = inner(x[0])",
    "generator": "k = next(v.item() for v in (x[0],))",
    "comprehension": "k = [v.item() for v in x[:1]][0]",
    "try": "try:\n    k = x[0].item()\nfinally:\n    pass",
    "walrus": "k = 1.0 if (n := x.sum()) > 0 else 2.0",
    "quantile check": "k = 1.0 if x.isnan().any() else 2.0",
    "torch.Size from a value": "k = x.expand(int(x.argmax()) + 1, 4).sum()",
    "no_grad block": "with torch.no_grad():\n    k = x[0].item()",
    "inference_mode block": "with torch.inference_mode():\n    k = x[0].item()",
    "vmap": "k = torch.vmap(lambda v: v * 2)(x).sum().item()",
    "torch function off": "with torch._C.DisableTorchFunction():\n    k = x[0].item()",
    "torch function subclass off": "with torch._C.DisableTorchFunctionSubclass():\n    k = x[0].item()",
    "autograd function": (
        "class Double(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, v):\n"
        "        return v * v[0].item()\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        return g\n"
        "k = Double.apply(x)"
    ),
    "checkpoint": (
        "from torch.utils.checkpoint import checkpoint\n"
        "k = checkpoint(lambda v: v * v[0].item(), x, use_reentrant=False)"
    ),
}


@pytest.mark.case("C02")
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_way_to_read_a_value_on_the_host_is_refused(case, read):
    body = "\n".join(f"    {line}" for line in (*read.splitlines(), "return x * k"))
    with case.refused((HazardError, CaptureError), "region 'main'", "model.py:"):
        case.open(f"def forward(self, x):\n{body}\n", SPEC)


@pytest.mark.case("C02")
def test_a_read_deep_inside_submodules_is_named_by_its_own_line(case):
    model = """
        class Inner(nn.Module):
            def forward(self, x):
                return x / x.max().item()

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList(Inner() for _ in range(2))

            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                return x
    """
    with case.refused(HazardError, "region 'main'", "Tensor.item") as caught:
        case.open(model, SPEC)
    assert case.line("x.max().item()") in str(caught.value)


@pytest.mark.case("C02")
def test_all_host_reads_of_a_region_are_reported_at_once(case):
    model = """
        def forward(self, x):
            a = x[0].item()
            b = x.tolist()
            return x * a * b[1]
    """
    with case.refused(HazardError) as caught:
        case.open(model, SPEC)
    assert len(caught.value.diagnostics) == 2
    assert {finding.line for finding in caught.value.diagnostics} == {
        int(case.line(text).split(":")[1]) for text in ("x[0].item()", "x.tolist()")
    }


MASKED = """
    buffers:
      h: {shape: [2, 3, 4], dtype: float32}
      mask: {shape: [2, 3], dtype: bool}
    regions:
      pick: {call: model, inputs: [h, mask], outputs: y}
    replay: [pick]
"""


SIZED = {
    "mask index": "return h.reshape(-1, 4)[mask.reshape(-1)].sum()",
    "masked_select": "return h.masked_select(mask[..., None]).sum()",
    "nonzero": "return h.sum() + mask.nonzero().sum()",
    "nonzero as tuple": "return h.sum() + mask.nonzero(as_tuple=True)[0].sum()",
    "where with one argument": "return h.sum() + torch.where(mask)[0].sum()",
    "argwhere": "return h.sum() + torch.argwhere(mask).sum()",
    "unique": "return h.round().unique().sum()",
    "unique_consecutive": "return torch.unique_consecutive(h.round()).sum()",
    "repeat_interleave": "return h.reshape(-1, 4).repeat_interleave(mask.reshape(-1).long(), 0).sum()",
    "bincount": "return h.sum() + torch.bincount(mask.reshape(-1).long()).sum()",
    "mask write of a tensor": "h = h.clone(); h[mask] = h[mask] * 2; return h",
    "sparse": "return h.sum() + mask.to_sparse().values().sum()",
    "boxes of numpy": "import numpy; return h.sum() + float(numpy.nonzero(mask.numpy())[0].sum())",
}


@pytest.mark.case("C03")
@pytest.mark.parametrize("body", SIZED.values(), ids=SIZED.keys())
def test_a_result_whose_size_depends_on_data_is_refused_by_operator(case, body):
    with case.refused((HazardError, CaptureError), "region 'pick'", "model.py:"):
        case.open(f"def forward(self, h, mask):\n    {body}\n", MASKED)


@pytest.mark.case("C03")
def test_rows_picked_by_a_mask_are_refused_and_the_fix_is_to_multiply_or_use_where(case):
    model = """
        def forward(self, h, mask):
            return h.reshape(-1, 4)[mask.reshape(-1)].sum(0)
    """
    with case.refused(HazardError, "GS702", "region 'pick'", "aten::index", "multiply", "torch.where") as caught:
        case.open(model, MASKED)
    assert case.line("[mask.reshape(-1)]") in str(caught.value)


@pytest.mark.case("C03")
@pytest.mark.parametrize(
    "body",
    [
        "return (h * mask[..., None]).sum(dim=(0, 1))",
        "return torch.where(mask[..., None], h, 0.0).sum(dim=(0, 1))",
        "return h.masked_fill(~mask[..., None], 0.0).sum(dim=(0, 1))",
    ],
)
def test_the_masked_sum_with_a_full_size_equals_eager_for_every_mask(case, body):
    runner = case.open(f"def forward(self, h, mask):\n    {body}\n", MASKED)
    eager = case.eager()
    for _ in range(3):
        h, mask = torch.randn(2, 3, 4), torch.rand(2, 3) > 0.5
        assert torch.equal(runner.run(h=h, mask=mask)["y"], eager(h, mask))


MODES = """
    model: {{factory: model.py:Model, mode: {mode}}}
    buffers:
      x: {{shape: [4], dtype: float32}}
    regions:
      main: {{call: model, inputs: [x], outputs: y}}
    replay: [main]
"""
DROPS = """
    class Drop(nn.Module):
        def forward(self, x):
            if self.training:
                x = x[x.abs() >= 0].view_as(x)
            return x * 3

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = Drop()

        def forward(self, x):
            return self.drop(x) + 1
"""


@pytest.mark.case("C04")
def test_an_operator_that_only_train_mode_calls_does_not_disturb_an_eval_capture(case):
    runner = case.open(DROPS, MODES.format(mode="eval"))
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(4)
        assert torch.equal(runner.run(x=x)["y"], eager(x))


@pytest.mark.case("C04")
def test_an_operator_of_train_mode_is_refused_naming_the_submodule_in_that_mode(case):
    with case.refused(HazardError, "train mode of model.drop", "GS702") as caught:
        case.open(DROPS, MODES.format(mode="train"))
    assert case.line("x[x.abs() >= 0]") in str(caught.value)


@pytest.mark.case("C04")
def test_one_submodule_left_in_train_mode_by_its_owner_is_refused_by_name(case):
    model = DROPS.replace("return self.drop(x) + 1", "self.drop.training = True; return self.drop(x) + 1")
    with case.refused(HazardError, "model.drop"):
        case.open(model, MODES.format(mode="eval"))
