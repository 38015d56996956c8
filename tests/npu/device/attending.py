"""A model whose attention takes its lengths as host lists, as source text, and what it computes, in plain PyTorch."""

from __future__ import annotations

import math

import torch

HEADER = "graphspec: 1\nname: case\nmodel: {factory: model.py:Model}\n"
PRELUDE = "import math\nimport torch\nfrom torch import nn\n\n"

#: ``layers`` updatable operators; ``ahead`` puts a long kernel before them.
MODEL = """
class Attention(nn.Module):
    def __init__(self, seed):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.register_buffer("keys", torch.randn(2, 2, 16, 8, generator=random))
        self.register_buffer("values", torch.randn(2, 2, 16, 8, generator=random))

    def forward(self, query, lengths):
        out, _ = torch.ops.npu.npu_fused_infer_attention_score(
            query, self.keys, self.values, actual_seq_lengths_kv=lengths, num_heads=4, num_key_value_heads=2,
            scale=1 / math.sqrt(8), input_layout="BNSD",
        )
        return out


class Model(nn.Module):
    layers_count, ahead = LAYERS, AHEAD

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention(seed) for seed in range(self.layers_count))
        self.register_buffer("burden", torch.full((self.ahead, self.ahead), 1e-3))

    def forward(self, query, lengths):
        if self.ahead:
            query = query + (self.burden @ self.burden)[0, 0] * 0
        return torch.stack([layer(query, lengths) for layer in self.layers])

    def spread(self, query, lengths):
        return torch.stack([layer(query, own) for layer, own in zip(self.layers, lengths)])
"""

SPEC = """
params:
  lengths: {type: int, shape: [2], min: 1, max: 16, default: 4}
buffers:
  query: {shape: [2, 4, 1, 8], dtype: float32}
regions:
  main:
    call: model
    inputs: [query, lengths]
    outputs: y
    updates:
      - {op: "npu::npu_fused_infer_attention_score", arg: actual_seq_lengths_kv, from: lengths}
replay: [main]
"""


def model(layers=1, ahead=0):
    return MODEL.replace("LAYERS", str(layers)).replace("AHEAD", str(ahead))


def expected(runner, query, lengths, layer=0):
    """[2, 4, 1, 8]: softmax attention over the first ``lengths`` positions, on the CPU."""
    attention = runner.model.layers[layer]
    return reference(query.cpu(), attention.keys.cpu(), attention.values.cpu(), lengths)


def reference(query, keys, values, lengths):
    rows = []
    for row, length in enumerate(lengths):
        k, v = (cache[row, :, :length].repeat_interleave(2, 0) for cache in (keys, values))
        rows.append((query[row] @ k.mT / math.sqrt(query.shape[-1])).softmax(-1) @ v)
    return torch.stack(rows)
