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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from graphspec.runtime.holdings.columns import Columns
from graphspec.runtime.holdings.differences import changed, moved, shown
from graphspec.runtime.holdings.objects import same
from graphspec.runtime.holdings.parts import is_from_library
from graphspec.runtime.holdings.places import MISSING, Place, attributes_of
from graphspec.runtime.holdings.snapshots import Snapshot, expect_members, other_members
from graphspec.runtime.holdings.storages import Layout, layout_of


class Expectation(ABC):
    """One fact. ``heading`` says, of the graphs, what a difference means to them, ``way_out`` what else can be done."""

    heading: ClassVar[str] = "were captured with other host values"
    way_out: ClassVar[str | None] = None

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
        if held and (how := moved(self.layout, layout_of(self.tensor))):
            yield f"{' and '.join(place.name for place in self.places) or 'a tensor with no name'}: {how}"

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
        yield from changed(self.place.name, self.value, self.place.get())

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
            yield f"{self.name} was {before} and is {shown(self.owner, other=before)}"
        for key, value in attributes(self.owner).items():
            asked = key in self.names and key not in self.keys and (key not in self.methods or callable(value))
            if asked and not _is_wrapper_of_torch(value) and not same(getattr(self.kind, key, MISSING), value):
                yield f"{self.name}{':' if self.name.endswith('.py') else '.'}{key} was added, as {shown(value)}"

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
            yield from other_members(self.name, self.owner, self.keys)
        elif self.owner.keys() != set(self.keys):
            yield f"{self.name} has others than it had"

    def compile(self, quick: Columns) -> None:
        if self.ordered:
            expect_members(quick, self.owner, self.keys)
        else:
            quick.keys(self.owner)


@dataclass(frozen=True, eq=False)
class Variables(Expectation):
    """Variables of the environment, by name; None for one that is not set."""

    values: Mapping[str, str | None]

    def difference(self) -> Iterator[str]:
        for name, value in self.values.items():
            yield from changed(f"the environment variable {name}", value, os.environ.get(name))

    def compile(self, quick: Columns) -> None:
        quick.unwritten(os.environ._data, self.holds)  # type: ignore[attr-defined]


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


def _is_wrapper_of_torch(value: Any) -> bool:
    """Whether torch itself put a function here: `make_graphed_callables` replaces ``forward`` by its equal."""
    return isinstance(value, types.FunctionType) and is_from_library(value)


def _form_shown(form: tuple[Any, ...]) -> str:
    kind, *rest = form
    return f"a {kind.__name__}" + (f" {rest[0]} {list(rest[1])}" if rest else "")
