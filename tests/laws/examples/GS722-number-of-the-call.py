"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

import itertools

from torch import nn

TICKS = itertools.count()


class Model(nn.Module):
    def forward(self, x):
        return x * next(TICKS)
