"""The spec:

params:
  lens: {type: int, shape: [2], min: 0, max: 9, default: 1}
buffers:
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x, lens], outputs: y, break: [model.attn]}
replay: [main]
"""

from torch import nn


class Attention(nn.Module):
    def forward(self, x, longest):
        return x * longest


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x, lens):
        return self.attn(x + 1, max(lens)) * 2
