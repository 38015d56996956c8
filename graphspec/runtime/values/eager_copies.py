"""What captured regions read of eager ones: copies at addresses of their own, filled when they are read.

Not when they are made: an eager region that comes in between may write into the value in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graphspec.plan import Bucket, Event, Plan
from graphspec.runtime.values.trees import Tree, flatten

#: A value of an eager region at a bucket of that region's dims.
CopyKey = tuple[str, Bucket]


@dataclass(frozen=True)
class StaticCopy:
    """What captured regions read of an eager region's output: a copy at an address of its own."""

    tree: Tree
    tensors: tuple[torch.Tensor, ...]

    @property
    def value(self) -> Any:
        """The output in its own structure, on the static memory; aliases, which a region may give another shape."""
        return self.tree.rebuild([tensor.detach() for tensor in self.tensors])


class EagerCopies:
    """The copies of one set of graphs, by output and bucket."""

    def __init__(self, plan: Plan, copies: dict[CopyKey, StaticCopy]) -> None:
        self._plan = plan
        self._copies = copies

    def fill(self, event: Event, env: Mapping[str, Any]) -> dict[str, Any]:
        """Before the call of a captured region: what it is given in the place of the values of eager regions.

        Copies that are not there yet are made.
        """
        return {name: self._filled(key, env[name]) for name, key in self._read(event) if name in env}

    def use(self, event: Event, env: dict[str, Any]) -> None:
        """In place of an eager call: let ``env`` name the copies of what it would make, as they are."""
        for name in self._plan.regions[event.region].outputs:
            if (name, event.bucket) in self._copies:
                env[name] = self._copies[name, event.bucket].value

    def storages(self) -> Mapping[int, str]:
        """The memory of every copy, and whose copy it is."""
        return {
            tensor.untyped_storage()._cdata: name for (name, _), copy in self._copies.items() for tensor in copy.tensors
        }

    def _filled(self, key: CopyKey, value: Any) -> Any:
        tree = flatten(value, place=f"output '{key[0]}'")
        copy = self._copies.get(key)
        if copy is None:
            same = torch.preserve_format  # the same layout
            tensors = tuple(leaf.detach().clone(memory_format=same) for leaf in tree.leaves)
            copy = self._copies[key] = StaticCopy(tree, tensors)
        for static, leaf in zip(copy.tensors, tree.leaves, strict=True):
            if static.untyped_storage()._cdata != leaf.untyped_storage()._cdata:
                static.copy_(leaf)
        return copy.value

    def _read(self, event: Event) -> list[tuple[str, CopyKey]]:
        region = self._plan.regions[event.region]
        made = [(wire.value, str(wire.producer)) for wire in region.reads if wire.source == "eager"]
        return [(name, (name, event.bucket.project(self._plan.regions[maker].dims))) for name, maker in made]
