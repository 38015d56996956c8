"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cpu.Stream()

    def forward(self, x):
        with torch.cpu.stream(self.side):
            y = x + 1
        return y
