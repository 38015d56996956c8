"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
  h: {role: output, shape: [4], dtype: float32}
  y: {role: output, shape: [4], dtype: float32}
regions:
  a: {call: model.a, inputs: [x], outputs: h}
  b: {call: model.b, inputs: [h], outputs: y}
replay: [a, b]
"""

from torch import nn


class Model(nn.Module):
    def a(self, x):
        return x * 2

    def b(self, h):
        h.add_(1)
        return h * 3
