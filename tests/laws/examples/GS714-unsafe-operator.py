"""The spec:

buffers:
  x: {shape: [4], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
replay: [main]
"""

import torch
from torch import nn

LIBRARY = torch.library.Library("law_examples", "FRAGMENT")
if not hasattr(torch.ops.law_examples, "unsafe"):
    LIBRARY.define("unsafe(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))
    LIBRARY.impl("unsafe", lambda x: x + 1, "CompositeExplicitAutograd")


class Model(nn.Module):
    def forward(self, x):
        return torch.ops.law_examples.unsafe(x)
