"""The block of every tensor that a graph returns or writes: found while graphs are captured, by storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from graphspec.backends.base import CapturedGraph
from graphspec.plan import Graph, Plan
from graphspec.runtime.values.blocks import Block, PoolBlock, Stamp, bytes_at
from graphspec.runtime.values.trees import Tree

#: A tensor's block; for one of the model's own, made when it is first asked for.
BlockOf = Callable[[torch.Tensor], Block]


@dataclass(frozen=True)
class Homes:
    """Where the tensors of one graph lie. ``stamp`` says when it was last replayed.

    ``outputs`` has a block for each tensor of each output; ``made`` are the blocks that a replay makes anew, and
    ``written`` those that it writes into in place.
    """

    stamp: Stamp
    outputs: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)
    made: tuple[Block, ...] = ()
    written: tuple[Block, ...] = ()

    def takes(self, block: Block) -> bool:
        """Whether a replay makes a block anew, or may use its memory."""
        return block.taken_by(self.stamp)

    def retire(self) -> None:
        """The graph is never replayed again."""
        for block in (*self.made, *self.written):
            block.retire([self.stamp])


class HomeFinder:
    """Follows a round of captures. ``static`` are the blocks of static buffers by storage, ``owned`` finds the rest."""

    def __init__(self, plan: Plan, static: Mapping[int, Block], owned: BlockOf) -> None:
        self._plan = plan
        self._blocks = dict(static)
        self._static = {block.label: block for block in static.values()}
        self._owned = owned
        self._stamps = {(graph.pool, graph.index): Stamp(f"region '{graph.region}'") for graph in plan.graphs}
        self._pools: dict[str, list[Stamp]] = {}
        for graph in plan.graphs:
            self._pools.setdefault(graph.pool, []).append(self._stamps[graph.pool, graph.index])

    def note(self, graph: Graph, captured: CapturedGraph, trees: Mapping[str, Tree]) -> Homes:
        """Where a graph's tensors lie. To be called right after its capture, while the storages are those it used."""
        stamp, pool = self._stamps[graph.pool, graph.index], self._pools[graph.pool]
        outputs: dict[str, list[Block]] = {name: [] for name in trees}
        own: list[Block] = []
        lasts = self._plan.last_captures(graph)
        for place, (name, leaf) in enumerate((name, leaf) for name, tree in trees.items() for leaf in tree.leaves):
            key = leaf.untyped_storage()._cdata
            if key not in self._blocks and captured.recording.is_born(captured.recording.ref(leaf).storage):
                own.append(PoolBlock(name, _memory(captured, place, leaf), captures=pool, first=graph.index))
                self._blocks[key] = own[-1]
            block = self._blocks.get(key) or self._owned(leaf)
            if isinstance(block, PoolBlock):
                last = lasts.get(name, graph.index)
                held = last is None or block.captures is not pool  # by another pool's graph: for good
                block.last = max(block.last, float("inf") if held else last or 0)
            outputs[name].append(block)
        made = [self._static[name] for name in outputs if name in self._static]
        written = [block for block in self._written(captured) if block not in made]
        for block in made:
            block.makers.append(stamp)
        for block in written:
            block.writers.append(stamp)
        homes = {name: tuple(blocks) for name, blocks in outputs.items()}
        return Homes(stamp, homes, (*made, *own), tuple(written))

    def _written(self, captured: CapturedGraph) -> list[Block]:
        """What a graph writes of what was there before it."""
        tensors = captured.recording.written_outside()
        found = [self._blocks.get(tensor.untyped_storage()._cdata) or self._owned(tensor) for tensor in tensors]
        return list(dict.fromkeys(found))


def _memory(captured: CapturedGraph, place: int, leaf: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The bytes of the storage in which output ``place`` of a graph lies, once the round of captures is sealed."""
    ref = captured.recording.ref(leaf)
    size = captured.recording.bytes[ref.storage]

    def memory() -> torch.Tensor:
        output = captured.outputs[place]
        start = (int(output.storage_offset()) - ref.offset) * output.element_size()
        return bytes_at(output.untyped_storage(), start, size)

    return memory
