"""A part of a region that stays eager, as one call of a recording: what it reads, writes and returns, and which it is.

The dispatcher never makes this call: a backend ends a graph before it and begins another one after it, and whoever
replays them runs the part itself.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_SCHEMA = "(Tensor[] given, int at, Tensor(a!)[] written) -> Tensor[]"


@functools.cache
def operator() -> Any:
    """What such a call is recorded as: the tensors it is given, the number of the part, and what of them it wrote."""
    torch.library.define("graphspec::eager", _SCHEMA)
    return torch.ops.graphspec.eager.default


def is_eager(op: Any) -> bool:
    """Whether a recorded operator stands for an eager part."""
    return str(op.name()) == "graphspec::eager"
