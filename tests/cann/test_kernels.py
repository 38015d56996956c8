"""Every kernel against CPU PyTorch, over dtypes and strides. A new kernel is one row in the table."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import loader
import missing
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch_npu

F32, F16, BF16, I64, BOOL = torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool
FLOATS = (F32, F16, BF16)
NUMBERS = (*FLOATS, I64)
ANY = (*NUMBERS, BOOL)
TOLERANCE = {F32: 2e-5, F16: 4e-3, BF16: 3e-2}
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded")
ONE = LAYOUTS[:1]


@dataclass(frozen=True)
class Case:
    """One row: ``run(*inputs)`` on both devices. ``inputs`` are shapes, or ready CPU tensors passed as they are."""

    name: str
    run: Callable[..., Any]
    inputs: tuple[Any, ...] = ((4, 6),)
    dtypes: tuple[torch.dtype, ...] = FLOATS
    values: str = "any"  # or "positive", "unit" (inside 0..1), "small"
    layouts: tuple[str, ...] = LAYOUTS
    scale: float = field(default=1.0)  # of the tolerance
    composite: str = ""  # the operator without a kernel for which PyTorch's own composite runs


def gradient(f: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Gradients of the floating inputs of ``f``, against a fixed weighting of its output."""

    def run(*inputs: torch.Tensor) -> Any:
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
        out = f(*leaves)
        weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.device, out.dtype)
        wanted = [x for x in leaves if x.requires_grad]
        grads = torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True)
        return [grad for grad in grads if grad is not None]

    return run


