"""The spec:

dims: {batch: [2, 4]}
buffers:
  x: {shape: [batch, 4], dtype: float32}
  y: {role: output, shape: [batch, 4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(4, 4))

    def forward(self, x):
        return self.h[: x.shape[0]].mul_(0.5).add_(x) * 1
