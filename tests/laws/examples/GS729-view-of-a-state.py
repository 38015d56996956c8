"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
  s: {role: state, shape: [4], dtype: float32}
regions:
  a: {call: model.a, inputs: [s], outputs: w}
  b: {call: model.b, inputs: [x, s], outputs: s}
  c: {call: model.c, inputs: [w], outputs: y}
replay: [a, b, c]
"""

from torch import nn


class Model(nn.Module):
    def a(self, s):
        return s[1:]

    def b(self, x, s):
        return s + x

    def c(self, w):
        return w * 2