def inplace(f: Callable[..., Any]) -> Callable[..., Any]:
    """The result of an in-place operator on a copy of the first input that keeps its strides."""

    def run(first: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        copy = torch.empty_strided(first.size(), first.stride(), dtype=first.dtype, device=first.device)
        if 0 in first.stride():
            copy = torch.empty(first.size(), dtype=first.dtype, device=first.device)
        copy.copy_(first)
        f(copy, *rest)
        return copy

    return run


INDEX = torch.tensor([2, 0, 3])
ROWS = torch.tensor([[0, 2, 1, 3, 0, 1], [3, 1, 0, 2, 2, 2]])
MASK = torch.tensor([[True, False, True, True, False, False]])
TARGET = torch.tensor([1, 0, 5, 3])
BAGGED, BAGS = torch.tensor([0, 2, 1, 5, 5, 3, 2, 4]), torch.tensor([0, 3, 3, 5])  # the second bag is empty

ELEMENTWISE = [
    *(Case(name, getattr(torch, name), dtypes=NUMBERS) for name in ("abs", "neg", "sign", "square", "positive")),
    *(
        Case(name, getattr(torch, name))
        for name in (
            *("exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "erf", "erfc", "floor", "ceil", "round"),
            *("trunc", "frac", "atan", "isfinite", "isnan", "signbit"),
        )
    ),
    *(
        Case(name, getattr(torch, name), values="positive")
        for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")
    ),
    *(Case(name, getattr(torch, name), values="unit") for name in ("asin", "acos")),
    *(
        Case(f"{name}_", inplace(getattr(torch.Tensor, f"{name}_")))
        for name in ("exp", "neg", "tanh", "sigmoid", "relu")
    ),
    Case("logical_not", torch.logical_not, dtypes=ANY),
    Case("bitwise_not", torch.bitwise_not, dtypes=(I64, BOOL)),
    Case("sqrt of integers", lambda x: torch.sqrt(x * x), dtypes=(I64,)),
    Case("clamp", lambda x: x.clamp(-1, 2), dtypes=NUMBERS),
    Case("clamp_min", lambda x: x.clamp_min(0.5), dtypes=FLOATS),
    Case("clamp_max_", inplace(lambda x: x.clamp_(max=1)), dtypes=NUMBERS),
    Case("clamp by tensors", torch.clamp, ((4, 6), (4, 6), (4, 6))),
    Case("nan_to_num", lambda x: torch.nan_to_num(x / 0, 1, 2, 3)),
]

PAIR = ((4, 6), (4, 6))
BROADCAST = ((4, 6), (6,))
BINARY = [
    *(
        Case(name, getattr(torch, name), PAIR, NUMBERS)
        for name in ("add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")
    ),
    *(Case(f"{name} broadcast", getattr(torch, name), BROADCAST, NUMBERS) for name in ("add", "mul", "lt")),
    *(Case(f"logical_{name}", getattr(torch, f"logical_{name}"), PAIR, ANY) for name in ("and", "or", "xor")),
    *(Case(f"bitwise_{name}", getattr(torch, f"bitwise_{name}"), PAIR, (I64, BOOL)) for name in ("and", "or", "xor")),
    Case("bitwise_and scalar", lambda x: x & 6, dtypes=(I64,)),
    Case("shift", lambda x: ((x * x) << 2) >> 1, dtypes=(I64,)),
    Case("div", torch.div, PAIR, NUMBERS, "positive"),
    Case("div scalar", lambda x: x / 3, dtypes=NUMBERS),
    Case("div_", inplace(lambda x, y: x.div_(y)), PAIR, values="positive"),
    Case("div floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), PAIR, (F32, I64), "positive"),
    Case("div trunc", lambda x: torch.div(x, 3, rounding_mode="trunc"), dtypes=(F32, I64)),
    Case("floor_divide", lambda x: x // 2, dtypes=(F32, I64)),
    Case("remainder", lambda x: x % 3, dtypes=(F32, I64)),
    Case("remainder tensor", torch.remainder, PAIR, (F32, I64), "positive"),
    Case("fmod", lambda x: torch.fmod(x, 3), dtypes=(F32, I64)),
    Case("pow scalar", lambda x: x**3, dtypes=NUMBERS),
    Case("pow half", lambda x: x**0.5, values="positive"),
    Case("pow tensor", torch.pow, PAIR, values="positive"),
    Case("pow of scalar", lambda x: 2**x),
    Case("rsub", lambda x: 1 - x, dtypes=NUMBERS),
    Case("scalar tensor", lambda x: x + torch.tensor(2.5)),
    Case("add alpha", lambda x, y: torch.add(x, y, alpha=2), PAIR, NUMBERS),
    Case("add_", inplace(lambda x, y: x.add_(y, alpha=-1)), BROADCAST, NUMBERS),
    Case("sub_ scalar", inplace(lambda x: x.sub_(2)), dtypes=NUMBERS),
    Case("mul_", inplace(lambda x, y: x.mul_(y)), BROADCAST, NUMBERS),
    Case("mixed dtypes", lambda x: x + torch.arange(6, device=x.device), dtypes=FLOATS),
    Case("integer with fraction", lambda x: x * 0.5, dtypes=(I64,)),
    Case("integer compared with fraction", lambda x: x > 0.5, dtypes=(I64,)),
    Case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), (*PAIR, (4, 6))),
    Case("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), (*PAIR, (4, 6)), values="positive"),
    Case("lerp", lambda x, y: torch.lerp(x, y, 0.3), PAIR),
    Case("lerp tensor", torch.lerp, (*PAIR, (4, 6)), values="unit"),
    Case("where", lambda x, y: torch.where(x > y, x, y), PAIR, NUMBERS),
    Case("where scalar", lambda x: torch.where(x > 0, x, 0), dtypes=NUMBERS),
    Case("isclose", lambda x, y: torch.isclose(x, y, atol=0.5), PAIR, (F32,)),
    Case("equal", lambda x: torch.tensor([torch.equal(x, x), torch.equal(x, x + 1)]), dtypes=NUMBERS),
]

COPIES = [
    *(
        Case(f"to {dtype}", lambda x, dtype=dtype: x.to(dtype), dtypes=ANY)
        for dtype in (F32, F16, BF16, I64, torch.int32, torch.uint8, BOOL)
    ),
    Case("contiguous", lambda x: x.contiguous(), dtypes=ANY),
    Case("clone", lambda x: x.clone(), dtypes=ANY),
    Case("copy_ strided", lambda x: torch.zeros(6, 4, dtype=x.dtype, device=x.device).t().copy_(x), dtypes=ANY),
    Case("fill_", inplace(lambda x: x.fill_(3)), dtypes=ANY),
    Case("fill_ tensor", inplace(lambda x: x.fill_(torch.tensor(2, device=x.device))), dtypes=NUMBERS),
    Case("zero_", inplace(lambda x: x.zero_()), dtypes=ANY),
    Case("zeros, ones, full", lambda x: (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 3)), dtypes=ANY),
    Case("masked_fill", lambda x, m: x.masked_fill(m, -2), ((4, 6), MASK), NUMBERS),
    Case("masked_fill inf", lambda x, m: x.masked_fill(m, float("-inf")), ((4, 6), MASK)),
    Case("masked_fill_ tensor", inplace(lambda x, m: x.masked_fill_(m, x.new_tensor(2))), ((4, 6), MASK), NUMBERS),
    Case("repeat", lambda x: x.repeat(2, 1, 3), dtypes=ANY),
    Case("tile", lambda x: torch.tile(x, (2,)), dtypes=ANY),
    Case("expand and add", lambda x: x[:, None].expand(4, 3, 6) + 1, dtypes=NUMBERS),
    Case("repeat_interleave", lambda x: x.repeat_interleave(2, dim=1), dtypes=NUMBERS),
    Case("cat", lambda x, y: torch.cat([x, y], 1), ((4, 6), (4, 2)), ANY),
    Case("cat many", lambda x: torch.cat([x, x[:1], x], 0), dtypes=ANY),
    Case("stack", lambda x, y: torch.stack([x, y], 1), PAIR, ANY),
    Case("split", lambda x: x.split([2, 4], 1), dtypes=ANY),
    Case("chunk and neg", lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1), dtypes=NUMBERS),
    Case("flip", lambda x: x.flip(0, 1), dtypes=NUMBERS),
    Case("roll", lambda x: x.roll(2, 1), dtypes=NUMBERS),
    Case("tril", lambda x: x.tril(), dtypes=ANY),
    Case("triu", lambda x: x.triu(1), dtypes=ANY),
    Case("pad", lambda x: F.pad(x, (1, 2, 0, 1), value=3), dtypes=NUMBERS),
]

GENERATED = [
    Case("arange", lambda x: torch.arange(7, device=x.device)),
    Case("arange float", lambda x: torch.arange(1, 2, 0.125, device=x.device)),
    Case("linspace", lambda x: torch.linspace(-1, 3, 9, device=x.device)),
    Case("eye", lambda x: torch.eye(3, 4, device=x.device)),
    Case("one_hot", lambda i: F.one_hot(i, 6), (TARGET,)),
]

REDUCTIONS = [
    *(
        Case(f"{f.__name__} {label}", lambda x, f=f, a=a: f(x, *a), dtypes=dtypes)
        for f, dtypes in ((torch.sum, ANY), (torch.mean, FLOATS), (torch.amax, NUMBERS), (torch.amin, NUMBERS))
        for label, a in (("all", ()), ("rows", (0,)), ("kept", (-1, True)), ("both", ((0, 1),)))
    ),
    Case("max", torch.max, dtypes=NUMBERS),
    Case("min", torch.min, dtypes=NUMBERS),
    Case("max dim", lambda x: torch.max(x, 1), dtypes=(F32, I64)),
    Case("min dim kept", lambda x: torch.min(x, 0, keepdim=True), dtypes=(F32, I64)),
    Case("argmax", lambda x: (x.argmax(), x.argmax(1), x.argmin(0, keepdim=True)), dtypes=(F32,)),
    Case("any, all", lambda x: (x.any(), x.any(1), x.all(0), x.all()), dtypes=ANY),
    Case("prod", lambda x: (x.prod(), x.prod(1)), dtypes=(F32,), values="unit"),
    Case("var", lambda x: (x.var(), x.var(1), x.var(0, correction=0)), dtypes=FLOATS),
    Case("std", lambda x: (x.std(), x.std(1)), dtypes=FLOATS),
    Case("var_mean", lambda x: torch.var_mean(x, 1), dtypes=FLOATS),
    Case("norm", lambda x: (x.norm(), torch.linalg.vector_norm(x, 1, dim=1)), dtypes=FLOATS),
    Case("logsumexp", lambda x: x.logsumexp(1)),
    Case("cumsum", lambda x: x.cumsum(1), dtypes=NUMBERS),
    Case("cumsum rows", lambda x: x.cumsum(0), dtypes=NUMBERS),
    Case("cumprod", lambda x: x.cumprod(1), dtypes=(F32,)),
    Case("sort", lambda x: torch.sort(x, 1), dtypes=(F32,), layouts=LAYOUTS[:3]),
    Case("sort descending", lambda x: torch.sort(x, 0, descending=True), dtypes=(F32,), layouts=LAYOUTS[:3]),
    Case("topk", lambda x: torch.topk(x, 3, 1), dtypes=(F32,)),
    Case("argsort", lambda x: torch.argsort(x, 1), dtypes=(F32,)),
]

MATMULS = [
    Case("mm", torch.mm, ((4, 6), (6, 5)), FLOATS),
    Case("matmul 3d", torch.matmul, ((2, 4, 6), (6, 5))),
    Case("matmul vector", torch.matmul, ((4, 6), (6,))),
    Case("bmm", torch.bmm, ((3, 4, 6), (3, 6, 5))),
    Case("matmul broadcast", torch.matmul, ((2, 1, 4, 6), (3, 6, 5))),
    Case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), ((4, 5), (4, 6), (6, 5))),
    Case("addmm bias", torch.addmm, ((5,), (4, 6), (6, 5))),
    Case("baddbmm", torch.baddbmm, ((3, 4, 5), (3, 4, 6), (3, 6, 5))),
    Case("addmv", torch.addmv, ((4,), (4, 6), (6,))),
    Case("dot", torch.dot, ((6,), (6,))),
    Case("outer", torch.outer, ((6,), (4,))),
    Case("linear", F.linear, ((2, 4, 6), (5, 6), (5,))),
    Case("linear without bias", F.linear, ((4, 6), (5, 6))),
    Case("linear grad", gradient(F.linear), ((4, 6), (5, 6), (5,)), scale=3),
    Case("bmm grad", gradient(torch.bmm), ((3, 4, 6), (3, 6, 5)), scale=3),
    Case("einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((2, 3, 4), (2, 5, 4))),
]


