"""The spec:

buffers:
  x: {shape: [2], dtype: float32}
regions:
  first: {call: model.first, inputs: [x], outputs: h}
  look: {call: model.look, inputs: [h], outputs: n, eager: true}
  main: {call: model.main, inputs: [h], outputs: y}
replay: [first, look, main]
"""

from torch import nn


class Model(nn.Module):
    def first(self, x):
        return x * 2

    def look(self, h):
        return h.unsqueeze_(-1).sum()

    def main(self, h):
        return h + 1
