"""What captured regions read of eager ones: copies at addresses of their own, made anew after every eager call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphspec.plan import Bucket, Event, Plan
from graphspec.runtime.context import StaticCopy
from graphspec.runtime.values.trees import flatten


class EagerCopies:
    """The copies of one set of graphs, by output and bucket."""

    def __init__(self, plan: Plan, copies: dict[tuple[str, Bucket], StaticCopy]) -> None:
        self._plan = plan
        self._copies = copies
        captured = [region for region in plan.regions.values() if not region.eager]
        self._read = {wire.value for region in captured for wire in region.reads if wire.source == "eager"}

    def keep(self, event: Event, env: dict[str, Any]) -> None:
        """After an eager call: make the copies that are not there yet, fill all, and let ``env`` name them."""
        for name in self._names(event):
            if (name, event.bucket) not in self._copies:
                tree = flatten(env[name], place=f"output '{name}'")
                tensors = tuple(
                    leaf.detach().clone(memory_format=torch.preserve_format)  # the same layout
                    for leaf in tree.leaves
                )
                self._copies[name, event.bucket] = StaticCopy(tree, tensors)
        self.refresh(event, env)

    def refresh(self, event: Event, env: dict[str, Any]) -> None:
        """After an eager call: fill the copies, and let ``env`` name them."""
        for name in self._names(event):
            copy = self._copies[name, event.bucket]
            for static, leaf in zip(copy.tensors, flatten(env[name]).leaves, strict=True):
                static.copy_(leaf)
            env[name] = copy.value

    def use(self, event: Event, env: dict[str, Any]) -> None:
        """In place of an eager call: let ``env`` name the copies as they are."""
        for name in self._names(event):
            env[name] = self._copies[name, event.bucket].value

    def storages(self) -> Mapping[int, str]:
        """The memory of every copy, and whose copy it is."""
        return {
            tensor.untyped_storage()._cdata: name for (name, _), copy in self._copies.items() for tensor in copy.tensors
        }

    def _names(self, event: Event) -> list[str]:
        return [name for name in self._plan.regions[event.region].outputs if name in self._read]
