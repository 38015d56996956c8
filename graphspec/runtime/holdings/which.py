"""Which facts are expected to hold, of all that the captured code can have read.

Tensors that a graph reads are expected at their addresses, in their places, and all ways to these. Of what code touched
besides (touched.py), it is what a name that it loads can find: numbers and text by value, containers by all they hold,
other objects by identity; hooks, code and training flags always. That may refuse a change of what was not read. What is
too large to be compared on every run is warned of. What an eager region changes on its runs is left out (``moving``).
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from graphspec.runtime.holdings.closures import constant_cells
from graphspec.runtime.holdings.code_names import LoadedNames
from graphspec.runtime.holdings.containers import Containers
from graphspec.runtime.holdings.expectations import (
    Expectation,
    Form,
    Held,
    Members,
    Mode,
    Owner,
    ReadTensor,
    Variables,
    Way,
    attributes,
    form_of,
)
from graphspec.runtime.holdings.objects import keys_of
from graphspec.runtime.holdings.parts import globals_part, is_from_library, is_installed_file
from graphspec.runtime.holdings.places import MISSING, Part, Place
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.holdings.storages import layout_of, quiet
from graphspec.runtime.holdings.touched import ATTRIBUTES, MODULE_CONTAINERS, Touched

_CALLED_BY_TORCH = frozenset({"forward", "__call__"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_TENSORS = ("_parameters", "_buffers")
_FLAGS = frozenset({"requires_grad", "is_leaf", "grad", "grad_fn", "_version"})
_CODE = ("__code__", "__defaults__", "__kwdefaults__")


def read_tensors(
    entries: Iterable[tuple[Sequence[Place], torch.Tensor]], touched: Touched | None = None
) -> Iterator[ReadTensor | Way]:
    """What a graph reads by address: (places, tensor) for each, and every way to the places."""
    below: dict[int, tuple[Place, Any, list[Place]]] = {}
    with quiet():
        for places, tensor in entries:
            kept = touched.relevant(places) if touched else list(places)
            yield ReadTensor(kept, tensor, layout_of(tensor))
            for place in kept:
                for above in _ways(place, touched):
                    below.setdefault(id(above[0]), (*above, []))[2].append(place)
    yield from (Way(*way) for way in below.values())


def _ways(place: Place, touched: Touched | None) -> Iterator[tuple[Place, Any]]:
    """Every place on the way to one, with what it holds. What already leads elsewhere was not the way there."""
    todo, seen = [place], set()
    for slot in todo:  # grows while it is walked
        for above in touched.relevant(slot.above) if touched else slot.above:
            if id(above) not in seen:
                seen.add(id(above))
                todo.append(above)
                if above.get() is slot.owner:
                    yield above, slot.owner


def modes(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[Expectation]:
    """The training flags of modules, by name."""
    return (Mode(name, module, module.training) for name, module in modules)


class HostValues:
    """What captured code can have read on the host.

    ``moving`` are names of places that change by right, ``covered`` those of tensors that graphs read, and on the way;
    ``apart`` are the identities of containers that somebody else expects something of.
    """

    def __init__(
        self,
        found: Reach,
        touched: Touched,
        code: LoadedNames,
        moving: Collection[str] = (),
        covered: Collection[Place] = (),
        apart: Collection[int] = (),
    ) -> None:
        self._found, self._touched, self._code, self._moving = found, touched, code, moving
        self._names = code.names | _CALLED_BY_TORCH
        self._covered = {(id(place.owner), place.key) for place in covered}
        self._containers = Containers(found, touched, code, moving, apart)
        #: Names of what is too large to be compared, after `expected`.
        self.unwatched = self._containers.unwatched

    def expected(self) -> Iterator[Expectation]:
        """Everything that must hold."""
        yield from self._modules()
        yield from self._owners()
        yield from self._forms()
        yield from self._environment()
        for place, value in (*self._functions(), *self._values()):
            known = value in self._containers or (id(place.owner), place.key) in self._covered
            if not known and place.name not in self._moving and not isinstance(value, torch.Tensor):
                yield Held(place, value)
        yield from self._containers.expected()

    def _modules(self) -> Iterator[Expectation]:
        hooks = [(f"the global {name}", getattr(nn.modules.module, f"_global{name}")) for name in _HOOKS]
        held = []
        for name, module in self._found.modules:
            if module not in self._touched:
                continue
            own, walked = vars(module), self._touched.walks(module)
            yield Mode(name, module, module.training)
            hooks += [(f"{name}.{kind}", own[kind]) for kind in _HOOKS]
            if walked:
                held += [(f"{name}.{kind}", own[kind]) for kind in _TENSORS if kind in own]
            if walked or isinstance(module, MODULE_CONTAINERS):
                held.append((name, own["_modules"]))
        yield from (Members(name, members, list(members), ordered=False) for name, members in hooks)
        yield from (Members(name, members, keys_of(members)) for name, members in held)

    def _owners(self) -> Iterator[Expectation]:
        """Everything that has attributes: modules and other objects, and their classes; tensors, if code may ask."""
        owners: list[tuple[str, Any]] = [(kind.__name__, kind) for kind in self._found.classes]
        for part in self._found.parts:
            known = isinstance(part.owner, nn.Module) or not is_from_library(type(part.owner))
            if part.kind in ("attributes", "fields") and known and not isinstance(part.owner, torch.Tensor):
                owners.append((part.name, part.owner))
        if self._code.probes:
            owners += {id(tensor): (place.name, tensor) for place, tensor in reversed(self._found.tensors)}.values()
            yield from (
                self._owner(globals_part(vars(file), ()).name, file, self._code.texts) for file in self._files()
            )
        for name, owner in owners:
            if owner in self._touched and owner not in self._containers:
                yield self._owner(name, owner, self._names)

    def _owner(self, name: str, owner: Any, names: Collection[str]) -> Expectation:
        return Owner(name, owner, type(owner), frozenset(attributes(owner)), names, self._code.methods)

    def _files(self) -> Iterator[types.ModuleType]:
        """The files of the user's that code can have got to."""
        for space in self._found.spaces:
            module = sys.modules.get(str(space.get("__name__")))
            if module is not None and vars(module) is space and module in self._touched:
                yield module

    def _forms(self) -> Iterator[Expectation]:
        """What code can ask of tensors besides their values."""
        flags = sorted(_FLAGS & self._names - self._code.methods)
        for place, tensor in self._found.tensors:
            asked = place.kind in ("parameter", "buffer") or place.key in self._names
            if not asked or not self._touched.holds(place) or place.name in self._moving:
                continue
            if (id(place.owner), place.key) not in self._covered:
                yield Form(place, form_of(tensor))
            for flag in (Place(f"{place.name}.{key}", tensor, key, "attribute") for key in flags):
                if flag.name not in self._moving and (tensor.is_leaf or flag.key != "grad"):
                    yield Held(flag, flag.get())

    def _environment(self) -> Iterator[Expectation]:
        """Variables that loaded code may ask for, those that are not set included."""
        if {"environ", "getenv"} & self._names:
            asked = [name for name in sorted(self._names) if name.isupper() or name in os.environ]
            yield Variables({name: os.environ.get(name) for name in asked})
            yield Held(Place("os.environ", vars(os), "environ", "global"), os.environ)

    def _functions(self) -> Iterator[tuple[Place, Any]]:
        """Where code looks up what it calls, and what a tool that reloads edited files puts into functions."""
        for place in self._found.called:
            known = place.kind == "global" or is_from_library(place.owner) or place.owner in self._touched
            if place.key in self._names and known:
                yield place, place.get()
        for function in self._found.functions():  # libraries are not edited
            if function in self._touched and not is_installed_file(function.__code__.co_filename):
                name = self._found.slots_of(function)[0].name
                yield from (
                    (Place(f"{name}.{key}", function, key, "attribute"), getattr(function, key)) for key in _CODE
                )

    def _values(self) -> Iterator[tuple[Place, Any]]:
        """What objects, closures and globals hold under a name that code can have asked for."""
        constants = constant_cells(filter(self._touched.__contains__, self._found.functions()))
        for part in self._found.parts:
            if part.kind == "globals":
                keys = [
                    key for key in self._touched.globals(part.owner) if key in part.keys and not key.startswith("__")
                ]
            elif part.owner not in self._touched or part.owner in self._containers or id(part.owner) in constants:
                continue
            elif part.kind in (*ATTRIBUTES, "content", "cell"):
                keys = self._touched.asked(part)
            else:
                continue
            content = part.read()
            places = [(part.place(key, self._found.label(key), ()), content[key]) for key in keys if key in content]
            if part.kind == "attributes":
                places += self._inherited(part, content)
            yield from (each for each in places if each[0].key not in self._code.methods or callable(each[1]))

    def _inherited(self, part: Part, own: Collection[str]) -> Iterator[tuple[Place, Any]]:
        """Class attributes as seen from an instance, which an assignment to the instance would hide."""
        seen = set(own)
        for kind in type(part.owner).__mro__:
            if is_from_library(kind):
                continue
            for key, value in vars(kind).items():
                plain = not key.startswith("__") and not hasattr(type(value), "__get__")
                if plain and key in self._names and key not in seen:
                    place = Place(f"{part.name}.{key}", part.owner, key, "attribute")
                    given = place.get()  # which `__getattribute__` may give from elsewhere, or not at all
                    if given is not MISSING:
                        yield place, given
                seen.add(key)
