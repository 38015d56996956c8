"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
model: {factory: model.py:build}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2 + 1


def build():
    return torch.compile(Model(), fullgraph=True)
