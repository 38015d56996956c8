"""The spec:

buffers:
  y: {role: output, shape: [4], dtype: float32}
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.double()
