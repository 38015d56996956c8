"""The reference of `npu_fused_infer_attention_score` for the CPU, under the operator's own name and signature.

torch_npu defines the operator for NPUs. Here it gets a CPU kernel for what the example uses of it (layout BSH, paged
or dense keys and values, lengths), and where torch_npu is not installed the definition as well: one model, one spec.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys

import torch

NAME = "npu_fused_infer_attention_score"
SIGNATURE = (
    f"{NAME}(Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? atten_mask=None, "
    "SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, "
    "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? key_antiquant_scale=None, "
    "Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, "
    "Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None, "
    "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, SymInt[]? actual_shared_prefix_len=None, "
    "Tensor? query_rope=None, Tensor? key_rope=None, Tensor? key_rope_antiquant_scale=None, int num_heads=1, "
    'float scale=1., int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH", '
    "int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, int antiquant_mode=0, "
    "int key_antiquant_mode=0, int value_antiquant_mode=0, bool softmax_lse_flag=False) -> (Tensor, Tensor)"
)
#: What the reference understands; anything else must have its default.
KNOWN = {
    "actual_seq_lengths_kv",
    "block_table",
    "num_heads",
    "scale",
    "input_layout",
    "num_key_value_heads",
    "block_size",
}


def register() -> None:
    """Make ``torch.ops.npu.npu_fused_infer_attention_score`` work on CPU tensors. Calling it again does nothing."""
    _load_torch_npu()
    defined = hasattr(torch.ops.npu, NAME)
    qualified = f"npu::{NAME}"
    if defined and torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CPU"):  # noqa: SLF001  nothing public tells
        return
    if not defined:
        torch.library.define(qualified, SIGNATURE.removeprefix(NAME))
        torch.library.register_fake(qualified, _shapes)
    torch.library.impl(qualified, "cpu", attend)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention of one query a sequence over its first ``actual_seq_lengths_kv`` keys.

    ``query`` is [batch, 1, heads * size]. With a ``block_table`` [batch, blocks], ``key`` and ``value`` are
    [blocks, block_size, kv_heads * size], else [batch, length, kv_heads * size]. Returns the attention in the shape
    and dtype of ``query``, and an empty log-sum-exp. Raises NotImplementedError for options it does not know.
    """
    unknown = [name for name, given in options.items() if name not in KNOWN and _is_set(given)]
    if unknown or options.get("input_layout", "BSH") != "BSH" or query.shape[1] != 1:
        raise NotImplementedError(f"the CPU reference of {NAME} has no {', '.join(unknown) or 'such layout'}")
    heads, kv_heads = options["num_heads"], options.get("num_key_value_heads") or options["num_heads"]
    lengths, table = options["actual_seq_lengths_kv"], options.get("block_table")
    size = query.shape[-1] // heads
    out = torch.zeros(query.shape, dtype=query.dtype)
    for row, length in enumerate(lengths):
        if length == 0:
            continue
        keys, values = (
            _first(cache, row, length, table)
            .float()
            .unflatten(-1, (kv_heads, size))
            .repeat_interleave(heads // kv_heads, 1)
            for cache in (key, value)
        )
        scores = torch.einsum("hd,thd->ht", query[row, 0].float().unflatten(-1, (heads, size)), keys) * options["scale"]
        out[row, 0] = torch.einsum("ht,thd->hd", scores.softmax(-1), values).flatten().to(query.dtype)
    return out, query.new_zeros(1, dtype=torch.float32)


def _first(cache: torch.Tensor, row: int, length: int, table: torch.Tensor | None) -> torch.Tensor:
    """The first ``length`` positions of one sequence, [length, kv_heads * size]."""
    if table is None:
        return cache[row, :length]
    needed = -(-length // cache.shape[1])
    return cache.index_select(0, table[row, :needed].long()).flatten(0, 1)[:length]


def _shapes(query: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(query), query.new_empty(1, dtype=torch.float32)


def _is_set(given: object) -> bool:
    return isinstance(given, torch.Tensor) or (given is not None and given not in (0, 2147483647, False))


def _load_torch_npu() -> None:
    """Where torch_npu is installed, the definition of the operator is its own: it must come first."""
    if importlib.util.find_spec("torch_npu") is None or "torch_npu" in sys.modules:
        return
    # It prints its warnings, and without CANN it does not load; then nothing of it is defined.
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Exception):
        import torch_npu  # noqa: F401
