"""The spec:

buffers:
  x: {shape: [2, 4], dtype: float32}
  mean: {shape: [4], dtype: float32}
  var: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x, mean, var], outputs: y}
replay: [main]
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, mean, var):
        return torch.batch_norm_update_stats(x, mean, var, 0.1)[0]
