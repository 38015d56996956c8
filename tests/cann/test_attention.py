"""Fused attention in every emulated layout, against attention written out on the CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch_npu

HEADS, KV_HEADS, SIZE = 4, 2, 16
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
    """[N, S, D] with [NK, T, D]; ``hidden`` is [S, T]."""
    k, v = (x.float().repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
    scores = q.float() @ k.mT / math.sqrt(SIZE)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


def inputs(batch: int, queries: int, keys: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(batch + queries + keys)
    shapes = ((batch, HEADS, queries, SIZE), (batch, KV_HEADS, keys, SIZE), (batch, KV_HEADS, keys, SIZE))
    return tuple(torch.randn(shape, generator=random).to(dtype) for shape in shapes)


# From [B, N, S, D] to the layout and back.
TO = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2).contiguous(),
    "BSH": lambda x: x.transpose(1, 2).flatten(2).contiguous(),
}
BACK = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2),
    "BSH": lambda x: x.unflatten(2, (HEADS, SIZE)).transpose(1, 2),
}


def fused(version: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    """Version 1 or 2 of the operator, with the argument names of version 1."""
    common = {"input_layout": options.pop("layout")}
    lengths, kv_lengths = options.pop("lengths", None), options.pop("kv_lengths", None)
    scale = 1 / math.sqrt(SIZE)
    if version == 1:
        return torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=HEADS, num_key_value_heads=KV_HEADS, scale=scale,
            actual_seq_lengths=lengths, actual_seq_lengths_kv=kv_lengths, **common, **options,
        )  # fmt: skip
    if "softmax_lse_flag" in options:
        options["return_softmax_lse"] = options.pop("softmax_lse_flag")
    return torch_npu.npu_fused_infer_attention_score_v2(
        q, k, v, num_query_heads=HEADS, num_key_value_heads=KV_HEADS, softmax_scale=scale,
        actual_seq_qlen=lengths, actual_seq_kvlen=kv_lengths, **common, **options,
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("layout", TO)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_lengths_in_each_layout(version: int, layout: str, dtype: torch.dtype) -> None:
    q, k, v = inputs(2, 1, 9, dtype)
    lengths = [5, 9]
    out, _ = fused(version, *(TO[layout](x).npu() for x in (q, k, v)), layout=layout, kv_lengths=lengths)
    expected = torch.stack([reference(q[b], k[b, :, :n], v[b, :, :n]) for b, n in enumerate(lengths)])
    torch.testing.assert_close(BACK[layout](out.cpu()).float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("version", [1, 2])
def test_mask_and_logsumexp(version: int) -> None:
    q, k, v = inputs(2, 4, 7, torch.float16)
    hidden = torch.rand(2, 1, 4, 7, generator=torch.Generator().manual_seed(0)) > 0.6
    hidden[..., 0] = False
    out, lse = fused(version, q.npu(), k.npu(), v.npu(), layout="BNSD", atten_mask=hidden.npu(), softmax_lse_flag=True)
    expected = torch.stack([reference(q[b], k[b], v[b], hidden[b, 0]) for b in range(2)])
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2e-3, atol=2e-3)
    scores = q.float() @ k.float().repeat_interleave(2, 1).mT / math.sqrt(SIZE)
    logsumexp = scores.masked_fill(hidden, -math.inf).logsumexp(-1, keepdim=True)
    torch.testing.assert_close(lse.cpu(), logsumexp, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("mode", "offset"), [(2, 0), (3, 3)])
def test_causal_modes(mode: int, offset: int) -> None:
    q, k, v = inputs(1, 4, 7, torch.float16)
    compressed = torch.ones(2048, 2048, dtype=torch.bool).triu(1).npu()
    out, _ = fused(1, q.npu(), k.npu(), v.npu(), layout="BNSD", atten_mask=compressed, sparse_mode=mode)
    hidden = torch.ones(4, 7, dtype=torch.bool).triu(1 + offset)
    expected = reference(q[0], k[0], v[0], hidden)[None]
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2e-3, atol=2e-3)


def test_packed_sequences() -> None:
    q, k, v = inputs(1, 5, 9, torch.float16)
    packed = [x[0].transpose(0, 1).contiguous().npu() for x in (q, k, v)]
    out, _ = fused(1, *packed, layout="TND", lengths=[2, 5], kv_lengths=[4, 9])
    first = reference(q[0, :, :2], k[0, :, :4], v[0, :, :4])
    second = reference(q[0, :, 2:], k[0, :, 4:], v[0, :, 4:])
    expected = torch.cat([first, second], 1).transpose(0, 1)
    torch.testing.assert_close(out.cpu().float(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("cache", ["BBH", "BNBD"])
@pytest.mark.parametrize("lengths", [[20, 7], [32, 1], [16, 17]])
def test_paged_cache(version: int, cache: str, lengths: list[int]) -> None:
    block, blocks = 16, 8
    random = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(blocks, block, KV_HEADS, SIZE, generator=random).half() for _ in range(2))
    query = torch.randn(2, 1, HEADS * SIZE, generator=random).half()
    table = torch.tensor([[0, 3], [5, 1]], dtype=torch.int32)
    store = (lambda x: x.flatten(2)) if cache == "BBH" else (lambda x: x.transpose(1, 2).contiguous())
    out, _ = fused(
        version, query.npu(), store(keys).npu(), store(values).npu(), layout="BSH",
        block_table=table.npu(), block_size=block, kv_lengths=lengths,
    )  # fmt: skip
    for b, length in enumerate(lengths):
        k, v = (x[table[b].long()].flatten(0, 1)[:length].transpose(0, 1) for x in (keys, values))
        expected = reference(query[b].reshape(1, HEADS, SIZE).transpose(0, 1), k, v)
        actual = out[b].cpu().float().reshape(1, HEADS, SIZE).transpose(0, 1)
        torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3)


def test_a_length_past_the_cache_is_reported() -> None:
    q, k, v = inputs(2, 1, 9, torch.float16)
    fused(1, q.npu(), k.npu(), v.npu(), layout="BNSD", kv_lengths=[5, 10])
    with pytest.raises(RuntimeError, match="KV length 10 is larger than the cache of 9"):
        torch.npu.synchronize()


def test_cache_writes() -> None:
    blocks, block = 4, 8
    keys, values = (torch.zeros(blocks, block, KV_HEADS, SIZE, dtype=torch.float16) for _ in range(2))
    new = torch.randn(3, KV_HEADS, SIZE).half()
    slots = torch.tensor([0, 9, 31], dtype=torch.int32)
    on_npu = keys.npu(), values.npu()
    torch_npu._npu_reshape_and_cache(new.npu(), (new * 2).npu(), *on_npu, slots.npu())
    keys.flatten(0, 1)[slots.long()] = new
    values.flatten(0, 1)[slots.long()] = new * 2
    assert torch.equal(on_npu[0].cpu(), keys)
    assert torch.equal(on_npu[1].cpu(), values)


def test_scatter_nd_update() -> None:
    data = torch.zeros(6, 4)
    on_npu = data.npu()
    rows = torch.randn(2, 4)
    torch_npu.npu_scatter_nd_update_(on_npu, torch.tensor([[4], [1]]).npu(), rows.npu())
    data[[4, 1]] = rows
    assert torch.equal(on_npu.cpu(), data)


SDPA = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": torch.rand(6, 6, generator=torch.Generator().manual_seed(1)) > 0.3},
    "additive mask": {"attn_mask": torch.randn(6, 6, generator=torch.Generator().manual_seed(1))},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("options", SDPA)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_scaled_dot_product_attention(options: str, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    given = [torch.randn(2, HEADS, 6, SIZE, generator=random).to(dtype) for _ in range(3)]
    on_npu = [x.npu().requires_grad_() for x in given]
    on_cpu = [x.float().requires_grad_() for x in given]
    moved = {
        k: x.npu().to(dtype if x.is_floating_point() else x.dtype) if torch.is_tensor(x) else x
        for k, x in SDPA[options].items()
    }
    expected, actual = (
        F.scaled_dot_product_attention(*on_cpu, **SDPA[options]),
        F.scaled_dot_product_attention(*on_npu, **moved),
    )
    weight = torch.randn(expected.shape, generator=random)
    (expected * weight).sum().backward()
    (actual * weight.npu().to(dtype)).sum().backward()
    tolerance = TOLERANCE[dtype] * 4
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=tolerance, atol=tolerance)
    for x, y in zip(on_cpu, on_npu, strict=True):
        torch.testing.assert_close(y.grad.cpu().float(), x.grad, rtol=tolerance, atol=tolerance)


# ---- dropout. Uniform probabilities and an identity for the values make the output the mask itself.

KEEP = 0.6


def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=1 - KEEP)


def mask_of(seed: int) -> torch.Tensor:
    """Which of the probabilities [2, HEADS, SIZE, SIZE] that seed keeps."""
    zero = torch.zeros(2, HEADS, SIZE, SIZE, device="npu")
    torch.npu.manual_seed(seed)
    return dropped(zero, zero, torch.eye(SIZE, device="npu").expand_as(zero).contiguous()).cpu() > 0


def test_attention_drops_the_share_that_is_asked_for_and_the_seed_decides_which() -> None:
    mask = mask_of(3)
    assert abs(mask.float().mean().item() - KEEP) < 0.05
    assert torch.equal(mask, mask_of(3))
    assert not torch.equal(mask, mask_of(4))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_with_dropout_and_its_gradient(dtype: torch.dtype) -> None:
    mask, random = mask_of(5), torch.Generator().manual_seed(0)
    given = [torch.randn(2, HEADS, SIZE, SIZE, generator=random).to(dtype) for _ in range(3)]
    on_npu = [x.npu().requires_grad_() for x in given]
    on_cpu = [x.float().requires_grad_() for x in given]
    torch.npu.manual_seed(5)
    actual = dropped(*on_npu)
    q, k, v = on_cpu
    expected = (q @ k.mT / math.sqrt(SIZE)).softmax(-1) * mask / KEEP @ v
    weight = torch.randn(expected.shape, generator=random)
    (expected * weight).sum().backward()
    (actual * weight.npu().to(dtype)).sum().backward()
    tolerance = TOLERANCE[dtype] * 8
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=tolerance, atol=tolerance)
    for x, y in zip(on_cpu, on_npu, strict=True):
        torch.testing.assert_close(y.grad.cpu().float(), x.grad, rtol=tolerance, atol=tolerance)


def test_each_replay_drops_others_and_its_gradient_drops_the_same() -> None:
    zero = torch.zeros(2, HEADS, SIZE, SIZE, device="npu")
    values = torch.eye(SIZE, device="npu").expand_as(zero).contiguous().requires_grad_()
    weight = torch.rand_like(zero)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = dropped(zero, zero, values)
        (gradient,) = torch.autograd.grad(out, values, weight)
    seen = []
    for _ in range(2):
        graph.replay()
        probabilities = out.cpu()
        torch.testing.assert_close(gradient.cpu(), probabilities.mT @ weight.cpu())
        seen.append(probabilities)
    assert not torch.equal(*seen)


def test_sizes_that_do_not_fit_are_refused_by_name() -> None:
    q, k, v = (x.npu() for x in inputs(1, 4, 7, torch.float16))
    with pytest.raises(RuntimeError, match=r"aclnnFusedInferAttentionScoreV\d: a query of shape"):
        fused(1, q, k[..., :8].contiguous(), v, layout="BNSD")


def test_lengths_of_queries_have_no_effect_on_single_queries() -> None:
    q, k, v = inputs(1, 1, 7, torch.float16)
    out, _ = fused(1, q.npu(), k.npu(), v.npu(), layout="BNSD", lengths=[100])
    torch.testing.assert_close(out.cpu().float(), reference(q[0], k[0], v[0])[None], rtol=2e-3, atol=2e-3)