def npu_gelu(x: torch.Tensor) -> torch.Tensor:
    # F.gelu(approximate="tanh") is the exact form on torch_npu: it drops the argument.
    return torch_npu.npu_gelu(x, approximate="tanh") if x.is_npu else F.gelu(x, approximate="tanh")


ACTIVATIONS = [
    *(
        case
        for name, f in {
            "relu": F.relu,
            "gelu": F.gelu,
            "npu_gelu tanh": npu_gelu,
            "silu": F.silu,
            "sigmoid": torch.sigmoid,
            "tanh": torch.tanh,
            "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
            "elu": F.elu,
            "softplus": F.softplus,
            "hardtanh": F.hardtanh,
            "hardswish": F.hardswish,
            "hardsigmoid": F.hardsigmoid,
            "softmax": lambda x: F.softmax(x, -1),
            "softmax rows": lambda x: F.softmax(x, 0),
            "log_softmax": lambda x: F.log_softmax(x, -1),
            "mish": F.mish,
            "logsigmoid": F.logsigmoid,
            "glu": F.glu,
        }.items()
        for case in (Case(name, f), Case(f"{name} grad", gradient(f), scale=2))
    ),
    Case("prelu", F.prelu, ((4, 6), (6,))),
    Case("prelu grad", gradient(F.prelu), ((4, 6), (6,)), scale=2),
    Case("prelu grad one weight", gradient(F.prelu), ((4, 6), (1,)), scale=4),
    Case("prelu grad images", gradient(F.prelu), ((2, 3, 2, 4), (3,)), (F32,)),
    Case("softmax to float", lambda x: F.softmax(x, -1, dtype=F32)),
    Case("threshold", lambda x: F.threshold(x, 0.5, 7)),
]


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def npu_rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch_npu.npu_rms_norm(x, w, 1e-6)[0] if x.is_npu else rms(x, w)


