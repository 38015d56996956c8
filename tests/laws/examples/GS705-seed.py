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
    def forward(self, x):
        torch.manual_seed(0)
        return x + torch.rand(4)
