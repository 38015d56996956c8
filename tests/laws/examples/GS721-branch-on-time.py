"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

from pathlib import Path

from torch import nn

TICKS = Path(__file__).with_name("ticks")


class Model(nn.Module):
    def forward(self, x):
        with TICKS.open("ab") as ticks:  # stands for a clock: nothing that the model holds changes
            even = ticks.tell() % 2 == 0
            ticks.write(b".")
        return x * 2 if even else x + 2
