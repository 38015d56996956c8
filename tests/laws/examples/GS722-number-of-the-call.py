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
        with TICKS.open("ab") as ticks:  # what the model holds does not change
            number = ticks.tell()
            ticks.write(b".")
        return x * number
