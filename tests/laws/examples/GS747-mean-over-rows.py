"""The spec:

dims: {batch: [2, 4]}
buffers:
  x: {shape: [batch, 4], dtype: float32}
  y: {role: output, shape: [batch, 4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x - x.mean(0)
