"""The one law, over many small models: refused with a reason that names the region, or equal to eager run after run."""

import textwrap

import pytest
import torch

from graphspec.errors import GraphSpecError

SPEC = """
    model: {factory: model.py:Model, mode: MODE}
    buffers:
      x: {shape: [4, 6], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""

#: (what __init__ makes, what forward does). These must be captured.
ORDINARY = {
    "lstm": ("self.f = nn.LSTM(6, 3, 2, batch_first=True)", "return self.f(x[None])"),
    "gru cell": ("self.f = nn.GRUCell(6, 3)", "return self.f(x, x[:, :3])"),
    "rnn": ("self.f = nn.RNN(6, 3)", "return self.f(x[:, None])"),
    "attention": ("self.f = nn.MultiheadAttention(6, 2, batch_first=True)", "return self.f(x[None], x[None], x[None])"),
    "encoder layer": ("self.f = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)", "return self.f(x[None])"),
    "convolution": ("self.f = nn.Conv1d(4, 2, 3, padding=1)", "return self.f(x[None])"),
    "transposed convolution": ("self.f = nn.ConvTranspose1d(4, 2, 3)", "return self.f(x[None])"),
    "group norm": ("self.f = nn.GroupNorm(2, 4)", "return self.f(x[None])"),
    "embedding bag": ("self.f = nn.EmbeddingBag(9, 3)", "return self.f((x > 0).long())"),
    "bilinear": ("self.f = nn.Bilinear(6, 6, 2)", "return self.f(x, x)"),
    "softmax": ("", "return torch.softmax(x, -1), torch.log_softmax(x, 0)"),
    "sort": ("", "return x.sort(1), x.topk(2), x.argsort(0), x.kthvalue(2)"),
    "cumulative": ("", "return x.cumsum(0), x.cumprod(1), x.cummax(0), x.logcumsumexp(1)"),
    "einsum": ("", "return torch.einsum('ij,kj->ik', x, x)"),
    "fft": ("", "return torch.fft.rfft(x), torch.fft.ifft(torch.fft.fft(x)).real"),
    "complex views": (
        "",
        "c = torch.view_as_complex(x.view(4, 3, 2)); return torch.view_as_real(c * c.conj()), c.imag",
    ),
    "bits": ("", "return x.view(torch.int32) & 255, x.view(torch.int32).view(torch.float32)"),
    "strides": ("", "return x.as_strided((3, 2), (1, 6), 1) * 2, x.unfold(1, 3, 1), x.diagonal(), x.t()[::2]"),
    "in place on views": ("", "h = x.clone(); h[1:, ::2].mul_(2); h.t()[0].zero_(); h.diagonal().add_(1); return h"),
    "in place chain": ("", "h = x + 0; h.add_(h.t()[:1].sum()); h.clamp_(-1, 1).neg_(); return h, h.sum()"),
    "out": ("self.o = torch.empty(4, 6)", "torch.mul(x, 2, out=self.o); return self.o + 1"),
    "scatter": ("", "return torch.zeros(4, 6).scatter_add_(1, (x > 0).long(), x), x.index_add(0, torch.arange(4), x)"),
    "masked fill": ("", "return x.masked_fill(x > 0, 0.5), torch.where(x > 0, x, -x)"),
    "index put": ("", "h = x.clone(); h[torch.arange(2), torch.arange(2)] = 7.0; return h"),
    "split and chunk": (
        "",
        "a, b = x.chunk(2, 1); c, d, e = x.split([1, 2, 1]); return a * b, c, d + 1, torch.cat([c, e])",
    ),
    "foreach": ("", "hs = torch._foreach_add([x, x * 2], 1.0); torch._foreach_mul_(hs, 2.0); return hs"),
    "linear algebra": (
        "",
        "return torch.linalg.vector_norm(x, dim=1), torch.linalg.matrix_norm(x), x.pinverse().shape[0]",
    ),
    "comparison": ("", "return x.isnan() | (x > 0), x.sign(), x.clamp(-0.5, 0.5), x.round(), x % 2, x // 0.5"),
    "bool arithmetic": ("", "return (x > 0).sum(), (x > 0).float().mean(), (x > 0) * 3, ~(x > 0)"),
    "promotions": (
        "",
        "return x * 2 + 1j, x.double() * 2, x.half() + 1, x.int() // 2, x + torch.tensor(2, dtype=torch.int8)",
    ),
    "interpolation": ("", "return F.interpolate(x[None, None], scale_factor=2, mode='bilinear')"),
    "pooling": ("", "return F.max_pool1d(x[None], 2, return_indices=True), F.adaptive_avg_pool1d(x[None], 3)"),
    "pad": ("", "return F.pad(x, (1, 2)), F.pad(x[None], (1, 1), mode='reflect'), x.roll(1, 0), x.flip(1)"),
    "losses": ("", "return F.cross_entropy(x, (x[:, 0] > 0).long()), F.mse_loss(x, x * 2), F.kl_div(x, x.exp())"),
    "norms": ("", "return F.layer_norm(x, (6,)), F.normalize(x), F.rms_norm(x, (6,)), F.cosine_similarity(x, x, 1)"),
    "activations": ("", "return F.gelu(x), F.silu(x), F.mish(x), F.glu(x), F.hardswish(x), F.elu(x, inplace=False)"),
    "vmap": ("", "return torch.vmap(lambda v: v.sum() * v)(x)"),
    "jacobian": ("", "return torch.func.jacfwd(lambda v: (v**2).sum())(x)"),
    "one hot": ("", "return F.one_hot((x > 0).long(), 2)"),
    "generator comprehension": ("", "return sum(row * k for k, row in enumerate(x))"),
    "closure": ("", "f = lambda k: (lambda v: v * k); return f(2)(x) + f(3)(x)"),
    "tensor constant": ("self.c = torch.randn(6)", "return x * self.c + 2"),
    "tied": (
        "self.a = nn.Linear(6, 6); self.b = nn.Linear(6, 6); self.b.weight = self.a.weight",
        "return self.b(self.a(x))",
    ),
    "shared module": ("self.a = nn.Linear(6, 6)", "return self.a(self.a(self.a(x)))"),
    "state in place": ("self.register_buffer('s', torch.zeros(6))", "self.s.add_(x.mean(0)); return self.s * 2"),
    "state through a view": (
        "self.register_buffer('s', torch.zeros(2, 6)); self.v = self.s[1]",
        "self.v.add_(x[0]); return self.s * 1",
    ),
    "ring buffer": (
        "self.register_buffer('s', torch.zeros(3, 6)); self.register_buffer('p', torch.zeros(1, dtype=torch.int64))",
        "self.s.index_copy_(0, self.p, x[:1]); self.p.add_(1).remainder_(3); return self.s.sum(0), self.p * 1",
    ),
    "copy of a state into itself": (
        "self.register_buffer('s', torch.ones(4, 6))",
        "self.s.copy_(self.s.flip(0) + x); return self.s * 1",
    ),
    "batch norm eval": ("self.f = nn.BatchNorm1d(6)", "return self.f(x)"),
    "instance norm": ("self.f = nn.InstanceNorm1d(4)", "return self.f(x[None])"),
    "weight norm": ("self.f = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))", "return self.f(x)"),
    "spectral norm": ("self.f = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))", "return self.f(x)"),
    "scripted": ("self.f = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.ReLU()))", "return self.f(x)"),
    "empty slices": (
        "",
        "return torch.cat([x[:0], x]), x[4:].sum(), x.new_zeros(0).sum(), torch.ones(0, 3) @ torch.ones(3, 2)",
    ),
    "expanded": ("", "h = x[:1].expand(4, 6); return h + x, h, h.sum(0)"),
    "repeat": ("", "return x.repeat(2, 1), x.repeat_interleave(2, 0), x.tile(1, 2)"),
    "meshgrid": ("", "return torch.meshgrid(x[0], x[:, 0], indexing='ij')"),
    "cdist": ("", "return torch.cdist(x, x), torch.cosine_similarity(x, x[:1])"),
    "quantile": ("", "return x.median(), x.median(0), x.mode(0), x.nanmean(), x.std(0), x.var(), x.logsumexp(1)"),
    "unused parameter": ("self.a = nn.Linear(6, 6); self.b = nn.Linear(6, 6)", "return self.a(x)"),
    "detach and data": ("self.a = nn.Linear(6, 6)", "return F.linear(x, self.a.weight.detach(), self.a.bias.data)"),
    "tril": ("", "return x.tril(), x.triu(1), torch.ones(6, 6).tril() @ x.t()"),
    "conj in place": ("", "c = torch.complex(x, x); c.conj().mul_(2j); return c"),
    "nested dicts": ("", "d = {'a': [x * 1]}; d['b'] = (d['a'][0] + 1, None); return d"),
}


def holds(runner, eager):
    for _ in range(3):
        x = torch.randn(4, 6)
        runner.poison()
        same(runner.run(x=x)["y"], eager(x))


def same(got, want):
    if isinstance(want, torch.Tensor):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        torch.testing.assert_close(got, want.detach(), equal_nan=True)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for mine, theirs in zip(got, want, strict=True):
            same(mine, theirs)
    else:
        assert got == want


def source(made, body):
    return f"""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                {made or "pass"}

            def forward(self, x):
{textwrap.indent(body, " " * 16)}
    """


@pytest.mark.case("C35")
@pytest.mark.parametrize(("made", "body"), ORDINARY.values(), ids=ORDINARY.keys())
def test_an_ordinary_model_is_captured_and_equals_eager_on_fresh_inputs(case, made, body):
    runner = case.open(source(made, body), SPEC.replace("MODE", "eval"))
    holds(runner, case.eager())


#: These may be refused.
UNUSUAL = {
    "cond": ("", "return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v * 10, (x,))"),
    "while loop": (
        "",
        "return torch._higher_order_ops.while_loop(lambda v: v.sum() < 100, lambda v: (v.abs() + 1,), (x,))",
    ),
    "scripted branch": (
        (
            "self.f = torch.jit.CompilationUnit("
            "'def f(x):\\n    if bool(x.sum() > 0):\\n        return x * 2\\n    return x * 10\\n').f"
        ),
        "return self.f(x)",
    ),
    "scripted number": (
        "self.f = torch.jit.CompilationUnit('def f(x):\\n    return x * x.sum().item()\\n').f",
        "return self.f(x)",
    ),
    "compiled": ("self.f = torch.compile(nn.ReLU(), backend='eager')", "return self.f(x)"),
    "nested tensor": ("", "return torch.nested.nested_tensor([x[:1], x[1:]]).to_padded_tensor(0.0)"),
    "quantized": ("", "return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()"),
    "fake quantized": ("", "return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)"),
    "sparse weight": ("self.w = torch.eye(6).to_sparse()", "return x @ self.w.to_dense()"),
    "packed sequence": (
        "self.f = nn.GRU(6, 3)",
        "return self.f(nn.utils.rnn.pack_padded_sequence(x[:, None], [4]))[1]",
    ),
    "encoder with a mask": (
        "self.f = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1)",
        "return self.f(x[None], src_key_padding_mask=(x[None, :, 0] > 1))",
    ),
    "batch norm in train mode": ("self.f = nn.BatchNorm1d(6).train()", "return self.f.train()(x)"),
    "dropout": ("", "return F.dropout(x, 0.0, True)"),
    "uninitialised memory": ("", "return torch.empty(4, 6).copy_(x)"),
    "autograd inside": (
        "",
        ("with torch.enable_grad():\n    v = x.detach().requires_grad_()\n    (v**3).sum().backward()\nreturn v.grad"),
    ),
    "autograd.grad inside": (
        "self.w = nn.Parameter(torch.ones(6))",
        ("with torch.enable_grad():\n    return torch.autograd.grad((x * self.w).pow(2).sum(), self.w)[0]"),
    ),
    "gradient kept on the parameter": (
        "self.w = nn.Parameter(torch.ones(6))",
        ("with torch.enable_grad():\n    (x * self.w).sum().backward()\nreturn self.w.grad * 1"),
    ),
    "requires_grad_ of the input": ("", "x.requires_grad_(); return x.detach() * 2"),
    "subclass": (
        "",
        "class Sub(torch.Tensor): pass\nreturn x.as_subclass(Sub).mul(2).as_subclass(torch.Tensor)",
    ),
    "subclass returned": (
        "",
        "class Sub(torch.Tensor): pass\nreturn x.as_subclass(Sub) * 2",
    ),
    "parameter made inside": ("", "return nn.Parameter(x * 2, requires_grad=False)"),
    "module made inside": ("", "torch.manual_seed(0); return nn.Linear(6, 6)(x)"),
    "lazy module": ("self.f = nn.LazyLinear(3)", "return self.f(x).shape[0] + x"),
    "cached property": (
        "",
        "if not hasattr(self, 'mask'): self.mask = x > 0\nreturn x * self.mask",
    ),
    "cache of the first input": (
        "self.first = None",
        "if self.first is None: self.first = x.clone()\nreturn x + self.first",
    ),
    "memo by shape": (
        "self.memo = {}",
        ("if x.shape not in self.memo: self.memo[x.shape] = torch.arange(6.0)\nreturn x * self.memo[x.shape]"),
    ),
    "lru_cache on a tensor": (
        "import functools; self.f = functools.lru_cache(lambda v: v * 2)",
        "return self.f(x) * 1",
    ),
    "weak keys": (
        "from torch.utils.weak import WeakTensorKeyDictionary; self.memo = WeakTensorKeyDictionary()",
        "if x not in self.memo: self.memo[x] = x * 2\nreturn self.memo[x] * 1",
    ),
    "previous input": (
        "self.last = torch.zeros(4, 6)",
        "y = x + self.last\nself.last = x\nreturn y",
    ),
    "previous input cloned": (
        "self.last = torch.zeros(4, 6)",
        "y = x + self.last\nself.last = x.clone()\nreturn y",
    ),
    "previous input in a list": (
        "self.last = [torch.zeros(4, 6)]",
        "y = x + self.last[0]\nself.last[0] = x.clone()\nreturn y",
    ),
    "previous input copied in place": (
        "self.last = torch.zeros(4, 6)",
        "y = x + self.last\nself.last.copy_(x)\nreturn y",
    ),
    "hidden counter in a tensor attribute": (
        "self.w = torch.ones(6); self.w.calls = 0",
        "self.w.calls += 1\nreturn x * self.w.calls",
    ),
    "contextvar": (
        "import contextvars; self.v = contextvars.ContextVar('v', default=0)",
        "self.v.set(self.v.get() + 1); return x * self.v.get()",
    ),
    "thread local": (
        "import threading; self.t = threading.local(); self.t.n = 0",
        "self.t.n += 1; return x * self.t.n",
    ),
    "function attribute": (
        "",
        "f = type(self).forward\nf.n = getattr(f, 'n', 0) + 1\nreturn x * f.n",
    ),
    "numpy view of a buffer": (
        "self.b = torch.zeros(6); self.n = self.b.numpy()",
        "self.n += 1; return x + self.b",
    ),
    "exceptions as control": (
        "",
        "try:\n    raise ValueError(1)\nexcept ValueError as e:\n    return x * e.args[0]",
    ),
    "recursion": (
        "",
        "def f(v, n): return v if n == 0 else f(v * 2, n - 1)\nreturn f(x, 5)",
    ),
    "async": (
        "",
        "import asyncio\nasync def f(): return x * 2\nreturn asyncio.run(f())",
    ),
    "cuda stream guard": ("", "with torch.cuda.stream(None):\n    return x * 2"),
    "set_default_dtype inside": ("", "torch.set_default_dtype(torch.float64); return x * torch.ones(6)"),
    "grad mode left on": ("", "torch.set_grad_enabled(True); return x * 2"),
    "threads changed inside": ("", "torch.set_num_threads(1); return x * 2"),
    "in_place on a parameter": ("self.w = nn.Parameter(torch.ones(6))", "self.w.mul_(2); return x * self.w"),
    "resize of a buffer": ("self.b = torch.zeros(2)", "self.b.resize_(6); return x + self.b * 0"),
    "set_ of a buffer": ("self.b = torch.zeros(6)", "self.b.set_(x[0].clone()); return x + self.b"),
    "swap of tensors": (
        "self.a, self.b = torch.zeros(6), torch.ones(6)",
        "torch.utils.swap_tensors(self.a, self.b); return x + self.a",
    ),
    "module replaced": ("self.f = nn.Linear(6, 6)", "y = self.f(x); self.f = nn.Linear(6, 6); return y"),
    "submodule added": ("self.n = nn.Sequential(nn.ReLU())", "self.n.append(nn.Tanh()); return self.n(x)"),
    "train inside": ("self.f = nn.Dropout(0.5)", "self.train(); return self.f(x)"),
    "requires_grad toggled": (
        "self.w = nn.Parameter(torch.ones(6))",
        "self.w.requires_grad_(not self.w.requires_grad); return x * self.w.detach()",
    ),
    "hook added inside": (
        "self.f = nn.ReLU()",
        "self.f.register_forward_hook(lambda m, a, o: o * 2); return self.f(x)",
    ),
    "printing of a shape": ("", "print(x.shape, x.dtype); return x * 2"),
    "warning": ("", "import warnings; warnings.warn('w'); return x * 2"),
    "logging": ("", "import logging; logging.getLogger('m').info('%s', x.shape); return x * 2"),
    "custom operator": (
        "",
        (
            "if not hasattr(torch.ops.graphspec_law, 'twice'):\n"
            "    lib = torch.library.Library('graphspec_law', 'FRAGMENT')\n"
            "    lib.define('twice(Tensor x) -> Tensor')\n"
            "    lib.impl('twice', lambda v: v * 2, 'CPU')\n"
            "    globals()['LIB'] = lib\n"
            "return torch.ops.graphspec_law.twice(x)"
        ),
    ),
}


@pytest.fixture(autouse=True)
def _flags():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.case("C10")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("made", "body"), UNUSUAL.values(), ids=UNUSUAL.keys())
def test_an_unusual_model_is_refused_by_its_region_or_equals_eager_on_fresh_inputs(case, made, body):
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    case.write(source(made, body), SPEC.replace("MODE", "eval"))
    case.eager()(torch.randn(4, 6))  # eager at least takes it
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    try:
        runner = case.open(source(made, body), SPEC.replace("MODE", "eval"))
    except GraphSpecError as error:
        assert "region 'main'" in str(error) or "model." in str(error)  # noqa: PT017
        return
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (grad, dtype)
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(4, 6)
        got = runner.run(x=x)["y"]
        assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (grad, dtype)
        same(got, eager(x.clone()))
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)


def test_an_operator_in_place_that_resizes_what_it_reads_is_refused_with_its_line(case):
    # torch lets addbmm_ broadcast its own tensor, in place: the second run would begin with another one
    forward = "y = x[0, :1].clone(); return y.addbmm_(x[None], x.T[None])"
    with pytest.raises(GraphSpecError, match=r"addbmm_ resizes 'self' in place, at .*model\.py"):
        case.open(f"def forward(self, x): {forward}", SPEC.replace("MODE", "eval"))
