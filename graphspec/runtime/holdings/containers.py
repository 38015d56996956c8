"""The containers that code can have got to, each expected with all that it holds."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from typing import Any

import torch

from graphspec.runtime.holdings.code_names import LoadedNames
from graphspec.runtime.holdings.expectations import Content
from graphspec.runtime.holdings.parts import VALUE_TYPES, is_from_library, is_installed_file, is_of_user
from graphspec.runtime.holdings.places import Part, Place, upwards
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.holdings.snapshots import Snapshot, copied
from graphspec.runtime.holdings.touched import ATTRIBUTES, NAMESPACES, Touched

#: An equal one of these in the place of another is no change.
_EQUAL_ANEW = (dict, OrderedDict, list, deque, set)
_LONGEST = 1024  # members of one container that are watched one by one
_LARGEST = 1 << 16  # bytes of an array, and members of a container, that are compared on every run at all


class Containers:
    """Dicts, lists, sets, arrays, and objects that are nothing but attributes.

    ``moving`` are names of what changes by right, ``apart`` the identities of what somebody else expects something of;
    ``unwatched``, after `expected`, are names of what is too large to be compared.
    """

    def __init__(
        self, found: Reach, touched: Touched, code: LoadedNames, moving: Collection[str], apart: Collection[int] = ()
    ) -> None:
        self._found, self._touched, self._code, self._moving, self._apart = found, touched, code, moving, apart
        self._parts = {id(part.owner): part for part in found.parts if self._is_one(part)}
        self.unwatched: list[str] = []

    def __contains__(self, value: object) -> bool:
        return id(value) in self._parts

    def expected(self) -> Iterator[Content]:
        """What each is expected to hold, those within others with these."""
        for part in self._parts.values():
            places = self._touched.relevant(self._found.slots_of(part.owner))
            places = [place for place in places if place.name not in self._moving]
            outer = [place for place in places if place.owner not in self]
            snapshot = self._snapshot(part, ()) if outer or not places else None
            if snapshot is not None:
                yield Content(outer, snapshot)

    def _is_one(self, part: Part) -> bool:
        data = part.kind in ("attributes", "fields") and _is_data(type(part.owner))
        changes = not isinstance(part.owner, tuple | frozenset)
        container = part.kind in ("items", "sequence", "set", "array") and changes
        known = part.owner in self._touched and id(part.owner) not in self._apart
        return (data or container) and known and part.name not in self._moving

    def _snapshot(self, part: Part, around: tuple[int, ...]) -> Snapshot | None:
        """What a container holds; None where that is too much. ``around`` are the containers it is in."""
        data, large = part.kind in ("attributes", "fields"), _is_large(part)
        whole = self._whole(part) if large or part.kind in ("array", "set") else None
        if whole is None and (large or part.kind == "array"):
            self.unwatched.append(part.name)
            return None
        closed = part.kind != "items" or (self._code.walks and not _is_registry(self._found, part.owner))
        return Snapshot(
            part,
            {} if whole is not None else dict(self._members(part, (*around, id(part.owner)))),
            self._found.label,
            anew=data or part.kind == "array" or type(part.owner) in _EQUAL_ANEW,
            keys=list(part.read()) if closed and whole is None else None,
            names=self._code.names if data else None,
            whole=whole,
        )

    def _whole(self, part: Part) -> Any:
        if _size(part) > _LARGEST:
            return None
        plain = part.kind in ("array", "set") or all(isinstance(held, VALUE_TYPES) for held in part.read().values())
        return copied(part.owner) if plain else None

    def _members(self, part: Part, around: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
        """What is expected under each key. Tensors are expected where they are read."""
        content, methods = part.read(), self._code.methods if part.kind in ATTRIBUTES else ()
        for key in self._touched.asked(part):
            value, name = content[key], part.place(key, self._found.label(key), ()).name
            if isinstance(value, torch.Tensor) or name in self._moving or (key in methods and not callable(value)):
                continue
            inner = self._parts.get(id(value)) if id(value) not in around else None
            yield key, (self._snapshot(inner, around) if inner is not None else None) or value


def _is_data(kind: type) -> bool:
    """Whether objects of a class are nothing but their attributes."""
    return kind in NAMESPACES or (dataclasses.is_dataclass(kind) and not is_from_library(kind))


def _is_large(part: Part) -> bool:
    """Whether its members are too many to be watched one by one."""
    return part.kind not in (*ATTRIBUTES, "array") and _size(part) > _LONGEST


def _size(part: Part) -> int:
    """Bytes of an array, members of a container."""
    size = len(part.owner)
    return (
        int(getattr(part.owner, "nbytes", size * getattr(part.owner, "itemsize", 1))) if part.kind == "array" else size
    )


def _is_registry(found: Reach, owner: Any) -> bool:
    """Whether a container belongs to an installed library, which registers what else the process imports or makes."""
    places = list(upwards(found.slots_of(owner), lambda place: not _is_top(place)))
    return bool(places) and all(map(_is_installed, places))


def _is_top(place: Place) -> bool:
    return place.kind == "global" or isinstance(place.owner, type)


def _is_installed(place: Place) -> bool:
    """Whether a library holds this place, or what holds its owner does."""
    if place.kind == "global":
        return is_installed_file(place.owner.get("__file__"))
    return not is_of_user(place.owner) if isinstance(place.owner, type) else bool(place.above)