def npu_swiglu(x: torch.Tensor) -> torch.Tensor:
    if x.is_npu:
        return torch_npu.npu_swiglu(x)
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def npu_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    if x.is_npu:
        return torch_npu.npu_rotary_mul(x, cos, sin)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def npu_add_rms(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
    if x.is_npu:
        out, _, total = torch_npu.npu_add_rms_norm(x, y, w, 1e-6)
        return out, total
    return rms(x + y, w), x + y


def batch_norm(*, training: bool) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        mean, var = torch.zeros_like(w), torch.ones_like(w)
        out = F.batch_norm(x, mean, var, w, b, training)
        return torch.cat([out.flatten(), mean, var])

    return run


NORMS = [
    Case("layer_norm", lambda x, w, b: F.layer_norm(x, (6,), w, b), ((2, 4, 6), (6,), (6,)), scale=3),
    Case("layer_norm plain", lambda x: F.layer_norm(x, (4, 6)), ((3, 4, 6),), scale=3),
    Case("layer_norm grad", gradient(lambda x, w, b: F.layer_norm(x, (6,), w, b)), ((4, 6), (6,), (6,)), scale=6),
    Case("rms_norm", lambda x, w: F.rms_norm(x, (6,), w, 1e-6), ((4, 6), (6,)), scale=3),
    Case("npu_rms_norm", npu_rms, ((2, 4, 6), (6,)), scale=3),
    Case("npu_rms_norm grad", gradient(npu_rms), ((4, 6), (6,)), scale=6),
    Case("npu_add_rms_norm", npu_add_rms, ((4, 6), (4, 6), (6,)), scale=4),
    Case("batch_norm train", batch_norm(training=True), ((3, 4, 2, 3), (4,), (4,)), (F32,)),
    Case("batch_norm eval", batch_norm(training=False), ((3, 4, 2, 3), (4,), (4,)), (F32,)),
    Case("batch_norm 1d", batch_norm(training=True), ((5, 4), (4,), (4,)), (F32,), layouts=LAYOUTS[:3]),
    Case("batch_norm grad", gradient(batch_norm(training=True)), ((3, 4, 2, 3), (4,), (4,)), (F32,), scale=20),
    Case("batch_norm eval grad", gradient(batch_norm(training=False)), ((3, 4, 2, 3), (4,), (4,)), (F32,), scale=5),
    Case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 3, 3), (4,), (4,)), scale=2),
    Case("group_norm plain", lambda x: F.group_norm(x, 3), ((2, 6, 5),), (F32,)),
    Case("group_norm grad", gradient(lambda x, w, b: F.group_norm(x, 2, w, b)), ((2, 4, 3, 3), (4,), (4,)), scale=8),
    Case("group_norm grad plain", gradient(lambda x: F.group_norm(x, 3)), ((2, 6, 5),), (F32,), scale=8),
    Case("group_norm grad of rows", gradient(lambda x: F.group_norm(x, 2)), ((3, 8),), (F32,), scale=8),
    Case("npu_swiglu", npu_swiglu),
    Case("npu_swiglu grad", gradient(npu_swiglu), scale=2),
    Case("npu_rotary_mul", npu_rotary, ((2, 3, 4, 8), (1, 3, 1, 8), (1, 3, 1, 8))),
]

INDEXING = [
    Case("index_select", lambda x, i: x.index_select(0, i), ((4, 6), INDEX), ANY),
    Case("index_select columns", lambda x, i: x.index_select(1, i), ((4, 6), INDEX), ANY),
    Case("index", lambda x, i: x[i], ((4, 6), INDEX), ANY),
    Case("index columns", lambda x, i: x[:, i], ((4, 6), INDEX), ANY),
    Case("index pairs", lambda x, i: x[i, i + 1], ((4, 6), INDEX), NUMBERS),
    Case("index split", lambda x, i: x[i, :, i], ((4, 3, 6), INDEX), NUMBERS),
    Case("index negative", lambda x, i: x[-i - 1], ((4, 6), INDEX), NUMBERS),
    Case("slices", lambda x: x[1:, ::2] + 1, dtypes=NUMBERS),
    Case("gather", lambda x, i: x.gather(0, i), ((4, 6), ROWS), ANY),
    Case("scatter", lambda x, i, y: x.scatter(0, i[:1], y), ((4, 6), ROWS, (2, 6)), NUMBERS),
    Case("scatter_ value", inplace(lambda x, i: x.scatter_(0, i, 5)), ((4, 6), ROWS), NUMBERS),
    Case("scatter_add", lambda x, i, y: x.scatter_add(0, i, y), ((4, 6), ROWS, (2, 6)), NUMBERS),
    Case("index_copy", lambda x, i, y: x.index_copy(0, i, y), ((4, 6), INDEX, (3, 6)), NUMBERS),
    Case("index_copy_", inplace(lambda x, i, y: x.index_copy_(1, i, y)), ((4, 6), INDEX, (4, 3)), NUMBERS),
    Case("index_add", lambda x, i, y: x.index_add(0, i, y, alpha=2), ((4, 6), INDEX, (3, 6)), NUMBERS),
    Case("index_fill", lambda x, i: x.index_fill(1, i, 7), ((4, 6), INDEX), NUMBERS),
    Case("index_put", lambda x, i, y: x.index_put((i,), y), ((4, 6), INDEX, (3, 6)), NUMBERS),
    Case("index_put accumulate", lambda x, i, y: x.index_put((i % 2,), y, True), ((4, 6), INDEX, (3, 6)), NUMBERS),
    Case("index_put pairs", inplace(lambda x, i: x.__setitem__((i, i), 9)), ((4, 6), INDEX), NUMBERS),
    Case("index_put mask", inplace(lambda x, m: x.__setitem__(m.expand(4, 6), 9)), ((4, 6), MASK), NUMBERS),
    Case("masked_select", lambda x, m: x.masked_select(m), ((4, 6), MASK), NUMBERS),
    Case("index by mask", lambda x: x[x > 0], dtypes=NUMBERS),
    Case("nonzero", torch.nonzero, dtypes=ANY),
    Case("take", lambda x, i: x.take(i), ((4, 6), ROWS), NUMBERS),
    Case("embedding", lambda w, i: F.embedding(i, w), ((4, 6), ROWS)),
    Case("embedding grad", gradient(lambda w, i: F.embedding(i, w)), ((4, 6), ROWS)),
    Case("gather grad", gradient(lambda x, i: x.gather(0, i)), ((4, 6), ROWS)),
    Case("index grad", gradient(lambda x, i: x[i]), ((4, 6), INDEX)),
    *(
        Case(
            f"embedding_bag {mode}",
            lambda w, i, o, mode=mode: F.embedding_bag(i, w, o, mode=mode, padding_idx=1),
            ((6, 4), BAGGED, BAGS),
        )
        for mode in ("sum", "mean", "max")
    ),
    Case("embedding_bag rows", lambda w, i: F.embedding_bag(i, w), ((4, 6), ROWS)),
    Case(
        "embedding_bag weighted",
        lambda w, s, i, o: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s, include_last_offset=True),
        ((6, 4), (8,), BAGGED, torch.cat([BAGS, torch.tensor([8])])),
        (F32,),
    ),
    Case("bincount", lambda i: torch.bincount(i, minlength=6), (TARGET,)),
]

