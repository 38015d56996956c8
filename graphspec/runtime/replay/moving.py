"""The moving part of one run: its params, what eager regions made and hold, and the results so far."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Listed
from typing import Any

import torch

from graphspec.errors import OrderError
from graphspec.plan import Sequence
from graphspec.runtime.values.blocks import Block
from graphspec.runtime.values.memory import Lendable, Memory
from graphspec.runtime.values.trees import Tree

#: The real size of each bucketed dim of a run.
Sizes = Mapping[str, int]


def made_results(sequence: Sequence, made: Mapping[str, Any]) -> dict[str, Any]:
    """What a run returns. Raises OrderError for what it has not made: the loop that does ran no turn."""
    for name in sequence.results:
        if name not in made:
            message = f"the run made no '{name}': the region that returns it is in a loop, and the loop ran no turn"
            hint = "replay that region once before the loop too, or keep the value in a state"
            raise OrderError(message, hint=hint)
    return {name: made[name] for name in sequence.results}


class Moving:
    """What one run has made by now.

    ``given`` are the inputs that the first step is served with. ``env`` is what eager regions made, and what a fallback
    was given. ``lent`` is what eager regions were given on other memory, each with where it lies, ``leased`` the blocks
    behind it, each with the names that lie there.
    """

    __slots__ = ("env", "given", "leased", "lent", "params", "results")

    def __init__(self, params: Mapping[str, Any], given: Listed[torch.Tensor] = ()) -> None:
        self.params = params
        self.given = given
        self.env: dict[str, Any] = {}
        self.lent: dict[str, tuple[Tree, Listed[Lendable]]] = {}
        self.leased: dict[Block, set[str]] = {}
        self.results: dict[str, Any] = {}

    def let_go(self, blocks: Listed[Block], memory: Memory) -> None:
        """The memory of these blocks is made anew now: what eager regions kept of it is theirs."""
        for block in blocks:
            for name in self.leased.pop(block, ()):
                self.lent.pop(name, None)
        memory.settle(blocks, gone=True)

    def end(self, memory: Memory, *, failed: bool) -> None:
        """The run has ended: what eager regions kept of what they were given is theirs.

        A failure holds what the region had when it failed, which says nothing of what it keeps.
        """
        blocks = list(self.leased)
        self.env, self.lent, self.leased = {}, {}, {}
        memory.settle(blocks, gone=failed, learn=not failed)
