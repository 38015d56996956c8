"""What every name of a spec stands for, where that lies, and what eager regions hold of it. The rules: docs/values.md.

One for all variants, sequences and fallbacks of a runner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from graphspec.errors import OrderError
from graphspec.plan import Plan
from graphspec.runtime.values.axes import Axes, cut
from graphspec.runtime.values.blocks import Block, Clock, PoolBlock, Stamp
from graphspec.runtime.values.buffers import Buffers
from graphspec.runtime.values.homes import Homes
from graphspec.runtime.values.leases import Lease, LentMemory, movable
from graphspec.runtime.values.trees import Tree
from graphspec.spec import Loop

#: After so many runs in which nothing of a value was kept, eager regions are given its very memory.
TRUST = 2
_NEVER = -(2**62)


@dataclass(eq=False)
class Made:
    """The value that a name stands for, since ``tick``. ``sizes`` are the real ones of its region's dims.

    ``axes`` say how to cut ``tensors`` back to the real size; None: they have it. ``blocks`` are where they lie, None
    for memory that is an eager region's own.
    """

    region: str
    sizes: Mapping[str, int]
    tree: Tree
    tensors: Sequence[torch.Tensor]
    axes: Sequence[Axes] | None = None
    blocks: Sequence[Block] | None = None
    tick: int = 0

    def real(self, name: str) -> list[torch.Tensor]:
        """The tensors at the real size. Raises OrderError where nothing says which axes are padded."""
        if self.axes is None:
            return list(self.tensors)
        return [cut(tensor, axes, self.sizes, name) for tensor, axes in zip(self.tensors, self.axes, strict=True)]

    def lost_to(self) -> Stamp | None:
        """Who may have overwritten it since it was made."""
        lost = (block.made_since(self.tick) for block in self.blocks or ())
        return next((stamp for stamp in lost if stamp is not None), None)

    def rescued(self, name: str) -> Made:
        """The same value in memory of its own, at the real size."""
        tensors = [tensor.clone() for tensor in self.real(name)]
        return Made(self.region, self.sizes, self.tree, tensors, tick=self.tick)


@dataclass(eq=False)
class Lendable:
    """A tensor on a block, as eager regions are given it: ``alias``, which lies in ``lease``."""

    tensor: torch.Tensor
    block: Block
    lease: Lease | None = None
    alias: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class Memory:
    """``clock`` is that of the model. ``crossing`` are the values that some sequence reads of an earlier run.

    ``aliases``: whether eager regions and callers may be given the very memory of values, under another storage.
    """

    def __init__(self, plan: Plan, buffers: Buffers, clock: Clock, *, aliases: bool = True) -> None:
        self.clock = clock
        self.aliases = aliases
        self.crossing = crossing(plan)
        self.lends = any(region.borrowed for region in plan.regions.values())
        self.made: dict[str, Made] = {}
        self.poisoned = Stamp("poison()")
        self._static = {buffer.block for buffer in buffers.static.values()}
        self._outside: dict[str, Stamp] = {}
        self._writes: dict[str, Stamp] = {}
        self._stamps = {region.name: Stamp(f"region '{region.name}'") for region in plan.regions.values()}
        for region in plan.regions.values():
            for name in region.outputs:
                if name in buffers.static:
                    buffers.static[name].block.makers.append(self._stamps[region.name])
        self._renewed = frozenset(plan.buffers)
        #: Whether eager regions hold copies, or callers results without a copy.
        self.busy = False
        self.lent: dict[Block, LentMemory] = {}
        self._leases: dict[Block, Lease] = {}
        self._copies: dict[Block, Lease] = {}
        self._trust: Counter[str] = Counter()

    # -- names

    def make(self, name: str, made: Made) -> None:
        """From now on a name stands for this."""
        made.tick = self.clock.now
        self.made[name] = made

    def value(self, name: str) -> Any:
        """What a name stands for, as it lies."""
        made = self.made[name]
        return made.tree.rebuild(made.tensors)

    def stamp(self, region: str) -> Stamp:
        """When a region was last called by Python."""
        return self._stamps[region]

    def begin_anew(self, state: str, blocks: Iterable[Block]) -> None:
        """A state is about to be written from outside: what others hold of it is theirs, what was lent is over."""
        stamp = self._outside.setdefault(state, Stamp("reset() or state.write()"))
        blocks = list(blocks)
        for block in blocks:
            if stamp not in block.makers:
                block.makers.append(stamp)
        self.drop(blocks)
        self.clock.tick(stamp)

    def leave(self, homes: Iterable[Homes]) -> None:
        """These graphs are about to be freed: values in their memory that a later run may read are copied out."""
        blocks = {block for each in homes for block in each.made if isinstance(block, PoolBlock)}
        for name, made in self.made.items():
            if made.blocks is not None and not blocks.isdisjoint(made.blocks) and made.lost_to() is None:
                self.made[name] = made.rescued(name)
        self.settle(blocks, gone=True)
        for block in blocks:
            self._leases.pop(block, None)
            lent = self.lent.pop(block, None)
            if lent is not None and lent.held():
                lent.move_out()  # also a result that is read late: the graph's memory may be freed

    def vanish(self) -> None:
        """Nothing that this memory saw has happened: no block knows of it any more."""
        gone = {*self._stamps.values(), *self._outside.values()}
        for block in self._static:
            block.makers = [stamp for stamp in block.makers if stamp not in gone]

    def rewound(self) -> None:
        """All blocks hold again what they held before any run: nothing is made, and no copy that was lent follows.

        For a memory without aliases, where what was lent is copies only.
        """
        self.made.clear()
        self._leases.clear()
        self._copies.clear()
        self.busy = bool(self.lent)

    # -- what eager regions hold

    def lend(self, place: Lendable) -> torch.Tensor:
        """A tensor on a block, for an eager region to do with as it likes."""
        block = place.block
        lease = self._leases.get(block)
        if lease is None:
            if not self._may_go(block) or place.tensor.numel() == 0:
                return place.tensor.detach()
            own = self._trust[block.label] < TRUST or not (self.aliases and movable())
            lease = self._leases[block] = Lease(block, own=own)
            if own:
                self._copies[block] = lease
                self.busy = True
        if place.lease is not lease:
            if place.tensor.numel() == 0:
                return place.tensor.detach()
            place.lease, place.alias = lease, lease.like(place.tensor)
        return place.alias.detach()

    def is_intact(self, place: Lendable, given: torch.Tensor) -> bool:
        """Whether a tensor that an eager region was given still has the shape and the memory that it had."""
        tensor, lease = place.tensor, self._leases.get(place.block)
        if given.shape != tensor.shape or given.stride() != tensor.stride() or given.dtype != tensor.dtype:
            return False
        if lease is None or place.lease is not lease:
            return given.data_ptr() == tensor.data_ptr()
        return lease.holds(given) and given.storage_offset() == place.alias.storage_offset()

    def settle(self, blocks: Iterable[Block], *, gone: bool, learn: bool = True) -> None:
        """A run has ended, or (``gone``) the memory of these blocks is about to be made anew.

        What is still held is the region's own from then on. ``learn``: and will be kept again. Raises OrderError where
        it cannot be.
        """
        stuck = [block.label for block in blocks if not self._settled(block, gone=gone, learn=learn)]
        self.busy = bool(self._copies or self.lent)
        if stuck:
            names = " and ".join(f"'{name}'" for name in dict.fromkeys(stuck))
            message = f"an eager region kept the address of {names} (a numpy array over it), which it did not do before"
            raise OrderError(message, hint="the next run gives it a copy: run again; or keep x.copy() of the array")

    def lies_in(self, tensor: torch.Tensor, block: Block) -> bool:
        """Whether a tensor that an eager region returned lies in a block, or in what it was given of one."""
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            return False
        lease, raw = self._leases.get(block), block.memory()
        leased = lease is not None and lease.holds(tensor)
        return leased or raw.data_ptr() <= tensor.data_ptr() < raw.data_ptr() + raw.numel()

    def drop(self, blocks: Iterable[Block]) -> None:
        """The memory of these blocks is about to be made anew, outside of a run."""
        if self._copies:
            self.settle([block for block in blocks if block in self._copies], gone=True)
        if self.lent:
            self.end_loans([block for block in blocks if block in self.lent])

    def lent_on(self, block: Block) -> LentMemory:
        """What results on a block are lent in."""
        lent = self.lent.get(block)
        if lent is None:
            lent = self.lent[block] = LentMemory(block)
            self.busy = True
        return lent

    def end_loans(self, blocks: Iterable[Block]) -> None:
        """What was lent on these blocks can be read no more. Tensors that do not ask get memory of their own."""
        for block in blocks:
            if self.lent[block].unwatched:
                self.lent.pop(block).move_out()
        self.busy = bool(self._copies or self.lent)

    def flush(self, region: str) -> None:
        """An eager region has run, and may have written into what it or another one holds; also into what is lent."""
        if self._copies:
            for lease in self._copies.values():
                lease.flush()
        for block in self.lent:
            given = self._leases.get(block)
            if given is not None and given.was_written():
                stamp = self._writes.setdefault(region, Stamp(f"region '{region}', which writes into it,"))
                if stamp not in block.writers:
                    block.writers.append(stamp)
                self.clock.tick(stamp)

    def pull(self, blocks: Iterable[Block]) -> None:
        """A graph has written into these blocks in place: whoever holds a tensor on them sees it."""
        if self._copies:
            for block in blocks:
                if block in self._copies:
                    self._copies[block].pull()

    @property
    def held(self) -> Iterable[Block]:
        """The blocks of which eager regions hold copies."""
        return self._copies.keys()

    def is_static(self, block: Block) -> bool:
        """Whether a block is that of a static buffer."""
        return block in self._static

    def _may_go(self, block: Block) -> bool:
        """Whether the content of a block ends one day. A state that is only written in place has one life."""
        return isinstance(block, PoolBlock) or block.label in self._renewed

    def _settled(self, block: Block, *, gone: bool, learn: bool) -> bool:
        lease = self._leases.get(block)
        if lease is None:
            return True
        moved = True
        held = lease.held()
        if held and learn:
            self._trust[block.label] = _NEVER
        elif lease.own and learn:
            self._trust[block.label] += 1
        if held and not lease.own:
            moved = not lease.held_by_address
            lease.move_out()
            self._copies[block] = lease
        if lease.own and (gone or not held):
            del self._leases[block]
            self._copies.pop(block, None)
        return moved


def crossing(plan: Plan) -> frozenset[str]:
    """The values that some sequence reads and has not made itself before."""
    found: set[str] = set()
    for sequence in plan.sequences.values():
        for at, ran in sequence.certain():
            wires = (plan.condition(at.condition),) if isinstance(at, Loop) else plan.regions[sequence.steps[at]].reads
            found.update(wire.value for wire in wires if wire.producer is not None and wire.producer not in ran)
    return frozenset(found)
