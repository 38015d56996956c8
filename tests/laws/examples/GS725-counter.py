"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls
