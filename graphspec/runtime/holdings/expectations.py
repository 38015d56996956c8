"""What must still be so when a graph is replayed: every kind of guarded fact, one class each.

An `Expectation` says in words what differs, and has what it expects compared quickly (columns.py, tree.py). Which facts
are expected of what the regions ran, which.py decides.

Invariants:
- What is written in place (``copy_``, ``load_state_dict``) is no difference, nor is an equal plain value in its place.
- `difference` decides; `compile` expects what is there at that moment, and is called where nothing differs.
- Owners and tensors are held strongly, so an address cannot be used again unnoticed.
"""

# ruff: noqa: D102 - the base says once what each of the methods is for

from __future__ import annotations

import os
import types
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from graphspec.runtime.holdings.columns import Columns
from graphspec.runtime.holdings.objects import keys_of, same, same_keys
from graphspec.runtime.holdings.parts import VALUE_TYPES, is_array, is_from_library
from graphspec.runtime.holdings.places import MISSING, Part, Place, attributes_of
from graphspec.runtime.holdings.storages import Layout, layout_of

_RUNTIME = str(Path(__file__).parents[1])
_LONGEST_SHOWN = 40


class Expectation(ABC):
    """One fact. ``heading`` says, of the graphs, what a difference means to them."""

    heading: ClassVar[str] = "were captured with other host values"

    def holds(self) -> bool:
        """Whether nothing differs."""
        return next(self.difference(), None) is None

    @abstractmethod
    def difference(self) -> Iterator[str]:
        """What differs, each with its name."""

    @abstractmethod
    def compile(self, quick: Columns) -> None:
        """Have a quick comparison expect all that `difference` looks at, as it is now."""


@dataclass(frozen=True, eq=False)
class ReadTensor(Expectation):
    """A tensor that a graph reads by address, in every place that holds it."""

    places: Sequence[Place]
    tensor: torch.Tensor
    layout: tuple[Any, ...]
    heading = "read what moved since capture"

    def difference(self) -> Iterator[str]:
        held = not self.places
        for place in self.places:
            now = place.get()
            held = held or now is self.tensor
            if now is not self.tensor:
                yield f"{place.name} was {'deleted' if now is MISSING else 'rebound'}"
        if held and (moved := _moved(self.layout, layout_of(self.tensor))):
            yield f"{' and '.join(place.name for place in self.places) or 'a tensor with no name'}: {moved}"

    def compile(self, quick: Columns) -> None:
        for place in self.places:
            quick.held(place, self.tensor)
        if is_plain(self.tensor):
            quick.tensor(self.tensor)
        else:
            quick.otherwise(lambda: layout_of(self.tensor) == self.layout)


@dataclass(frozen=True, eq=False)
class Way(Expectation):
    """A place on the way to places ``below``: when it is rebound, so is all that lies behind."""

    place: Place
    owner: Any
    below: Sequence[Place]
    heading = ReadTensor.heading

    @property
    def places(self) -> Sequence[Place]:
        """The one place."""
        return (self.place,)

    def difference(self) -> Iterator[str]:
        if self.place.get() is not self.owner:
            yield from (f"{place.name} was rebound with {self.place.name}" for place in self.below)

    def compile(self, quick: Columns) -> None:
        quick.held(self.place, self.owner)


@dataclass(frozen=True, eq=False)
class Mode(Expectation):
    """The training flag of a module."""

    name: str
    module: nn.Module
    training: bool
    heading = "were captured in another mode"

    def difference(self) -> Iterator[str]:
        if self.module.training != self.training:
            before, now = ("train", "eval") if self.training else ("eval", "train")
            yield f"{self.name} was switched from {before} to {now}"

    def compile(self, quick: Columns) -> None:
        quick.attribute(self.module, "training", self.module.training)


@dataclass(frozen=True, eq=False)
class Held(Expectation):
    """What a place held: the same object, or an equal plain value."""

    place: Place
    value: Any

    def difference(self) -> Iterator[str]:
        yield from _changed(self.place.name, self.value, self.place.get())

    def compile(self, quick: Columns) -> None:
        quick.held(self.place, self.place.get())


