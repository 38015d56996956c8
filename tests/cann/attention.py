"""A decode step of npu_fused_infer_attention_score with its CPU reference, for the tests."""

from __future__ import annotations

import math

import torch
import torch_npu


class Decode:
    """Two sequences, 4 query heads over 2 KV heads, a cache of 16 positions of size 8."""

    batch, heads, kv_heads, capacity, size = 2, 4, 2, 16, 8

    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.query = torch.randn(self.batch, self.heads, 1, self.size, generator=random).npu()
        shape = (self.batch, self.kv_heads, self.capacity, self.size)
        self.key, self.value = (torch.randn(shape, generator=random).npu() for _ in range(2))
        self.options = {
            "num_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "scale": 1 / math.sqrt(self.size),
            "input_layout": "BNSD",
        }

    def run(self, lengths: list[int]) -> torch.Tensor:
        """[batch, heads, 1, size], attending to the first ``lengths`` positions of each sequence."""
        out, _ = torch_npu.npu_fused_infer_attention_score(
            self.query, self.key, self.value, actual_seq_lengths_kv=lengths, **self.options
        )
        return out

    def buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs for ``run_out``."""
        return torch.empty_like(self.query), torch.empty(1, device="npu")

    def run_out(self, lengths: list[int], out: torch.Tensor, lse: torch.Tensor) -> None:
        """The ``out`` form, which task groups need: its workspace and results keep their addresses."""
        torch_npu.npu_fused_infer_attention_score.out(
            self.query, self.key, self.value, actual_seq_lengths_kv=lengths, out=[out, lse], **self.options
        )

    def check(self, actual: torch.Tensor, lengths: list[int]) -> None:
        """Compare with softmax attention on the CPU."""
        query, key, value = self.query.cpu(), self.key.cpu(), self.value.cpu()
        rows = []
        for b, length in enumerate(lengths):
            k = key[b, :, :length].repeat_interleave(self.heads // self.kv_heads, 0)
            v = value[b, :, :length].repeat_interleave(self.heads // self.kv_heads, 0)
            rows.append((query[b] @ k.mT / math.sqrt(self.size)).softmax(-1) @ v)
        torch.testing.assert_close(actual.cpu(), torch.stack(rows))
