"""Objects expected at places, in parallel lists that one pass of C code compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import getitem, is_
from typing import Any

from graphspec.runtime.holdings.slots import Slot, attributes_of, overrides_reading
from graphspec.runtime.holdings.untouched import Tree


@dataclass
class Identities:
    """(owners, keys, expected objects) by the way a value is fetched: dict entry, list item, attribute, and so on."""

    dicts: tuple[list[Any], list[Any], list[Any]] = field(default_factory=lambda: ([], [], []))
    items: tuple[list[Any], list[Any], list[Any]] = field(default_factory=lambda: ([], [], []))
    attributes: tuple[list[Any], list[Any], list[Any]] = field(default_factory=lambda: ([], [], []))
    classes: tuple[list[Any], list[Any], list[Any]] = field(default_factory=lambda: ([], [], []))
    sets: list[tuple[Slot, Any]] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def add(self, group: tuple[list[Any], list[Any], list[Any]], owner: Any, key: Any, expected: Any) -> None:
        """Expect ``expected`` at ``key`` of ``owner``."""
        for column, value in zip(group, (owner, key, expected), strict=True):
            column.append(value)

    def expect(self, slot: Slot, expected: Any) -> None:
        """Expect ``expected`` in ``slot``, and whatever dict holds it still to be its owner's."""
        owner, holder = slot.owner, slot.holder()
        if isinstance(owner, tuple | frozenset):
            return  # cannot change
        if isinstance(owner, type):
            self.add(self.classes, owner, slot.key, expected)
        elif holder is None:
            self.add(self.attributes, owner, slot.key, expected)
        elif holder is owner and isinstance(holder, dict):
            self.add(self.dicts, holder, slot.key, expected)
        elif isinstance(holder, dict):
            self._expect_attribute(owner, slot.key, expected, holder)
        elif isinstance(holder, set):
            self.sets.append((slot, expected))
        else:
            self.add(self.items, holder, slot.key, expected)

    def _expect_attribute(self, owner: Any, key: str, expected: Any, holder: dict[str, Any]) -> None:
        """Expect an attribute, and the dicts behind it, which ``obj.__dict__ = ...`` would leave as they were."""
        own = attributes_of(owner)
        if own is holder and _is_plain_attribute(type(owner), key):
            self.add(self.attributes, owner, key, expected)  # one generic look-up proves both
            return
        self.add(self.dicts, holder, key, expected)
        if (id(owner), id(holder)) not in self.seen:
            self.seen.add((id(owner), id(holder)))
            name = "__dict__" if own is holder else next(name for name, it in (own or {}).items() if it is holder)
            self.add(self.attributes, owner, name, holder)

    def hold(self) -> bool:
        """Whether everything is in its place. Raises what a vanished place raises."""
        dicts, keys, entries = self.dicts
        lists, places, items = self.items
        owners, names, values = self.attributes
        classes, members, found = self.classes
        return (
            all(map(is_, map(dict.get, dicts, keys), entries))
            and all(map(is_, map(getitem, lists, places), items))
            and all(map(is_, map(getattr, owners, names), values))
            and all(map(is_, map(getitem, map(vars, classes), members), found))
            and all(slot.get() is member for slot, member in self.sets)
        )

    def watch(self, tree: Tree) -> None:
        """Have a tree expect the same."""
        rest = Identities(sets=self.sets)
        for owner, key, expected in zip(*self.dicts, strict=True):
            tree.entry(owner, key, expected)
        for owner, name, expected in zip(*self.attributes, strict=True):
            tree.attribute(owner, name, expected)
        for kind, name, expected in zip(*self.classes, strict=True):
            tree.member(kind, name, expected)
        for sequence, place, expected in zip(*self.items, strict=True):
            if type(sequence) is list:
                tree.item(sequence, place, expected)
            else:
                rest.add(rest.items, sequence, place, expected)
        if rest.items[0] or rest.sets:
            tree.otherwise(rest.hold)


def _is_plain_attribute(kind: type, key: str) -> bool:
    """Whether ``getattr`` reads this key of the instance's dict, and runs no code of the class."""
    return not overrides_reading(kind) and not any(key in vars(base) for base in kind.__mro__)