IMAGES = [
    Case("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), ((2, 3, 6, 5), (4, 3, 3, 3), (4,)), scale=3),
    Case("conv2d stride", lambda x, w: F.conv2d(x, w, None, 2, 1, 2), ((2, 3, 8, 7), (4, 3, 3, 3)), scale=3),
    Case("conv2d groups", lambda x, w: F.conv2d(x, w, groups=2), ((1, 4, 5, 5), (6, 2, 2, 2)), scale=3),
    Case("conv2d depthwise", lambda x, w: F.conv2d(x, w, groups=4), ((1, 4, 5, 5), (4, 1, 2, 2)), scale=3),
    Case("conv1d", lambda x, w: F.conv1d(x, w, padding=1), ((2, 3, 8), (4, 3, 3)), scale=3),
    Case("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2), ((2, 3, 4, 4), (3, 2, 3, 3)), scale=3),
    Case("conv2d grad", gradient(lambda x, w, b: F.conv2d(x, w, b, 2, 1)), ((2, 3, 6, 5), (4, 3, 3, 3), (4,)), scale=8),
    Case("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 3, 7, 6),)),
    Case("max_pool2d grad", gradient(lambda x: F.max_pool2d(x, 2)), ((2, 3, 6, 6),), (F32,), layouts=LAYOUTS[:3]),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), ((2, 3, 7, 6),)),
    Case("avg_pool2d edges", lambda x: F.avg_pool2d(x, 2, 2, 1, count_include_pad=False), ((2, 3, 5, 5),)),
    Case("avg_pool2d grad", gradient(lambda x: F.avg_pool2d(x, 3, 2, 1)), ((2, 3, 7, 6),)),
    Case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 2)), ((2, 3, 7, 5),)),
    Case("adaptive_avg_pool2d 1", lambda x: F.adaptive_avg_pool2d(x, 1), ((2, 3, 7, 5),)),
    Case("adaptive_avg_pool2d grad", gradient(lambda x: F.adaptive_avg_pool2d(x, (3, 2))), ((2, 3, 7, 5),)),
]

RESAMPLED = [
    case
    for name, shape, options in (
        ("nearest 1d", (2, 3, 5), {"scale_factor": 2}),
        ("nearest 2d", (2, 3, 4, 5), {"size": (7, 3)}),
        ("nearest 2d scaled", (1, 2, 4, 5), {"scale_factor": (1.7, 0.6)}),
        ("nearest-exact 1d", (2, 3, 5), {"size": 7, "mode": "nearest-exact"}),
        ("nearest-exact 2d", (2, 3, 4, 5), {"scale_factor": (1.7, 0.6), "mode": "nearest-exact"}),
        ("linear 1d", (2, 3, 5), {"scale_factor": 2, "mode": "linear"}),
        ("linear 1d corners", (2, 3, 5), {"size": 7, "mode": "linear", "align_corners": True}),
        ("bilinear", (2, 3, 4, 5), {"scale_factor": 2, "mode": "bilinear"}),
        ("bilinear smaller", (1, 2, 6, 5), {"scale_factor": (0.6, 1.7), "mode": "bilinear"}),
        ("bilinear corners", (2, 3, 4, 5), {"size": (7, 3), "mode": "bilinear", "align_corners": True}),
        ("bicubic", (1, 2, 4, 5), {"size": (7, 3), "mode": "bicubic"}),
    )
    for f in (lambda x, options=options: F.interpolate(x, **options),)
    for case in (Case(name, f, (shape,), scale=2), Case(f"{name} grad", gradient(f), (shape,), (F32,), scale=3))
]

LOSSES = [
    *(
        case
        for name, f in {
            "cross_entropy": F.cross_entropy,
            "cross_entropy sum": lambda x, t: F.cross_entropy(x, t, reduction="sum"),
            "cross_entropy none": lambda x, t: F.cross_entropy(x, t, reduction="none"),
            "cross_entropy ignored": lambda x, t: F.cross_entropy(x, t, ignore_index=5),
            "nll_loss": F.nll_loss,
        }.items()
        for case in (
            Case(name, f, ((4, 6), TARGET), (F32,)),
            Case(f"{name} grad", gradient(f), ((4, 6), TARGET), (F32,)),
        )
    ),
    *(
        case
        for name, f in {
            "mse_loss": F.mse_loss,
            "mse_loss sum": lambda x, y: F.mse_loss(x, y, reduction="sum"),
            "l1_loss": F.l1_loss,
            "smooth_l1_loss": F.smooth_l1_loss,
        }.items()
        for case in (
            Case(name, f, PAIR, (F32,)),
            Case(f"{name} grad", gradient(lambda x, y, f=f: f(x, y.detach())), PAIR, (F32,)),
        )
    ),
    Case("binary_cross_entropy", F.binary_cross_entropy, PAIR, (F32,), "unit"),
    Case("bce with logits", F.binary_cross_entropy_with_logits, PAIR, (F32,), "unit"),
]


