"""Python state of the model around each pass: what a pass changed, and everything put back after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from graphspec.runtime.holdings.objects import PythonState
from graphspec.runtime.holdings.preserve import Changes
from graphspec.runtime.holdings.random_state import Ambient
from graphspec.runtime.holdings.reach import Reach, reach
from graphspec.runtime.holdings.storages import quiet
from graphspec.runtime.holdings.tensors import TensorState


class FakeSession:
    """The Python side of `preserve`, without contents: fake tensors have none."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = roots
        self.reach: Reach = reach(self._roots)
        self._objects = PythonState(self.reach)
        with quiet():
            self._tensors = TensorState(self.reach)
        self._ambient = Ambient.take(())

    def changes(self) -> Changes:
        """What changed since the start, or since the last `restore`."""
        rebound, created = self._objects.changes()
        with quiet():
            memory = self._tensors.changes()
        return Changes((*rebound, *memory), created, (), self._ambient.host_moved())

    def restore(self) -> None:
        """Put back what existed; what was created stays, as after a warm-up."""
        _, created = self._objects.restore()
        with quiet():
            self._tensors.restore()
            self._tensors.settle()
        self._ambient.restore()
        if created:
            self.reach = reach(self._roots)
            self._objects.extend(self.reach)
            with quiet():
                self._tensors.extend(self.reach)

    def forget(self, names: Collection[str]) -> None:
        """Take back what was created under these names."""
        self.restore()
        self._objects.forget(names)

    def settle_flag(self, owner: object, key: str, *, value: bool) -> None:
        """A flag that was flipped once and for all: from now on this is what it is put back to."""
        self._objects.settle(owner, key, value)

    def held(self, keys: Collection[str]) -> dict[str, Any]:
        """What slots hold now under these keys, by their names."""
        return self._objects.held(keys)

    def exchange(self, names: Collection[str], value: object) -> frozenset[str]:
        """Put ``value`` in the slots of these names, until the next `restore`; gives the names of those that exist."""
        return self._objects.exchange(names, value)

    def name_of(self, value: Any) -> str | None:
        """The attribute, global or closure variable that holds a tensor, a view of it, or this very numpy number."""
        if isinstance(value, np.generic):
            for part in self.reach.parts:
                for key, held in part.read().items():
                    if held is value:
                        return part.place(key, self.reach.label(key), ()).name
            return None
        slots = self.reach.slots_of(value) or self.reach.slots_of_storage(value)
        return slots[0].name if slots else None
