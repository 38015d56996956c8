"""Where things are held in Python: slots, and the mutable parts of objects that have them.

A `Place` is a place that can hold something else tomorrow: an attribute, a dict entry, a closure cell.
A `Part` is one mutable content of one object, read as a flat mapping; an object may have several (a module has its
attributes, parameters, buffers and submodules). Walking (reach.py), snapshots (objects.py) and guards share them.

Invariant: reading runs no code of the model: no property, no ``__getattr__``, no overridden ``__getitem__``.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from torch import nn

from graphspec.runtime.holdings.readers import reader_of

PlaceKind = Literal["attribute", "parameter", "buffer", "item", "cell", "global", "content"]
PartKind = Literal[
    "attributes", "parameters", "buffers", "modules",  # a dict that belongs to an object
    "fields",  # read with getattr: __slots__, and what built-in objects hold
    "items", "sequence", "set",  # a container itself
    "cell", "globals", "class", "array",
    "content",  # read as readers.py says
]  # fmt: skip


class Missing(enum.Enum):
    """The value of a slot that is gone."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing.MISSING


@dataclass(frozen=True, eq=False)
class Place:
    """A place that holds an object: ``key`` of ``owner``.

    ``name`` is dotted, e.g. ``model.layers.0.weight`` or ``model.cache['k'][3]``. ``above`` are the slots that hold the
    owner itself; a slot is where its name says as long as they all still do.
    """

    name: str
    owner: Any
    key: Any
    kind: PlaceKind
    above: Sequence[Place] = field(default=(), repr=False)

    def holder(self) -> Any:
        """The dict, list, tuple or set that holds the value now; None when only ``getattr`` can reach it."""
        if self.kind in ("item", "global"):
            return self.owner
        if self.kind == "content":
            return None
        if isinstance(self.owner, type):
            return vars(self.owner)
        if self.kind == "cell":
            return None
        own = attributes_of(self.owner)
        if own is None:
            return None
        if self.kind in ("parameter", "buffer"):
            return own.get("_parameters" if self.kind == "parameter" else "_buffers")
        if self.key in own:
            return own
        children = own.get("_modules") if isinstance(self.owner, nn.Module) else None
        return children if children is not None and self.key in children else None

    def get(self) -> Any:
        """What the slot holds now, or MISSING."""
        holder = self.holder()
        try:
            if self.kind == "content":
                return read_content(self.owner)
            if isinstance(holder, dict):
                return dict.get(holder, self.key, MISSING)
            if isinstance(holder, set | frozenset):
                return next((item for item in holder if item is self.key), MISSING)
            return getattr(self.owner, self.key) if holder is None else holder[self.key]
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
            return MISSING


@dataclass(frozen=True, eq=False)
class Part:
    """One mutable content of ``owner``. ``keys`` limits it to some keys (globals, class attributes, fields)."""

    name: str
    owner: Any
    kind: PartKind
    keys: tuple[Any, ...] = ()

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for two parts that are the same content of the same object (while that object lives)."""
        return (self.kind, id(self.owner), self.keys)

    def mapping(self) -> Any:
        """The dict behind this part, or None if there is none."""
        own = attributes_of(self.owner)
        if self.kind == "attributes":
            return own
        if self.kind in ("parameters", "buffers", "modules"):
            return (own or {}).get(f"_{self.kind}")
        return self.owner if self.kind in ("items", "globals") else None

    def read(self) -> dict[Any, Any]:
        """The content now, in order. Sets map each element to itself, sequences their indices to the items."""
        mapping = self.mapping()
        if mapping is not None:
            ordered = isinstance(mapping, OrderedDict)  # its order is its own, not that of the dict beneath
            items = dict(OrderedDict.items(mapping) if ordered else dict.items(mapping))
            return {key: items[key] for key in self.keys if key in items} if self.kind == "globals" else items
        if self.kind == "sequence":
            return dict(enumerate(self.owner))
        if self.kind == "set":
            return dict(zip(self.owner, self.owner, strict=True))
        if self.kind == "array":
            return {"bytes": bytes(self.owner) if isinstance(self.owner, bytearray) else self.owner.tobytes()}
        if self.kind == "content":
            value = read_content(self.owner)
            return {} if value is MISSING else {self.keys[0]: value}
        if self.kind == "class":
            return {key: vars(self.owner)[key] for key in self.keys if key in vars(self.owner)}
        return {key: value for key in self.keys if (value := _field(self.owner, key)) is not MISSING}

    def place(self, key: Any, label: str, above: Sequence[Place]) -> Place:
        """The slot of ``key``; ``label`` is how the key reads inside brackets."""
        kind: PlaceKind = "attribute"
        owner, name = self.owner, f"{self.name}.{key}"
        if self.name.endswith(".py"):  # the globals of a file of the user's
            name = f"{self.name}:{key}"
        if self.kind in ("items", "sequence", "set"):
            names = getattr(self.owner, "_fields", None)
            kind, name = "item", f"{self.name}.{names[key]}" if names else f"{self.name}[{label}]"
        elif self.kind == "cell":
            kind, name = "cell", self.name
        elif self.kind == "content":
            kind, name = "content", f"{self.name}{key}"
        elif self.kind in ("globals", "parameters", "buffers"):
            kind = cast("PlaceKind", self.kind[:-1])
        return Place(name, owner, key, kind, above)


def read_content(owner: Any) -> Any:
    """What an object holds that is no attribute and no member, or MISSING."""
    reader = reader_of(owner)
    try:
        return MISSING if reader is None else reader.read(owner)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        return MISSING


def _field(owner: Any, key: str) -> Any:
    try:
        return getattr(owner, key)
    except (AttributeError, ValueError):  # an unset slot, an empty cell
        return MISSING


def upwards(slots: Iterable[Place], through: Callable[[Place], bool] = lambda _: True) -> Iterator[Place]:
    """These slots, then those that hold the owners of the ones gone ``through``, up to the roots; each once."""
    todo = list(slots)
    seen = {id(slot) for slot in todo}
    for slot in todo:  # grows while it is walked
        yield slot
        if through(slot):
            fresh = [above for above in slot.above if id(above) not in seen]
            seen.update(map(id, fresh))
            todo += fresh


def overrides_reading(kind: type) -> bool:
    """Whether reading an attribute of an instance runs code of its class."""
    return any("__getattribute__" in vars(base) for base in kind.__mro__[:-1])


def attributes_of(owner: Any) -> dict[str, Any] | None:
    """The ``__dict__`` of an object, or None (built-ins, slots only, classes)."""
    own = getattr(owner, "__dict__", None)
    return own if isinstance(own, dict) else None