def foreach(name: str, *rest: Any) -> Callable[..., Any]:
    def run(x: torch.Tensor, y: torch.Tensor) -> Any:
        others = [[y, x] if item == "list" else item for item in rest]
        return tuple(getattr(torch, f"_foreach_{name}")([x, y], *others))

    return run


FOREACH = [
    *(
        Case(f"foreach {name}", foreach(name), PAIR, (F32,), "positive")
        for name in ("sqrt", "neg", "reciprocal", "abs", "exp")
    ),
    *(
        Case(f"foreach {name} scalar", foreach(name, 2.0), PAIR, (F32,), "positive")
        for name in ("add", "sub", "mul", "div", "pow")
    ),
    *(
        Case(f"foreach {name} list", foreach(name, "list"), PAIR, (F32,), "positive")
        for name in ("add", "sub", "mul", "div", "maximum")
    ),
    *(
        Case(f"foreach {name} scalars", foreach(name, [2.0, 3.0]), PAIR, (F32,), "positive")
        for name in ("add", "mul", "div")
    ),
    Case("foreach addcmul", foreach("addcmul", "list", "list", 0.5), PAIR, (F32,)),
    Case("foreach addcdiv", foreach("addcdiv", "list", "list", 0.5), PAIR, (F32,), "positive"),
    Case("foreach lerp", foreach("lerp", "list", 0.2), PAIR, (F32,)),
    Case("foreach norm", foreach("norm"), PAIR, (F32,)),
    *(
        Case(f"foreach {name}", foreach(name), PAIR, (F32,), "unit", ONE, composite=f"aclnnForeach{name.capitalize()}")
        for name in (
            *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "expm1", "log10", "log1p", "log2"),
            *("sin", "sinh", "tan"),
        )
    ),
    *(
        Case(f"foreach {name}", foreach(name), PAIR, (F32,), layouts=ONE)
        for name in ("ceil", "floor", "frac", "round", "trunc")
    ),
    Case(
        "foreach lerp list",
        foreach("lerp", "list", "list"),
        PAIR,
        (F32,),
        "unit",
        ONE,
        composite="aclnnForeachLerpList",
    ),
    Case(
        "foreach pow of scalar",
        lambda x, y: torch._foreach_pow(2.0, [x, y]),
        PAIR,
        (F32,),
        layouts=ONE,
        composite="aclnnForeachPowScalarAndTensor",
    ),
]


def unscale(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> Any:
    grads, found = [x.clone(), y.clone()], torch.zeros(1, device=x.device)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
    return (*grads, found)


def update_scale(scale: torch.Tensor, tracker: torch.Tensor, found: torch.Tensor) -> Any:
    scale, tracker = scale.clone(), tracker.clone()
    torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 3)
    return scale, tracker


SCALE, YES, NO = torch.tensor([8.0]), torch.ones(1), torch.zeros(1)
SCALING = [
    Case("unscale", unscale, (*PAIR, SCALE), layouts=ONE),
    Case("unscale non-finite", lambda x, y, s: unscale(x, y / 0, s), (*PAIR, SCALE), (F32,), "positive", ONE),
    *(
        Case(f"update scale {name}", update_scale, (scale, torch.tensor([tracker], dtype=torch.int32), found), (F32,))
        for name, scale, tracker, found in (
            ("good", SCALE, 1, NO),
            ("grown", SCALE, 2, NO),
            ("bad", SCALE, 2, YES),
            ("at the limit", torch.tensor([2.0**127]), 2, NO),
        )
    ),
]


def recurrent(f: Callable[..., Any], states: int, *forms: Any) -> Callable[..., torch.Tensor]:
    """All results of ``torch.lstm`` or ``torch.gru``, whose parameters are lists, as one tensor."""

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        initial = rest[:states] if states > 1 else rest[0]
        return torch.cat([y.flatten() for y in f(x, initial, rest[states:], *forms)])

    return run


# has_biases, num_layers, dropout, train, bidirectional, batch_first
ONE_LAYER = (True, 1, 0.0, True, False, False)
LSTM_SHAPES = ((5, 2, 3), *((1, 2, 4),) * 2, (16, 3), (16, 4), (16,), (16,))
GRU_SHAPES = ((5, 2, 3), (1, 2, 4), (12, 3), (12, 4), (12,), (12,))
LAYERS = ((2, 5, 3), (4, 2, 4), *(((12, 3), (12, 4)) * 2), *(((12, 8), (12, 4)) * 2))
LSTM, GRU = recurrent(torch.lstm, 2, *ONE_LAYER), recurrent(torch.gru, 1, *ONE_LAYER)
BOTH_WAYS = recurrent(torch.gru, 1, False, 2, 0.0, True, True, True)
RECURRENT = [
    Case("lstm", LSTM, LSTM_SHAPES, (F32, F16), layouts=LAYOUTS[:3]),
    Case(
        "lstm evaluated",
        recurrent(torch.lstm, 2, True, 1, 0.0, False, False, True),
        ((2, 5, 3), *LSTM_SHAPES[1:]),
        (F32,),
    ),
    Case("lstm grad", gradient(LSTM), LSTM_SHAPES, (F32,), layouts=LAYOUTS[:3], scale=5),
    Case("gru", GRU, GRU_SHAPES, (F32, F16), layouts=LAYOUTS[:3]),
    Case("gru grad", gradient(GRU), GRU_SHAPES, (F32,), layouts=LAYOUTS[:3], scale=5),
    Case("gru layers both ways", BOTH_WAYS, LAYERS, (F32,), layouts=LAYOUTS[:3], scale=2),
    Case("gru layers both ways grad", gradient(BOTH_WAYS), LAYERS, (F32,), layouts=ONE, scale=10),
]


