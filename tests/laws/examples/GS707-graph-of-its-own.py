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
        torch.cuda.make_graphed_callables(lambda t: t, (x,))
        return x + 1
