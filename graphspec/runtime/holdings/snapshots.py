"""What containers hold, kept to be compared: dicts, lists, sets, arrays, objects that are nothing but attributes."""

from __future__ import annotations

import marshal
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphspec.runtime.holdings.columns import Columns
from graphspec.runtime.holdings.differences import changed, shown
from graphspec.runtime.holdings.objects import keys_of, same_keys
from graphspec.runtime.holdings.parts import VALUE_TYPES, is_array
from graphspec.runtime.holdings.places import MISSING, Part


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a container held: members by key, each a value or a snapshot itself.

    ``anew``: an equal one may take its place. ``keys``: all of them in order; None where others may come. ``names``:
    the attributes that count, of an object that is nothing but its attributes. ``whole``: a copy, compared at once.
    """

    part: Part
    members: Mapping[Any, Any]
    label: Callable[[Any], str]
    anew: bool
    keys: Sequence[Any] | None
    names: Collection[str] | None = None
    whole: Any = None

    def difference(self, name: str, now: Any) -> Iterator[str]:
        """How what is there now differs, under the name of its place."""
        before = self.part.owner
        if now is not before and not (self.anew and type(now) is type(before)):
            yield from changed(name, before, now)
            return
        if self.whole is not None:
            if copied(now) != self.whole:
                yield f"the {'numbers' if is_array(now) else 'items'} in {name} changed"
            return
        content = Part(name, now, self.part.kind, self.part.keys)
        found = content.read()
        for key, value in self.members.items():
            member = content.place(key, self.label(key), ()).name
            if isinstance(value, Snapshot) and key in found:
                yield from value.difference(member, found[key])
            else:
                yield from changed(member, value, found.get(key, MISSING))
        if self.names is not None:
            fresh = (key for key in found if key in self.names and key not in (self.keys or ()))
            yield from (f"{name}.{key} was added, as {shown(found[key])}" for key in fresh)
        elif self.keys is not None:
            yield from other_members(name, now, self.keys)

    def compile(self, quick: Columns, now: Any) -> None:
        """Expect what is there now."""
        if self.whole is not None:
            quick.otherwise(lambda: bool(copied(now) == self.whole))
            return
        content = Part("", now, self.part.kind, self.part.keys)
        found = content.read()
        for key, value in self.members.items():
            quick.held(content.place(key, "", ()), found[key])
            if isinstance(value, Snapshot):
                value.compile(quick, found[key])
        if self.names is not None:
            quick.attributes(now)
            quick.kind(now)
        elif self.keys is not None:
            expect_members(quick, now, self.keys)


def copied(value: Any) -> Any:
    """What a container or an array of numbers holds, to be compared as a whole: 1, 1.0 and True are not the same."""
    if is_array(value):
        form = (getattr(value, "dtype", None), getattr(value, "shape", len(value)))
        return form, bytes(value) if isinstance(value, bytearray) else value.tobytes()
    if isinstance(value, set | frozenset):
        plain = all(isinstance(member, VALUE_TYPES) for member in value)
        return frozenset((type(member), repr(member)) if plain else id(member) for member in value)
    try:
        return marshal.dumps(value if isinstance(value, dict) else list(value), 2)  # version 2 has no references
    except ValueError:
        return value.copy()


def other_members(name: str, now: Any, keys: Sequence[Any]) -> Iterator[str]:
    """How the members of a container differ in number or order."""
    if len(now) != len(keys):
        what = "hook" if "hooks" in name else "item"
        yield f"{name} had {len(keys)} {what}{'s' * (len(keys) != 1)} and has {len(now)}"
    elif isinstance(now, dict) and not same_keys(keys_of(now), keys):
        yield f"the order of {name} changed"


def expect_members(quick: Columns, now: Any, keys: Sequence[Any]) -> None:
    """Expect a container to keep its members, in this order."""
    quick.length(now)
    if isinstance(now, OrderedDict):  # its order is not that of the dict beneath
        quick.otherwise(lambda: same_keys(keys_of(now), keys))
    elif isinstance(now, dict):
        quick.unwritten(now, lambda: same_keys(keys_of(now), keys))