def with_two(f: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: f(x, 2)


# In-place and scalar forms have symbols of their own, so each needs a row: a wrong signature shows nowhere else.
METHODS = [
    *(
        Case(f"{name}_ in place", inplace(getattr(torch.Tensor, f"{name}_")), values="unit", layouts=ONE)
        for name in (
            *("acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp2", "expm1", "floor", "frac", "log"),
            *("log10", "log1p", "log2", "reciprocal", "rsqrt", "sin", "sinh", "sqrt", "tan", "tril", "triu"),
            *("nan_to_num", "logical_not"),
        )
    ),
    *(
        Case(f"{name}_ tensor", inplace(getattr(torch.Tensor, f"{name}_")), PAIR, (F32, I64), "positive", ONE)
        for name in (
            *("eq", "ne", "lt", "le", "gt", "ge", "floor_divide", "fmod", "pow", "remainder", "sub"),
            *("logical_and", "logical_or", "clamp_min", "clamp_max"),
        )
    ),
    *(
        Case(
            f"{name}_ scalar",
            inplace(with_two(getattr(torch.Tensor, f"{name}_"))),
            ((4, 6),),
            (F32, I64),
            "positive",
            ONE,
        )
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "floor_divide", "fmod", "pow", "remainder", "clamp_max")
    ),
    *(
        Case(f"{name} scalar", with_two(getattr(torch, name)), dtypes=(F32, I64), layouts=ONE)
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "clamp_max", "floor_divide")
    ),
    *(
        Case(f"bitwise_{name} forms", inplace(lambda x, y, f=f: f(f(x, y), 5)), PAIR, (I64,), layouts=ONE)
        for name, f in {
            "and": torch.Tensor.bitwise_and_,
            "xor": torch.Tensor.bitwise_xor_,
            "or": torch.bitwise_or,
            "and new": torch.bitwise_and,
            "xor new": torch.bitwise_xor,
        }.items()
    ),
    *(
        Case(f"{name} in place", inplace(f), layouts=ONE)
        for name, f in {
            "hardsigmoid": lambda x: F.hardsigmoid(x, inplace=True),
            "hardswish": lambda x: F.hardswish(x, inplace=True),
            "hardtanh": lambda x: F.hardtanh(x, inplace=True),
            "leaky_relu": lambda x: F.leaky_relu(x, 0.1, inplace=True),
            "mish": lambda x: F.mish(x, inplace=True),
            "div_ scalar": lambda x: x.div_(4),
            "div_ mode scalar": lambda x: x.div_(4, rounding_mode="floor"),
        }.items()
    ),
    Case("div_ mode tensor", inplace(lambda x, y: x.div_(y, rounding_mode="trunc")), PAIR, (F32, I64), "positive", ONE),
    Case("floor_divide tensor", torch.floor_divide, PAIR, (F32, I64), "positive", ONE),
    Case("fmod tensor", torch.fmod, PAIR, (F32, I64), "positive", ONE),
    Case("clamp_max tensor", torch.clamp_max, PAIR, (F32, I64), layouts=ONE),
    Case("clamp_ tensors", inplace(lambda x, y: x.clamp_min_(y).clamp_max_(y + 1)), PAIR, layouts=ONE),
    Case("lerp_ tensor", inplace(torch.Tensor.lerp_), (*PAIR, (4, 6)), values="unit", layouts=ONE),
    Case("rsub tensor", lambda x, y: torch.rsub(x, y, alpha=2), PAIR, NUMBERS, layouts=ONE),
    Case("remainder of scalar", lambda x: torch.remainder(7, x), dtypes=(F32, I64), values="positive", layouts=ONE),
    Case("shift tensor", lambda x: (x * x) << (x * x), dtypes=(I64,), values="positive", layouts=ONE),
    Case("isposinf", lambda x: torch.isposinf(x / 0), layouts=ONE),
    Case("addmm_", inplace(lambda c, a, b: c.addmm_(a, b, beta=0.5, alpha=2)), ((4, 5), (4, 6), (6, 5)), layouts=ONE),
    Case("addbmm", torch.addbmm, ((4, 5), (3, 4, 6), (3, 6, 5)), layouts=ONE),
    Case("addr", torch.addr, ((6, 4), (6,), (4,)), layouts=ONE),
    Case("mv", torch.mv, ((4, 6), (6,)), layouts=ONE),
    Case("aminmax", lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1)), dtypes=(F32,), layouts=ONE),
    Case("std_mean", lambda x: torch.std_mean(x, 1), dtypes=(F32,), layouts=ONE),
    Case("norm p", lambda x: (x.norm(p=3), x.norm(p=1, dim=1)), dtypes=(F32,), layouts=ONE),
    Case("range", lambda x: torch.range(0, 5, device=x.device), dtypes=(F32,), layouts=ONE),
    Case("index_fill_", inplace(lambda x, i: x.index_fill_(1, i, 7)), ((4, 6), INDEX), NUMBERS, layouts=ONE),
    Case("scatter value", lambda x, i: x.scatter(0, i, 5), ((4, 6), ROWS), NUMBERS, layouts=ONE),
    Case("scatter_", inplace(lambda x, i, y: x.scatter_(0, i[:1], y)), ((4, 6), ROWS, (2, 6)), NUMBERS, layouts=ONE),
    Case(
        "masked_scatter_",
        inplace(torch.Tensor.masked_scatter_),
        ((4, 6), MASK, (4, 6)),
        (F32, I64),
        layouts=ONE,
    ),
    Case("repeat_interleave flat", lambda x: x.repeat_interleave(3), dtypes=NUMBERS, layouts=ONE),
    Case("repeat_interleave counts", lambda x, i: x.repeat_interleave(i, dim=0), ((3, 6), INDEX), NUMBERS, layouts=ONE),
    Case(
        "cross_entropy of images",
        F.cross_entropy,
        ((2, 4, 3, 3), torch.arange(18).reshape(2, 3, 3) % 4),
        (F32,),
        layouts=ONE,
    ),
    Case(
        "cross_entropy of images grad",
        gradient(F.cross_entropy),
        ((2, 4, 3, 3), torch.arange(18).reshape(2, 3, 3) % 4),
        (F32,),
        layouts=ONE,
    ),
    Case("bce grad", gradient(lambda x, y: F.binary_cross_entropy(x, y.detach())), PAIR, (F32,), "unit", ONE, 5),
    Case("foreach pow list", foreach("pow", "list"), PAIR, (F32,), "positive", ONE),
    Case("foreach pow scalars", foreach("pow", [2.0, 3.0]), PAIR, (F32,), "positive", ONE),
    Case("foreach copy", lambda x, y: torch._foreach_copy_([x * 0, y * 0], [x, y]), PAIR, (F32,), layouts=ONE),
    *(
        Case(f"foreach {name} forms", foreach(name), PAIR, (F32,), "positive", ONE)
        for name in ("log", "sigmoid", "sign", "tanh")
    ),
    *(
        Case(f"foreach {name} {kind}", foreach(name, value), PAIR, (F32,), "positive", ONE)
        for name in ("maximum", "minimum")
        for kind, value in {"scalar form": 1.5, "list form": "list", "scalars form": [1.0, 2.0]}.items()
    ),
    Case("foreach sub scalars", foreach("sub", [1.0, 2.0]), PAIR, (F32,), layouts=ONE),
]

