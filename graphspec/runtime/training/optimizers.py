"""The optimizers that regions step: found, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from graphspec.runtime.holdings.reach import Reach


def optimizers(found: Reach) -> list[tuple[str, Optimizer]]:
    """Every optimizer that was reached, with its first name."""
    named: dict[int, tuple[str, Optimizer]] = {}
    for part in found.parts:
        if isinstance(part.owner, Optimizer):
            named.setdefault(id(part.owner), (part.name, part.owner))
    return list(named.values())


def state_tensors(optimizer: Optimizer) -> Iterator[tuple[Any, torch.Tensor]]:
    """The tensors of an optimizer's state: (parameter, tensor) for each."""
    for parameter, held in optimizer.state.items():
        values = held.values() if isinstance(held, dict) else (held,)
        for value in values:
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, torch.Tensor):
                    yield parameter, tensor


def members(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The parameters of all groups."""
    for group in optimizer.param_groups:
        yield from group["params"]
