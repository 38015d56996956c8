"""What others hold of memory that a replay makes anew, and what it reads of eager regions: seen to before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphspec.errors import OrderError
from graphspec.plan import Bucket
from graphspec.runtime.replay.moving import Moving, Sizes
from graphspec.runtime.values.axes import paste
from graphspec.runtime.values.blocks import Block
from graphspec.runtime.values.eager_copies import StaticCopy
from graphspec.runtime.values.homes import Homes
from graphspec.runtime.values.memory import Memory
from graphspec.runtime.values.trees import flatten


@dataclass(frozen=True)
class Copied:
    """A value of an eager region that a graph reads: copied to the graph's own address before its replay."""

    name: str
    copy: StaticCopy
    bucket: Bucket

    def fill(self, value: Any, sizes: Sizes, region: str) -> Sequence[torch.Tensor]:
        """Copy ``value`` in, at its real sizes; its tensors. Raises OrderError for another structure or form."""
        given = flatten(value, place=f"output '{self.name}'")
        if len(given.leaves) != len(self.copy.tensors) or given.constants != self.copy.tree.constants:
            message = (
                f"region '{region}' reads '{self.name}', which has another structure or other host values than when "
                "its graphs were captured"
            )
            raise OrderError(message, hint="return tensors of fixed structure, or hand host values on as params")
        for static, leaf in zip(self.copy.tensors, given.leaves, strict=True):
            paste(static, leaf, self.name, self.bucket, sizes)
        return given.leaves


class Holders:
    """Before and after the replay of one graph. ``copied`` are the values of eager regions that are copied in before.

    ``reads`` are the names that the graph reads at addresses where an eager region may have been given them. ``late``:
    an eager region comes before in the same run. Otherwise there is nothing to do unless somebody holds something of
    earlier runs (`Memory.busy`).
    """

    def __init__(
        self,
        region: str,
        homes: Homes,
        memory: Memory,
        copied: Sequence[Copied],
        reads: Sequence[str],
        sizes: Sizes,
        *,
        late: bool,
    ) -> None:
        self.always = late or bool(copied)
        self._region = region
        self._homes = homes
        self._memory = memory
        self._copied = copied
        self._reads = reads
        self._sizes = sizes
        self._takes: dict[Block, bool] = {}

    def before(self, moving: Moving) -> None:
        """Let go of memory that the graph makes anew, and give it what it reads of eager regions."""
        memory = self._memory
        if moving.lent and self._reads:
            self._refuse_reshaped(moving)
        if moving.leased and (going := self._taken(moving.leased)):
            moving.let_go(going, memory)
        if memory.held and (going := self._taken(memory.held)):
            memory.drop(going)
        if memory.lent and (going := self._taken(memory.lent)):
            memory.end_loans(going)
        for each in self._copied:
            value = moving.env[each.name] if each.name in moving.env else memory.value(each.name)
            leaves = each.fill(value, self._sizes, self._region)
            if self._homes.written:
                self._refuse_written(each.name, leaves)

    def after(self) -> None:
        """Let those who hold tensors on what the graph has written in place see it."""
        self._memory.pull(self._homes.written)

    def _taken(self, blocks: Sequence[Block] | Any) -> list[Block]:
        """Those of ``blocks`` that the graph makes anew, or whose memory it may use."""
        takes = self._takes
        for block in blocks:
            if block not in takes:
                takes[block] = self._homes.takes(block)
        return [block for block in blocks if takes[block]]

    def _refuse_reshaped(self, moving: Moving) -> None:
        for name in self._reads:
            if name not in moving.lent:
                continue
            tree, places = moving.lent[name]
            if not all(map(self._memory.is_intact, places, tree.leaves)):
                message = (
                    f"region '{self._region}' reads '{name}', and an eager region of this run has changed its shape or "
                    "its memory in place: a graph reads it as it was made"
                )
                raise OrderError(message, hint=f"work on a view in the eager region, such as {name}.unsqueeze(-1)")

    def _refuse_written(self, name: str, leaves: Sequence[torch.Tensor]) -> None:
        """Memory in which a value lies that the graph has a copy of, and into which it writes."""
        for block in self._homes.written:
            if any(self._memory.lies_in(leaf, block) for leaf in leaves):
                message = (
                    f"region '{self._region}' writes into the memory of '{name}', which an eager region made: it reads "
                    f"a copy of '{name}', which does not show the change"
                )
                raise OrderError(message, hint=f"return {name}.clone() from the eager region")