@dataclass(frozen=True, eq=False)
class Form(Expectation):
    """Type, dtype and shape of a tensor, of which code may ask though no graph reads the tensor itself."""

    place: Place
    form: tuple[Any, ...]

    def difference(self) -> Iterator[str]:
        now = form_of(self.place.get())
        if now != self.form:
            yield f"{self.place.name} was {_form_shown(self.form)} and is {_form_shown(now)}"

    def compile(self, quick: Columns) -> None:
        tensor = self.place.get()
        if isinstance(tensor, torch.Tensor) and is_plain(tensor):
            quick.held(self.place, tensor)
            quick.tensor(tensor)
        else:
            quick.otherwise(self.holds)


@dataclass(frozen=True, eq=False)
class Owner(Expectation):
    """What an object or a class is, and that it gets no attribute among ``names``; ``methods`` only if callable."""

    name: str
    owner: Any
    kind: type
    keys: Collection[str]
    names: Collection[str]
    methods: Collection[str]

    def difference(self) -> Iterator[str]:
        if type(self.owner) is not self.kind:
            before = f"a {self.kind.__name__}"
            yield f"{self.name} was {before} and is {_shown(self.owner, other=before)}"
        for key, value in attributes(self.owner).items():
            asked = key in self.names and key not in self.keys and (key not in self.methods or callable(value))
            if asked and not _is_wrapper_of_torch(value) and not same(getattr(self.kind, key, MISSING), value):
                yield f"{self.name}{':' if self.name.endswith('.py') else '.'}{key} was added, as {_shown(value)}"

    def compile(self, quick: Columns) -> None:
        if isinstance(self.owner, type) or attributes_of(self.owner) is not None:
            quick.attributes(self.owner)
        if not isinstance(self.owner, type):
            quick.kind(self.owner)


@dataclass(frozen=True, eq=False)
class Members(Expectation):
    """The keys of a dict that code may walk: submodules, parameters, in their order; hooks."""

    name: str
    owner: dict[Any, Any]
    keys: Sequence[Any]
    ordered: bool = True

    def difference(self) -> Iterator[str]:
        if self.ordered or len(self.owner) != len(self.keys):
            yield from _other_members(self.name, self.owner, self.keys)
        elif self.owner.keys() != set(self.keys):
            yield f"{self.name} has others than it had"

    def compile(self, quick: Columns) -> None:
        if self.ordered:
            _expect_members(quick, self.owner, self.keys)
        else:
            quick.keys(self.owner)


@dataclass(frozen=True, eq=False)
class Variables(Expectation):
    """Variables of the environment, by name; None for one that is not set."""

    values: Mapping[str, str | None]

    def difference(self) -> Iterator[str]:
        for name, value in self.values.items():
            yield from _changed(f"the environment variable {name}", value, os.environ.get(name))

    def compile(self, quick: Columns) -> None:
        quick.unwritten(os.environ._data, self.holds)  # type: ignore[attr-defined]


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
            yield from _changed(name, before, now)
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
                yield from _changed(member, value, found.get(key, MISSING))
        if self.names is not None:
            fresh = (key for key in found if key in self.names and key not in (self.keys or ()))
            yield from (f"{name}.{key} was added, as {_shown(found[key])}" for key in fresh)
        elif self.keys is not None:
            yield from _other_members(name, now, self.keys)

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
            _expect_members(quick, now, self.keys)


