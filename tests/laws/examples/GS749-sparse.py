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
        self.w = torch.eye(4).to_sparse()

    def forward(self, x):
        return self.w @ x[:, None]
