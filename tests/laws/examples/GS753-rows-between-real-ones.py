"""The spec:

dims: {batch: [2, 4]}
buffers:
  x: {shape: [batch, 4], dtype: float32}
  y: {role: output, shape: [2*batch, 4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cat([x, x * 10])
