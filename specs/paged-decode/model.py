"""One decode step over a paged KV cache, with the fused attention of Ascend NPUs.

The cache is a set of blocks; a table says which blocks hold the positions of each sequence, so sequences of any length
share one allocation. The attention takes the lengths as a host list, which a captured graph would freeze: they are
declared under `updates`. The places to write the new keys and values to are computed from a device copy of the same
lengths, inside the graph.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

#: Block 0 belongs to no sequence: what a row without a block writes is zeroed and lands there.
NULL_BLOCK = 0


class PagedAttention(nn.Module):
    """Attention of one new token a row over the positions its blocks hold."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, blocks: int, block_size: int) -> None:
        super().__init__()
        size = hidden // heads
        self.heads, self.kv_heads, self.size, self.block_size = heads, kv_heads, size, block_size
        self.query = nn.Linear(hidden, heads * size, bias=False)
        self.key = nn.Linear(hidden, kv_heads * size, bias=False)
        self.value = nn.Linear(hidden, kv_heads * size, bias=False)
        self.out = nn.Linear(heads * size, hidden, bias=False)
        self.register_buffer("keys", torch.zeros(blocks, block_size, kv_heads * size), persistent=False)
        self.register_buffer("values", torch.zeros(blocks, block_size, kv_heads * size), persistent=False)

    def forward(
        self, x: torch.Tensor, block_table: torch.Tensor, lens: torch.Tensor, kv_lens: Sequence[int]
    ) -> torch.Tensor:
        """Attends from ``x`` [batch, hidden] to the blocks that ``block_table`` [batch, blocks] int32 lists.

        Lengths count the new token: ``lens`` on the device, ``kv_lens`` on the host. Returns [batch, hidden].
        """
        position = (lens - 1).unsqueeze(1)
        block = block_table.gather(1, position // self.block_size).squeeze(1).long()
        place = (block, position.squeeze(1) % self.block_size)
        nobodys = (block == NULL_BLOCK).unsqueeze(1)
        self.keys.index_put_(place, self.key(x).masked_fill(nobodys, 0))
        self.values.index_put_(place, self.value(x).masked_fill(nobodys, 0))
        attended, _ = torch.ops.npu.npu_fused_infer_attention_score(
            self.query(x).unsqueeze(1),
            self.keys,
            self.values,
            actual_seq_lengths_kv=kv_lens,
            block_table=block_table,
            num_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            scale=1 / math.sqrt(self.size),
            input_layout="BSH",
            block_size=self.block_size,
        )
        return self.out(attended.squeeze(1))


class Layer(nn.Module):
    """Attention and a gated feed-forward part, each behind a norm and a residual."""

    def __init__(self, hidden: int, attention: PagedAttention) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.attention = attention
        self.feed_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 2 * hidden)
        self.down = nn.Linear(2 * hidden, hidden)

    def forward(
        self, x: torch.Tensor, block_table: torch.Tensor, lens: torch.Tensor, kv_lens: Sequence[int]
    ) -> torch.Tensor:
        """[batch, hidden] to [batch, hidden]; see `PagedAttention`."""
        x = x + self.attention(self.norm(x), block_table, lens, kv_lens)
        return x + self.down(functional.silu(self.up(self.feed_norm(x))))


class Decoder(nn.Module):
    """Token and position embeddings, layers, and a head tied to nothing."""

    def __init__(self, layers: int, hidden: int, vocabulary: int, blocks: int, block_size: int, cache: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(cache, hidden)
        self.layers = nn.ModuleList(
            Layer(hidden, PagedAttention(hidden, 4, 2, blocks, block_size)) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(
        self, tokens: torch.Tensor, block_table: torch.Tensor, lens: torch.Tensor, kv_lens: Sequence[int]
    ) -> torch.Tensor:
        """One token for each row [batch, 1] to the logits of the next [batch, vocabulary]."""
        x = self.embed(tokens.squeeze(1)) + self.positions(lens - 1)
        for layer in self.layers:
            x = layer(x, block_table, lens, kv_lens)
        return self.head(self.norm(x))


def build(layers: int, hidden: int, vocabulary: int, blocks: int, block_size: int, cache: int) -> nn.Module:
    """A decoder with random weights. On the CPU the attention is the reference of attention.py."""
    _attention().register()
    return Decoder(layers, hidden, vocabulary, blocks, block_size, cache)


def _attention():  # noqa: ANN202  a module
    """attention.py beside this file: folders of specs are no packages."""
    path = Path(__file__).with_name("attention.py")
    found = importlib.util.spec_from_file_location("paged_decode_attention", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
