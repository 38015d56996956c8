"""The quickest answer to "was anything touched?": words of memory at known addresses, gathered and compared at once.

After a replay the caches are cold, and what a check costs is how many objects it goes through, one waiting for another.
Here the addresses are known beforehand, so that they are read side by side: a third of what torch's guard tree takes.

Invariants:
- Only memory of what is alive is read: Python objects and storages that are held; and what these alone keep alive (a
  tensor in C++, the items of a list) after it was seen that they still do.
- Where in an object a word lies is found by search, on examples, and is no assumption (word_places.py); and all of it
  is proven by attacks before its first use (tree_proof.py). What has no known place is left to the tree.
"""

# ruff: noqa: D102 - the base says what each method expects

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from graphspec.runtime.holdings.tree import GuardTree
from graphspec.runtime.holdings.word_places import WORD, WordPlaces, word_places


class Words(GuardTree):
    """Expectations as words of memory, and in the tree or in columns what lies at no fixed address.

    Raises LookupError where this Python or this torch has the words at other places.
    """

    def __init__(self, restless: Collection[int] = ()) -> None:
        super().__init__(restless)
        self._places: WordPlaces = word_places()
        self._addresses: set[int] = set()
        self._inside: set[int] = set()  # what these lead to: tensors of C++, items of lists
        self._kept: list[Any] = []

    def kind(self, owner: Any) -> None:
        if self._is_new("kind", id(owner)):
            self._expect(owner, id(owner) + self._places.kind)

    def item(self, sequence: Any, index: int, expected: Any) -> None:
        if type(sequence) is not list or type(expected) in (int, str):
            super().item(sequence, index, expected)
        elif self._is_new("item", id(sequence), index):
            self._expect((sequence, expected), *self._places.of_list(sequence))
            self._inside.add(self._places.of_item(sequence, index))

    def length(self, container: Any) -> None:
        if type(container) is not list:
            super().length(container)
        elif self._is_new("length", id(container)):
            self._expect(container, *self._places.of_list(container))

    def tensor(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        inside = self._places.of_tensor(tensor)
        if inside is None:
            super().tensor(tensor)
        elif self._is_new("tensor", id(tensor)):
            kept = (tensor, StorageWeakRef(storage))  # which keeps the storage allocated, not its memory
            of_object = (self._places.kind, self._places.implementation)
            self._expect(kept, *(id(tensor) + at for at in of_object), storage._cdata + self._places.data)
            self._inside.update(tensor._cdata + at for at in inside)

    def build(self) -> Callable[[], bool]:
        """The check. Nothing else may ask while it runs: who asks holds the lock of the model."""
        kept = self._kept
        gather, places, out, found = _gatherer({id(kept) + self._places.kind, *self._addresses})
        gather_inside, places_inside, out_inside, found_inside = _gatherer(
            self._inside or {id(kept) + self._places.kind}
        )
        expected, expected_inside = bytes(found), bytes(found_inside)
        needs_tree = self._asked or self._tensors or self._columns or self._others
        rest = super().build() if needs_tree else None

        def untouched() -> bool:
            gather(places, 0, out, "clip")  # all places are within; only "raise" would copy
            if found != expected:
                return False
            gather_inside(places_inside, 0, out_inside, "clip")
            return found_inside == expected_inside and (rest is None or rest())

        untouched.kept = kept  # type: ignore[attr-defined] # what is read is alive as long as the check
        return untouched

    def _own(self, owner: Any, own: dict[str, Any]) -> None:
        at = self._places.of_dict(owner, own)
        if at is None:
            super()._own(owner, own)
        elif self._is_new("own", id(owner)):
            self._expect((owner, own), id(owner) + at)
            self._untouched(own)

    def _untouched(self, mapping: dict[Any, Any]) -> None:
        if self._is_new("untouched", id(mapping)):
            self._expect(mapping, id(mapping) + self._places.version)
            self._versions[id(mapping)] = (mapping, self._version(mapping))

    def _in_place(self, owner: Any, key: str, expected: Any) -> bool:
        if type(expected) in (int, str):
            return False  # as good in another object: the tree compares them
        at = self._places.of_attribute(owner, key, expected)
        if at is None:
            return False
        self._expect((owner, expected), id(owner) + at)
        return True

    def _expect(self, kept: Any, *addresses: int) -> None:
        self._kept.append(kept)
        self._addresses.update(addresses)


def _gatherer(addresses: Collection[int]) -> tuple[Any, Any, Any, bytearray]:
    """What reads the words at these addresses: ``take``, where they lie in it, where to, and the same as bytes.

    ``take`` is that of all of memory between the addresses, of which only what lies there may be read.
    """
    sorted_addresses = np.array(sorted(addresses), dtype=np.int64)
    first, last = int(sorted_addresses[0]), int(sorted_addresses[-1])
    between: Any = (ctypes.c_byte * (last + WORD - first)).from_address(first)
    memory = np.frombuffer(between, dtype=np.int64)
    places = (sorted_addresses - first) // WORD
    found = bytearray(places.nbytes)
    out = np.frombuffer(found, dtype=np.int64)
    memory.take(places, 0, out, "clip")
    return memory.take, places, out, found
