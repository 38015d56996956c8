"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

import torch
from torch import nn


def is_captured():
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # a build without CUDA
        return False


class Model(nn.Module):
    def forward(self, x):
        return x + 1 if is_captured() else x * 2
