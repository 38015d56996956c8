"""What a sequence reads that an earlier run made: looked for, and brought to where its readers read it.

It must be intact, and of the right size; all of it is looked at before a run changes anything. The compiler has proven
that what is intact when a sequence begins is still so where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from graphspec.errors import OrderError
from graphspec.plan import Bucket
from graphspec.runtime.replay.moving import Sizes
from graphspec.runtime.values.axes import Axes, paste
from graphspec.runtime.values.blocks import Block, Stamp
from graphspec.runtime.values.memory import Made, Memory
from graphspec.runtime.values.trees import Tree


@dataclass(frozen=True)
class Address:
    """Where a graph reads a value: ``tensors`` of the reader's bucket, and whose memory that is.

    ``stamp``: that of the graph which makes it; None for a static buffer.
    """

    tree: Tree
    tensors: Sequence[torch.Tensor]
    axes: Sequence[Axes]
    blocks: Sequence[Block]
    stamp: Stamp | None = None

    def holds(self, made: Made) -> bool:
        """Whether a value lies here."""
        return len(self.tensors) == len(made.tensors) and all(
            one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
            for one, other in zip(self.tensors, made.tensors, strict=True)
        )

    def takes(self, made: Made, name: str) -> Made:
        """A value as it will lie here. Raises OrderError for another structure than the graph was captured with."""
        if len(self.tensors) == len(made.tensors) and self.tree.constants == made.tree.constants:
            return Made(made.region, made.sizes, self.tree, self.tensors, self.axes, self.blocks)
        message = (
            f"'{name}' was made last with another structure or other host values than the graphs that read it know"
        )
        raise OrderError(message, hint="return tensors of fixed structure, or hand host values on as params")


@dataclass(frozen=True)
class Foreign:
    """A value that a step reads and that its own sequence has not made before. ``dims`` are those it comes in sizes of.

    ``address`` is where the reader reads it, None where it does not matter; ``bucket`` that of the reader, None for a
    value of one size for all. An ``eager`` reader takes a value of any size. ``loop``: no region reads it, but a loop.
    """

    reader: str
    value: str
    producer: str
    bucket: Bucket | None
    dims: tuple[str, ...]
    address: Address | None
    eager: bool = False
    loop: bool = False

    @property
    def who(self) -> str:
        """The reader, as messages call it."""
        return f"the loop `while: {self.reader}`" if self.loop else f"region '{self.reader}'"

    def found(self, memory: Memory, sizes: Sizes) -> Made:
        """The value. Raises OrderError if it was not made, was overwritten, or was made at another size."""
        made = memory.made.get(self.value)
        if made is None:
            what = f"{self.who} reads '{self.value}', which region '{self.producer}' has not made yet"
            at = f" at {self.bucket}" if self.bucket is not None and self.bucket.sizes else ""
            raise OrderError(f"{what}{at}", hint=f"run the sequence that replays '{self.producer}' first")
        if (culprit := made.lost_to()) is not None:
            message = (
                f"{self.who} reads '{self.value}' too late: {culprit.who} was replayed since region "
                f"'{self.producer}' made it, and they share memory"
            )
            who = culprit.who.removeprefix("region ")
            raise OrderError(message, hint=f"replay {self.who} before {who}, or give one of them a pool of its own")
        if not self.eager:
            self._require_size(made, sizes)
        return made

    def _require_size(self, made: Made, sizes: Sizes) -> None:
        then = {dim: made.sizes[dim] for dim in self.dims}
        now = {dim: sizes.get(dim, then[dim] if self.bucket is None else self.bucket[dim]) for dim in self.dims}
        if then != now:
            message = (
                f"{self.who} reads '{self.value}' in a run at {_listed(now)}, and region '{self.producer}' "
                f"made it last at {_listed(then)}"
            )
            raise OrderError(message, hint=f"run the sequence that replays '{self.producer}' first, at the same sizes")


def bring(foreign: Sequence[Foreign], memory: Memory, bucket: Bucket, sizes: Sizes) -> None:
    """Have every value that is read be where its reader reads it. Raises OrderError with nothing changed."""
    found = [(read, read.found(memory, sizes)) for read in foreign]
    moves: dict[str, tuple[Address, Made, list[torch.Tensor]]] = {}
    for read, made in found:
        address = read.address
        if address is not None and read.value not in moves and not address.holds(made):
            _refuse_loss(read, address, found)
            real = [tensor.clone() for tensor in made.real(read.value)]  # it may lie in the very buffer that it goes to
            moves[read.value] = address, address.takes(made, read.value), real
    for name, (address, made, real) in moves.items():
        for target, value in zip(address.tensors, real, strict=True):
            paste(target, value, name, bucket, {**made.sizes, **sizes})
        if address.stamp is not None:
            memory.clock.tick(address.stamp)
    for name, (_, made, _) in moves.items():  # after all of them: one graph may make several
        memory.make(name, made)


def _refuse_loss(read: Foreign, address: Address, found: Sequence[tuple[Foreign, Made]]) -> None:
    """A graph's memory may hold something else that is still to be read, and that no move brings back."""
    for other, made in found:
        lost = [block for block in made.blocks or () if address.stamp is not None and block.taken_by(address.stamp)]
        if other.value != read.value and lost:
            message = (
                f"{read.who} reads '{read.value}', which graphs of another variant or size made last, and "
                f"bringing it to where it is read would overwrite '{other.value}', which is read too"
            )
            raise OrderError(message, hint=f"give '{read.producer}' a pool of its own")


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in sizes.items())
