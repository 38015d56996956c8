"""Statements to draw from, as templates.

``{o}`` and ``{o2}`` are new names. ``{x}`` is any tensor, ``{f}`` a floating one, ``{a}`` a float32 one, ``{i}`` an
int64 one, ``{n}`` one of any integer dtype, ``{m}`` a bool one, ``{c}`` a complex one, ``{t}`` one that may be written in place; with a number behind, another
one that broadcasts with the first. ``{d}`` and ``{e}`` are axes of the first operand, ``{k}`` a float, ``{j}`` a small
integer, ``{s}`` a Python number of any kind, ``{p}`` a probability. A template may fit no value there is: it is tried.
"""

from __future__ import annotations

UNARY = tuple(
    f"{{o}} = {call}"
    for call in (
        "torch.relu({f})", "torch.sigmoid({f})", "{f}.tanh()", "F.gelu({f})", "F.silu({f})", "F.softplus({f})",
        "torch.exp({f})", "{f}.expm1()", "torch.sin({f})", "{f}.cos()", "{f}.abs().sqrt()", "({f}.abs() + 1).rsqrt()",
        "{f}.square()", "({f}.abs() + 1).reciprocal()", "{f}.round()", "{f}.floor()", "{f}.trunc()", "{x}.sign()",
        "{f}.erf()", "{f}.abs().log1p()", "{f}.nan_to_num()", "{f}.isnan()", "torch.isfinite({f})", "-{x}", "{x}.abs()",
        "{m}.logical_not()", "~{m}", "~{n}", "{x}.clone()", "{x}.contiguous()", "F.hardtanh({f})", "F.mish({f})",
        "F.leaky_relu({f}, 0.2)", "F.elu({f})", "F.relu6({f})", "F.logsigmoid({f})", "F.softsign({f})", "{f}.frac()",
        "{x}.isreal()", "{f}.signbit()", "{f}.deg2rad()", "{f}.atan()", "F.hardswish({f})", "F.celu({f})", "F.selu({f})",
        "F.threshold({f}, 0.1, -1.0)", "{f}.logit(0.1)", "torch.special.i0({f})", "{f}.sinc()", "F.tanhshrink({f})",
        "{f}.ceil()", "{f}.sgn()", "{f}.asinh()", "torch.positive({x})", "F.prelu({a}, self.one)", "F.glu({f}, -1)",
    )
)  # fmt: skip
BINARY = tuple(
    f"{{o}} = {call}"
    for call in (
        "{x} + {x2}", "{f} + {f2}", "{f} - {f2}", "{f} * {f2}", "{x} * {x2}", "{f} / ({f2}.abs() + 1)", "{n} // ({n2}.abs() + 1)",
        "{f} % 1.5", "torch.maximum({f}, {f2})", "torch.minimum({x}, {x2})", "torch.atan2({f}, {f2})", "{f}.fmod({k})",
        "torch.remainder({n}, 3)", "torch.copysign({f}, {f2})", "torch.hypot({a}, {a2})", "{m} & {m2}", "{m} | {m2}", "{m} ^ {m2}",
        "{x} == {x2}", "{x} != {x2}", "{f} < {f2}", "{f} >= {f2}", "{n} & {n2}", "torch.logical_xor({x}, {x2})",
        "torch.add({f}, {f2}, alpha={k})", "torch.sub({f}, {f2}, alpha={j})", "torch.lerp({f}, {f2}, {k})",
        "torch.lerp({a}, {a2}, {a3})", "torch.addcmul({f}, {f2}, {f3}, value={k})", "torch.addcdiv({a}, {a2}, {a3}.abs() + 1)",
        "torch.where({m}, {x}, {x2})", "torch.where({m}, {f}, {k})", "torch.where({f} > {f2}, {f}, {f2})", "torch.where({m}, 1.0, {f})",
        "torch.div({f}, {f2}.abs() + 1, rounding_mode='floor')", "torch.true_divide({n}, 2)", "{f} ** 2", "{f}.abs() ** 0.5",
        "2 ** {f}", "{n} << 1", "torch.bitwise_and({n}, 3)", "torch.heaviside({a}, {a2})", "torch.fmax({f}, {f2})", "{f}.ldexp({j})",
        "torch.nextafter({a}, {a2})", "torch.rsub({f}, {f2})", "{f}.xlogy({k})", "torch.isclose({f}, {f2})", "torch.gcd({n}, {n2})",
        "torch.logaddexp({f}, {f2})", "torch.floor_divide({f}, {k})", "torch.addcmul({f}, {f2}, {f3})", "torch.float_power({f}, 2)",
        "{c} * {c2}", "torch.complex({a}, {a2})", "torch.polar({a}.abs(), {a2})", "{c} + {f}", "{a} * self.k0", "{f} + self.k0",
        "{x} + self.i0", "self.k0 * {n}", "{x} * self.d0", "{f} * torch.tensor(0.5)", "{n} + torch.tensor(2)",
    )
)  # fmt: skip
SCALAR = tuple(
    f"{{o}} = {call}"
    for call in (
        "{x} + {s}", "{x} * {s}", "{s} - {x}", "{x} - {s}", "{s} / ({f}.abs() + 1)", "{x} / 2", "{x} > {s}", "{x} <= {s}", "{x} == {s}",
        "{x} + True", "{f} * 1j", "{c} * 0.5", "{c} + {k}", "{f}.add(1, alpha={j})", "{x}.clamp(-1, 1)", "{f}.clamp(min={k})",
        "{f}.clamp(max={k})", "{n}.clamp(0, 2)", "{f}.clamp({f2}, {f2} + 1)", "{n} * 0.5", "{m} + 1", "{m} * {k}", "{x}.mul({s})",
        "torch.pow({k}, {f}.clamp(-2, 2))", "{f} // 1", "{f}.pow({j})", "{n}.pow(2)", "True ^ {m}", "{f}.clip(-0.5, 0.5)",
        "torch.rsub({x}, {s})", "{f} / {k}", "{x} + 3000000000", "{x} * 1e-3", "{f} + float('inf') * 0 if False else {f} + 0.0",
    )
)  # fmt: skip
REDUCE = tuple(
    f"{{o}} = {call}"
    for call in (
        "{x}.sum({d})", "{f}.mean({d}, keepdim=True)", "{x}.amax({d})", "{f}.amin(({d}, {e}))", "{f}.prod({d})", "{f}.var({d}, correction=0)",
        "{f}.std({d}, keepdim=True, correction=0)", "{x}.any({d})", "{m}.all({d}, keepdim=True)", "{f}.logsumexp({d})", "{f}.norm(dim={d})",
        "torch.linalg.vector_norm({f}, dim={d})", "{f}.argmax({d})", "{x}.argmin({d}, keepdim=True)", "{x}.cumsum({d})", "{f}.cumprod({d})",
        "torch.softmax({f}, {d})", "F.log_softmax({f}, {d})", "F.layer_norm({a}, (self.n,), self.bias, self.bias)", "F.layer_norm({f}, (self.n,))",
        "F.rms_norm({a}, (self.n,), self.bias)", "torch.count_nonzero({x}, {d})", "{x}.flip({d})", "{x}.roll(1, {d})", "{f}.max({d}).values",
        "{f}.min({d}).indices", "{f}.sort({d}).values", "{f}.sort({d}, descending=True).indices", "{f}.topk(2, {d}).values", "{f}.argsort({d})",
        "{f}.kthvalue(1, {d}).values", "{f}.median({d}).values", "{f}.cummax({d}).values", "F.normalize({f}, dim={d})", "{x}.sum()", "{f}.mean()",
        "{f}.max()", "{x}.sum({d}, dtype=torch.float64)", "{f}.logcumsumexp({d})", "{f}.diff(dim={d})", "{f}.quantile(0.5, dim={d})",
        "torch.aminmax({f}, dim={d}).max", "F.batch_norm({a}, self.rm, self.rv)", "F.softmin({f}, {d})", "{f}.nansum({d})", "{f}.sum(({d}, {e}), keepdim=True)",
        "torch.trapezoid({f}, dim={d})", "{f}.square().mean({d}).sqrt()", "torch.cosine_similarity({f}, {f2}, dim={d})", "F.group_norm({a}, 1)",
        "{f}.renorm(2, 0, 1.0)", "{f}.sort(dim={d}, stable=True).indices", "{n}.sum({d})", "{m}.sum({d})", "{n}.float().mean({d})",
    )
) + (
    "{o}, {o2} = {f}.max({d})", "{o}, {o2} = {f}.sort({d})", "{o}, {o2} = torch.topk({f}, 2, {d})", "{o}, {o2} = torch.var_mean({f}, {d})",
    "{o}, {o2} = torch.aminmax({f}, dim={d})", "{o}, {o2} = torch.std_mean({f}, {d}, correction=0)", "{o}, {o2} = torch.frexp({a})",
)  # fmt: skip
MATMUL = tuple(
    f"{{o}} = {call}"
    for call in (
        "{a} @ self.w", "F.linear({a}, self.w, self.bias)", "F.linear({a}, self.w)", "{a} @ self.w.t()", "torch.matmul({a}, self.bias)",
        "torch.einsum('...i,ij->...j', {a}, self.w)", "torch.bmm({a}, {a2}.transpose(1, 2))", "{a} @ {a2}.transpose(-1, -2)", "{a}.mT @ {a2}",
        "torch.addmm(self.bias, {a}, self.w, alpha={k})", "torch.baddbmm({a}, {a2}, self.w.expand({a}.shape[0], self.n, self.n))",
        "torch.outer(self.bias, self.bias)", "torch.mv(self.w, self.bias)", "F.bilinear({a}, {a2}, self.w[None], None)",
        "{a}.double() @ self.w.double()", "({a}.bfloat16() @ self.w.bfloat16())", "{a}.to(torch.complex64) @ self.w.to(torch.complex64)",
        "torch.tensordot({a}, self.w, 1)", "torch.linalg.multi_dot([{a}, self.w, self.w])", "{a} @ self.w @ self.w.t() * 0.1", "torch.inner({a}, self.bias)",
        "F.scaled_dot_product_attention({a}[:, None], {a2}[:, None], {a3}[:, None])", "torch.chain_matmul({a}, self.w)", "{n} @ self.wi",
        "F.scaled_dot_product_attention({a}[None], {a2}[None], {a3}[None], is_causal=True)", "F.conv1d({a}[:, None], self.kernel)",
        "F.conv1d({a}[:, None], self.kernel, padding=1)[:, 0]", "F.conv2d({a}[:, None, None], self.kernel[None], padding=1)", "F.conv_transpose1d({a}[:, None], self.kernel.mT.mT)",
        "F.max_pool1d({a}[:, None], 2)", "F.avg_pool1d({a}[:, None], 2, stride=1)", "F.interpolate({a}[:, None], scale_factor=2)", "F.adaptive_avg_pool1d({a}[:, None], 2)",
        "F.pad({f}, (1, 0))", "F.pad({a}[:, None], (1, 1), mode='reflect')", "F.pad({x}, (0, 1), value=2)", "torch.cdist({a}, self.w)", "torch.addmv(self.bias, self.w, self.bias)",
        "F.mse_loss({a}, {a2}, reduction='none')", "F.smooth_l1_loss({f}, {f2}, reduction='none')", "torch.linalg.norm({a}, dim={d})", "torch.cross({a}[..., :3], {a2}[..., :3], dim=-1)",
        "F.cross_entropy({a}, {i}, reduction='none')", "torch.kron({a}, self.bias)", "torch.trace(self.w) * {f}", "F.cosine_embedding_loss({a}, {a2}, self.one, reduction='none')",
    )
)  # fmt: skip
INDEX = tuple(
    f"{{o}} = {call}"
    for call in (
        "torch.index_select({x}, {d}, self.idx)", "{x}[..., self.idx]", "{x}[:, self.idx]", "torch.gather({f}, {d}, {f2}.argsort({d}))", "{x}.take_along_dim({f}.argsort({d}), {d})",
        "{f}.scatter({d}, {f}.argsort({d}), {f2})", "{f}.scatter({d}, {f}.argsort({d}), {k})", "{f}.scatter_add({d}, {f}.argsort({d}), {f2})", "{f}.index_add({d}, self.idx, {f2})",
        "{f}.index_copy({d}, self.idx, {f2})", "{x}.index_fill({d}, self.idx, {j})", "{x}.masked_fill({m}, {s})", "{f}.masked_fill({f} > 0, float('-inf')).clamp(min=-9)",
        "F.embedding({i}.clamp(0, 6), self.table)", "self.table[{i}.clamp(0, 6)]", "F.embedding_bag({i}.clamp(0, 6), self.table)", "{x}[..., None, self.idx]", "self.w[self.idx, self.idx]",
        "torch.index_put({f}, (self.idx[:1],), {f}[:1])", "{f}.scatter_reduce({d}, {f}.argsort({d}), {f2}, 'amax')", "torch.bucketize({a}, self.edges)", "torch.searchsorted(self.edges, {a})",
        "{x}.take(self.idx)", "{x}[self.idx]", "F.one_hot({i}.clamp(0, 6), 7)", "{x}.repeat_interleave(2, {d})", "{x}.tril()", "{x}.triu(1)", "torch.diag_embed({x})", "{i}.unsqueeze(-1) == torch.arange(3)",
        "{x}.masked_scatter({m}, {x2})", "{x}[..., -1]", "{x}[..., 0:1]", "{x}.index_select(-1, self.idx.flip(0))", "torch.select_scatter({x}, {x}.select({d}, 0) * 0, {d}, 0)", "torch.slice_scatter({f}, {f}[..., :1], -1, 1, 2)",
    )
)  # fmt: skip
JOIN = tuple(
    f"{{o}} = {call}"
    for call in (
        "torch.cat([{x}, {x2}], {d})", "torch.cat([{x}, {x}, {x2}], {d})", "torch.stack([{x}, {x2}], {d})", "torch.stack([{x}, {x2}])", "torch.hstack([{x}, {x2}])", "{x}.repeat(1, 2)",
        "{x}.tile(2)", "torch.split({x}, 2, {d})[0]", "torch.chunk({x}, 2, {d})[-1]", "{x}.unbind({d})[0]", "{x}.tensor_split(2, {d})[1]", "torch.dstack([{x}, {x2}])", "torch.cat([{f}, {n}], {d})",
    )
) + (
    "{o}, {o2} = {x}.chunk(2, {d})", "{o}, {o2} = torch.broadcast_tensors({x}, {x2})", "{o}, {o2} = torch.split({x}, [1, {x}.shape[-1] - 1], -1)", "{o}, *_ = {x}.unbind({d})",
    "{o}, {o2} = torch.unsafe_chunk({x}, 2, {d})", "{o}, {o2} = torch.meshgrid({x}[..., 0].reshape(-1), self.bias, indexing='ij')",
)  # fmt: skip
VIEWS = tuple(
    f"{{o}} = {call}"
    for call in (
        "{x}.transpose({d}, {e})", "{x}.t()", "{x}.unsqueeze({d})", "{x}.squeeze()", "{x}.squeeze({d})", "{x}.expand(2, *{x}.shape)", "{x}.reshape(-1)", "{x}.view(-1)", "{x}.flatten(0, 1)",
        "{x}.reshape(-1, {x}.shape[-1])", "{x}.narrow({d}, 0, 1)", "{x}.select({d}, 0)", "{x}[..., ::2]", "{x}[..., 1:]", "{x}[:, :1]", "{x}.diagonal(0, {d}, {e})", "{x}.unfold({d}, 2, 1)", "{x}.movedim({d}, {e})",
        "{x}.mT", "{x}.permute(*reversed(range({x}.dim())))", "{x}.unflatten({d}, (2, -1))", "{x}.as_strided((2,), (1,))", "{x}.contiguous().view(-1, 2)", "{x}.detach()", "{x}.data", "{x}.view_as({x})", "{x}[None]",
        "torch.view_as_real({c})", "torch.view_as_complex({a}.reshape(-1, 2))", "{c}.conj()", "{c}.real", "{c}.imag", "{c}.conj().imag", "{c}.resolve_conj()", "torch.resolve_neg({c}.conj().imag)", "{a}.view(torch.int32)", "{c}.abs()",
        "{c}.angle()", "{c}.conj() * {c2}", "{x}.swapaxes({d}, {e})", "torch.atleast_3d({x})", "{x}.broadcast_to(1, *{x}.shape)", "{x}.expand_as({x2})", "{x}.view(*{x}.shape, 1)", "torch.as_strided({x}, {x}.shape, {x}.stride())",
        "{c}.conj().real", "torch.adjoint({c})", "{x}[..., :2].contiguous()", "torch.movedim({x}, 0, -1)", "{x}.alias() if hasattr({x}, 'alias') else {x}", "{x}.expand(-1, *[-1] * ({x}.dim() - 1))", "{x}.t().contiguous().t()",
        "{x}.ravel()", "torch.ops.aten.alias({x})", "{x}.view_as({x2})", "{x}.unflatten({d}, (1, -1)).squeeze({d})", "{f}[:, None, None].contiguous(memory_format=torch.channels_last)", "{c}.clone()", "({c}.conj() + 0).real",
    )
)  # fmt: skip
CASTS = tuple(
    f"{{o}} = {call}"
    for call in (
        "{x}.float()", "{f}.half()", "{f}.bfloat16()", "{f}.double()", "{f}.to(torch.int64)", "{f}.clamp(-3, 3).to(torch.int32)", "{x}.bool()", "{f}.to(torch.complex64)", "{f}.type_as({f2})", "{n}.to(torch.int32)",
        "{x}.to({x2}.dtype) if not {x}.dtype.is_complex else {x}.clone()", "{n}.abs().to(torch.uint8)", "{x}.to({x}.dtype)", "{x}.to({x}.dtype, copy=True)", "{m}.to(torch.float32)", "{f}.to(torch.float8_e5m2).float()", "{x}.type(torch.float32)",
        "{n}.to(torch.int16)", "{m}.int()", "{f}.float().half() + {f2}", "{n}.float()", "{f}.clamp(-3, 3).to(torch.int8)",
    )
)  # fmt: skip
CREATE = tuple(
    f"{{o}} = {call}"
    for call in (
        "torch.arange(4)", "torch.arange({x}.shape[0])", "torch.arange(0.0, 1.0, 0.25)", "torch.full((2, self.n), {k})", "torch.full({x}.shape, 3)", "torch.zeros({x}.shape[0], 3)", "torch.ones(self.n)", "torch.zeros_like({x})",
        "torch.ones_like({f}, dtype=torch.float64)", "torch.full_like({x}, {j})", "{x}.new_zeros({x}.shape)", "{x}.new_full((2, 2), 1)", "torch.empty_like({x}).copy_({x})", "torch.empty({x}.shape).fill_({k})", "torch.eye(self.n)", "torch.linspace(0, 1, 4)",
        "torch.ones(self.n, self.n).tril()", "torch.empty(self.n).zero_()", "torch.zeros(2, dtype=torch.bool)", "torch.empty_strided((2, 3), (1, 2)).fill_(2.0)", "torch.triu_indices(3, 3)", "torch.scalar_tensor({k})", "{x}.new_ones(1)", "torch.zeros(())",
        "torch.logspace(0, 1, 3)", "torch.empty_like({x}).zero_()", "torch.hann_window(4)", "torch.empty_like({x}, memory_format=torch.contiguous_format).fill_({j})", "torch.tril_indices(2, 2)", "torch.full((), {k})", "torch.arange(self.n, 0, -1)",
    )
)  # fmt: skip
FOREACH = (
    "{o}, {o2} = torch._foreach_add([{f}, {f2}], {k})", "{o}, {o2} = torch._foreach_mul([{f}, {f2}], [{f2}, {f}])", "{o}, {o2} = torch._foreach_norm([{a}, {a2}])", "{o}, {o2} = torch._foreach_exp([{f}, {f2}])", "{o}, {o2} = torch._foreach_lerp([{a}, {a}], [{a2}, {a2}], 0.3)",
    "{o}, {o2} = torch._foreach_neg([{x}, {x2}])", "{o}, {o2} = torch._foreach_div([{f}, {f2}], [2.0, 3.0])", "{o} = torch._foreach_addcmul([{a}], [{a2}], [{a3}], 0.5)[0]", "{o}, {o2} = torch._foreach_clamp_min([{a}, {a2}], 0.1)", "{o}, {o2} = torch._foreach_maximum([{a}, {a2}], 0.0)",
)  # fmt: skip
RANDOM = (
    "{o} = F.dropout({f}, 0.5, training=True)", "{o} = F.dropout({f}, {p})", "{o} = torch.rand({x}.shape)", "{o} = torch.rand_like({a})", "{o} = {a} + torch.randn_like({a}) * 0.1", "{o} = torch.bernoulli(torch.sigmoid({a}))", "{o} = torch.randint(0, 5, {x}.shape)",
    "{o} = torch.randn(2, self.n)", "{o} = torch.randperm(4)", "{o} = torch.softmax({a}, -1).multinomial(1)", "{o} = torch.empty_like({a}).uniform_(-1, 1)", "{o} = torch.empty({x}.shape).bernoulli_({p})", "{o} = torch.normal(0.0, 1.0, (self.n,))", "{o} = F.alpha_dropout({a}, 0.3, True)",
    "{o} = torch.empty_like({a}).exponential_()", "{o} = F.rrelu({a}, training=True)", "{o} = torch.poisson({a}.abs())", "{o} = F.gumbel_softmax({a}, dim=-1)", "{o} = torch.randint_like({a}, 3)", "{o} = F.feature_dropout({a}[:, None], 0.5, True)",
)  # fmt: skip
INPLACE = (
    "{t}.add_({k})", "{t}.mul_(0.5)", "{t}.add_({x})", "{t}.sub_({x}, alpha=2)", "{t}.mul_({x})", "{t}.relu_()", "{t}.clamp_(-1, 1)", "{t}.fill_({j})", "{t}.zero_()", "{t}.copy_({x})", "{t}.masked_fill_({m}, {j})", "{t}[..., 0] = {x}[..., 0]", "{t}[..., 1:] += 1",
    "{t}[:, 0].mul_(2)", "{t}[..., ::2].neg_()", "{t}.transpose(0, -1).add_(1)", "{t}.copy_({x}.expand_as({t}))", "{t}[..., 1:].copy_({t}[..., :-1])", "{t}[..., :-1].copy_({t}[..., 1:])", "{t}.lerp_({f}, 0.5)", "{t}.addcmul_({f}, {f2}, value=0.1)", "{t}.sigmoid_()", "{t}.tril_()",
    "{t}.index_add_({d}, self.idx, {f})", "{t}.index_copy_({d}, self.idx, {f})", "{t}.index_fill_({d}, self.idx, 1)", "{t}.scatter_({d}, {f}.argsort({d}), {f})", "{t}.data.mul_(0.5)", "{t}.detach().add_(1)", "{t}.view(-1)[:1] = 3", "{t}.flatten()[0:2].zero_()", "{t}[...] = {x}",
    "{t}.index_put_((self.idx[:1],), {t}[:1] * 2)", "{t}.index_put_((self.idx[:2],), {f}[:2], accumulate=True)", "{t}[..., -1] = {k}", "{t}.unsqueeze(0).mul_(0.5)", "torch._foreach_mul_([{t}], 0.5)", "torch._foreach_add_([{t}, {t2}], 1)", "torch._foreach_copy_([{t}], [{x}])", "{t}.baddbmm_({a}, {a2})",
    "torch._foreach_add_([{t}], [{f}], alpha=0.5)", "{t} += {x}", "{t} *= 0.5", "{t} -= {s}", "{t}.pow_(2)", "{t}.round_()", "{t}.cumsum_({d})", "{t}.squeeze_(0)", "{t}.unsqueeze_(-1)", "{t}.transpose_(0, -1)", "torch.add({f}, {f2}, out={t})", "torch.mul({x}, {x2}, out={t})", "{t}.swapaxes(0, -1).zero_()", "{t}.diagonal().fill_(1)",
    "{t}.logical_not_()", "{t}.neg_()", "{t}.abs_()", "{t}.addmm_({a}, self.w, beta=0.5)", "{t}.masked_scatter_({m}, {x})", "{t}.set_({x})", "{t}.exp_()", "{t}.copy_({t}.flip(0))", "{t}.real.mul_(2)", "{t}.conj().mul_(2)", "torch._foreach_zero_([{t}, {t2}])", "{t}.clamp_({f}, {f} + 1)", "{t}.ge_(0)", "{t}.fill_(self.k0)", "{t}.bitwise_xor_(1)",
    "torch.cumsum({x}, {d}, out={t})", "{t}.resize_as_({x})", "{t}.renorm_(2, 0, 1)", "{t}.scatter_add_({d}, {f}.argsort({d}), {f})", "{t}.index_reduce_({d}, self.idx, {f}, 'amax')", "F.relu({t}, inplace=True)", "F.dropout({t}, 0.0, True, True)", "{t}.unfold({d}, 2, 2).mul_(0.5)", "{t}.expand(1, *{t}.shape).add_(1)",
)  # fmt: skip
RANDOM_INPLACE = (
    "{t}.uniform_()", "{t}.normal_(0, 0.1)", "{t}.bernoulli_(0.5)", "F.dropout({t}, 0.5, True, True)", "{t}.random_(0, 3)", "{t}.copy_(torch.rand_like({t}))", "{t}.exponential_()", "{t}.geometric_(0.5)", "{t}.log_normal_(0, 0.1)",
)  # fmt: skip
#: Statements that leave something on the model.
ATTRIBUTES = (
    "self.last = {x}", "self.last = {x} * 2", "self.count.add_(1)", "self.count += 1", "self.buf.copy_({f})", "self.buf.mul_(0.9).add_({f}.mean() if {f}.dim() == 1 else 0.1)", "self.buf[self.count % 2] = 1.0",
    "self.buf.index_fill_(0, self.count.reshape(1) % self.n, 1.5)", "{o} = {f} + self.count", "{o} = self.buf * {f}", "{o} = self.last + 0", "self.buf.data.add_(0.5)", "self.w.mul_(0.9)", "self.buf.data = self.buf.data", "{o} = {f} * self.count.clamp(max=3)",
)  # fmt: skip
#: Only for rows that may be mixed.
MIXING = (
    "{o} = F.batch_norm({a}, self.rm, self.rv, training=True)", "{o} = {x}.sum(0)", "{o} = {f}.mean(0, keepdim=True) * {f}", "{o} = {x}.flip(0)", "{o} = {f}.sort(0).values", "{o} = {f}.t() @ {f}", "{o} = {f}.cumsum(0)", "{o} = F.layer_norm({a}, {a}.shape)", "self.buf.add_({f}.mean(0))", "{o} = {x}.roll(1, 0)",
    "{o} = torch.cat([{x}, {x2}], 0)", "{o} = {f}.softmax(0)", "{o} = {f} - {f}.max()", "{o} = {x}[-1]", "{o} = {x}[0]", "{o} = torch.var_mean({f})[1]",
)  # fmt: skip
#: Eager regions may look at values.
EAGER = (
    "{o} = {f} * float({f}.abs().max())", "{o} = {f} + (1.0 if bool({f}.sum() > 0) else -1.0)", "{o} = {f} + len({f}[{f} > 0])", "{o} = torch.tensor({f}.tolist())", "{o} = torch.from_numpy({a}.numpy() * 2)", "{o} = {f} * {f}.argmax().item()", "{o} = {x}.clone()", "{o} = {x}", "{o} = {x}.transpose(0, -1).contiguous().transpose(0, -1)",
)  # fmt: skip

GROUPS: dict[str, tuple[tuple[str, ...], float]] = {
    "unary": (UNARY, 3), "binary": (BINARY, 4), "scalar": (SCALAR, 2), "reduce": (REDUCE, 3), "matmul": (MATMUL, 3), "index": (INDEX, 2), "join": (JOIN, 2), "views": (VIEWS, 5), "casts": (CASTS, 1.5),
    "create": (CREATE, 1), "foreach": (FOREACH, 0.7), "inplace": (INPLACE, 6), "attributes": (ATTRIBUTES, 1.2),
}  # fmt: skip
