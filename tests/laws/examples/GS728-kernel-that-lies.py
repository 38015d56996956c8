"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

import ctypes
import random

import torch

DRAW = random.SystemRandom()
LIBRARY = torch.library.Library("law_examples", "FRAGMENT")
if not hasattr(torch.ops.law_examples, "lies"):
    LIBRARY.define("lies(Tensor x, Tensor y) -> Tensor")
    LIBRARY.impl("lies", lambda x, y: x + (y, ctypes.memset(y.data_ptr(), DRAW.getrandbits(8), 16))[0], "CPU")
    LIBRARY.impl("lies", lambda x, y: x + y, "Meta")

from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = torch.zeros(4)

    def forward(self, x):
        return torch.ops.law_examples.lies(x, self.count)