CASES = [
    *METHODS,
    *(*ELEMENTWISE, *BINARY, *COPIES, *GENERATED, *REDUCTIONS, *MATMULS, *ACTIVATIONS, *NORMS, *INDEXING, *IMAGES),
    *(*LOSSES, *FOREACH, *SCALING, *RESAMPLED, *RECURRENT),
]


def make(shape: tuple[int, ...], dtype: torch.dtype, values: str, layout: str, random: torch.Generator) -> torch.Tensor:
    """Storage for a CPU tensor of that shape; ``view_as`` gives it the layout."""
    size = list(shape)
    if layout == "transposed" and len(size) > 1:
        size[-1], size[-2] = size[-2], size[-1]
    elif layout == "sliced" and size:
        size[-1] *= 2
    elif layout == "expanded" and size:
        size[0] = 1
    if dtype == BOOL:
        return torch.rand(size, generator=random) > 0.4
    if dtype == I64:
        low = 1 if values in ("positive", "unit") else -4
        return torch.randint(low, 6, size, generator=random)
    uniform = torch.rand(size, generator=random)
    data = {"any": uniform * 6 - 3, "positive": uniform * 3 + 0.25, "unit": uniform * 0.8 + 0.1}[values]
    return data.to(dtype)


def view(storage: torch.Tensor, shape: tuple[int, ...], layout: str) -> torch.Tensor:
    """The layout that the test asks for, as a view of its storage on either device."""
    if layout == "transposed" and len(shape) > 1:
        return storage.mT
    if layout == "sliced" and shape:
        return storage[..., ::2]
    if layout == "expanded" and shape:
        return storage.expand(shape)
    return storage


def leaves(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    else:
        for item in result:
            yield from leaves(item)


def compare(case: Case, dtype: torch.dtype, expected: Any, actual: Any) -> None:
    tolerance = TOLERANCE.get(dtype, 1e-5) * case.scale
    pairs = list(itertools.zip_longest(leaves(expected), leaves(actual)))
    for want, result in pairs:
        got = result.cpu()
        assert got.shape == want.shape
        if want.is_floating_point():
            torch.testing.assert_close(got.to(want.dtype), want, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert torch.equal(got, want.to(got.dtype)), f"{got} instead of {want}"


PARAMETERS = [
    pytest.param(case, dtype, layout, id=f"{case.name}-{str(dtype)[6:]}-{layout}".replace(" ", "_"))
    for case in CASES
    for dtype in case.dtypes
    for layout in case.layouts
]


@pytest.mark.parametrize(("case", "dtype", "layout"), PARAMETERS)
def test_kernel_equals_cpu(case: Case, dtype: torch.dtype, layout: str, capfd: pytest.CaptureFixture[str]) -> None:
    random = torch.Generator().manual_seed(zlib.crc32(f"{case.name}{dtype}{layout}".encode()))
    on_cpu, on_npu = [], []
    for item in case.inputs:
        if isinstance(item, torch.Tensor):
            on_cpu.append(item)
            on_npu.append(item.npu())
            continue
        storage = make(item, dtype, case.values, layout, random)
        on_npu.append(view(storage.npu(), item, layout))
        # The reference computes in float32 what the device accumulates in float32.
        wide = storage.float() if dtype in (F16, BF16) else storage
        on_cpu.append(view(wide, item, layout))
    before = loader.composites()
    compare(case, dtype, case.run(*on_cpu), case.run(*on_npu))
    ran = {name for name, count in loader.composites().items() if count > before.get(name, 0)}
    assert ran == ({case.composite} - {""}), "torch_npu has gone another way than by a kernel"
    # torch_npu says so once for each operator, on the C++ side; the result would be right without any kernel.
    assert "fall back to run on the CPU" not in capfd.readouterr().err


def test_every_composite_has_a_row() -> None:
    assert {case.composite for case in CASES} - {""} == set(missing.COMPOSITES)


def test_a_composite_of_torch_npu_is_refused_by_name() -> None:
    message = "aclnnKthvalue is not emulated, and torch_npu would call acl_op::kthvalue.* instead, which no"
    with pytest.raises(RuntimeError, match=message):
        torch.kthvalue(torch.ones(4, device="npu"), 2)
    assert "aclnnKthvalue" not in loader.composites()


def test_case_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert not [name for name in set(names) if names.count(name) > 1]