@dataclass(frozen=True, eq=False)
class Content(Expectation):
    """A container and all that it holds, in every place that holds the container."""

    places: Sequence[Place]
    snapshot: Snapshot

    def difference(self) -> Iterator[str]:
        for name, now in self._now():
            if now is MISSING:
                yield f"{name} was deleted"
            else:
                yield from self.snapshot.difference(name, now)

    def compile(self, quick: Columns) -> None:
        for place in self.places:
            quick.held(place, place.get())
        for _, now in self._now():
            self.snapshot.compile(quick, now)

    def _now(self) -> Iterator[tuple[str, Any]]:
        """The distinct objects in the places now, each with the first name."""
        found = [(place.name, place.get()) for place in self.places] or [
            (self.snapshot.part.name, self.snapshot.part.owner)
        ]
        firsts = {id(now): (name, now) for name, now in reversed(found)}
        yield from firsts.values()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor has one address, and a shape and strides that C++ can compare."""
    if tensor.layout != torch.strided or hasattr(type(tensor), "__tensor_flatten__"):
        return False
    return isinstance(layout_of(tensor), Layout) and not tensor.is_quantized


def form_of(value: Any) -> tuple[Any, ...]:
    """What code can ask of a tensor and a replay does not."""
    if not isinstance(value, torch.Tensor):
        return (type(value),)
    try:
        return type(value), value.dtype, tuple(value.shape)
    except (RuntimeError, ValueError):  # an uninitialised parameter
        return (type(value),)


def attributes(owner: Any) -> Mapping[str, Any]:
    """What an object or a class has of its own; nothing where it has slots only."""
    return vars(owner) if isinstance(owner, type) else attributes_of(owner) or {}


def copied(value: Any) -> Any:
    """What a container or an array of numbers holds, to be compared as a whole."""
    if isinstance(value, set) and not all(isinstance(member, VALUE_TYPES) for member in value):
        return frozenset(map(id, value))
    if not is_array(value):
        return value.copy()
    form = (getattr(value, "dtype", None), getattr(value, "shape", len(value)))
    return form, bytes(value) if isinstance(value, bytearray) else value.tobytes()


def _changed(name: str, before: Any, now: Any) -> Iterator[str]:
    if now is MISSING:
        yield f"{name} was deleted"
    elif not same(_unwatched(before), _unwatched(now)):
        yield f"{name} was {_shown(before)} and is {_shown(now, other=_shown(before))}"


def _other_members(name: str, now: Any, keys: Sequence[Any]) -> Iterator[str]:
    if len(now) != len(keys):
        what = "hook" if "hooks" in name else "item"
        yield f"{name} had {len(keys)} {what}{'s' * (len(keys) != 1)} and has {len(now)}"
    elif isinstance(now, dict) and not same_keys(keys_of(now), keys):
        yield f"the order of {name} changed"


def _expect_members(quick: Columns, now: Any, keys: Sequence[Any]) -> None:
    quick.length(now)
    if isinstance(now, OrderedDict):  # its order is not that of the dict beneath
        quick.otherwise(lambda: same_keys(keys_of(now), keys))
    elif isinstance(now, dict):
        quick.unwritten(now, lambda: same_keys(keys_of(now), keys))


def _moved(before: tuple[Any, ...], now: tuple[Any, ...]) -> str | None:
    """What differs between two layouts of one tensor, most telling first; None if nothing does."""
    if before == now:
        return None
    if isinstance(before, Layout) and isinstance(now, Layout):
        for what in ("dtype", "shape", "strides"):
            old, new = getattr(before, what), getattr(now, what)
            if old != new:
                return f"its {what} changed from {old} to {new}"
    return "its memory moved"


def _unwatched(value: Any) -> Any:
    """A function without the wrapper of a watch: another thread may be capturing another spec just now."""
    own = isinstance(value, types.FunctionType) and value.__code__.co_filename.startswith(_RUNTIME)
    return getattr(value, "__wrapped__", value) if own else value


def _is_wrapper_of_torch(value: Any) -> bool:
    """Whether torch itself put a function here: `make_graphed_callables` replaces ``forward`` by its equal."""
    return isinstance(value, types.FunctionType) and is_from_library(value)


def _form_shown(form: tuple[Any, ...]) -> str:
    kind, *rest = form
    return f"a {kind.__name__}" + (f" {rest[0]} {list(rest[1])}" if rest else "")


def _shown(value: Any, other: str = "") -> str:
    """A value in a message, or what it is; another one of the kind where ``other`` reads the same."""
    text = repr(value) if isinstance(value, (int, float, complex, bool, str, type(None), tuple)) else ""
    shown = text if text and len(text) <= _LONGEST_SHOWN else f"a {type(value).__name__}"
    return f"another {type(value).__name__}" if shown == other else shown
