"""Results without a copy: the memory of the graph on loan, an error where it is read too late."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from graphspec.runtime.opened.context import CapturedRegion
from graphspec.runtime.values.blocks import Block, PoolBlock
from graphspec.runtime.values.borrowed import Borrowed, Loan
from graphspec.runtime.values.leases import movable
from graphspec.runtime.values.memory import Memory


def lender(
    captured: CapturedRegion, name: str, tensors: Sequence[torch.Tensor], memory: Memory
) -> Callable[[], list[torch.Tensor]]:
    """Lends the tensors of one result, each watched by the block in which it lies."""
    region, places = captured.plan.region, list(zip(captured.homes.outputs[name], tensors, strict=True))

    def lend() -> list[torch.Tensor]:
        since = memory.clock.now
        return [_lent(block, tensor, memory, (name, region, since)) for block, tensor in places]

    return lend


def _lent(block: Block, tensor: torch.Tensor, memory: Memory, of: tuple[str, str, int]) -> torch.Tensor:
    name, region, since = of
    own = isinstance(block, PoolBlock) or memory.is_static(block)
    if not own or tensor.numel() == 0 or not movable():  # a tensor of the model's is nobody's to move
        return Borrowed.lend(tensor, Loan(name, region, block, since, memory.poisoned, lambda _: None))
    lent = memory.lent_on(block)
    return Borrowed.lend(
        lent.like(tensor).detach(), Loan(name, region, block, since, memory.poisoned, lent.watched.add)
    )
