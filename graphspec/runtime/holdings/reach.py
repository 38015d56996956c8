"""What can be reached from a model, its optimizer and its inputs, and through which slots.

The walk takes modules, containers, plain objects, bound methods, partials, optimizers, and of functions the closure
cells, defaults and the globals that their code names. Methods and class attributes of a user's class count when some
walked code names them (``forward`` and ``__call__`` always do), so a library's unused machinery stays outside.

Invariants:
- Each object is walked once, with no recursion; cycles and depth do not matter.
- A tensor, and every object on the way to it, lists every slot that holds it: tied weights have two names.
- Roots are walked one after the other, breadth first, so names are short; optimizers last, so that a parameter goes by
  the name it has in the model.
- Walking changes nothing and runs no code of the model.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from graphspec.runtime.holdings.parts import (
    VALUE_TYPES,
    cells_of,
    function_of,
    globals_part,
    is_from_library,
    is_leaf,
    is_of_user,
    modules_of,
    names_in,
    parts_of,
)
from graphspec.runtime.holdings.places import MISSING, Part, Place, PlaceKind
from graphspec.runtime.holdings.storages import storage_of, weak

__all__ = ["MISSING", "Part", "Place", "PlaceKind", "Reach", "reach"]

_ENTRY_POINTS = frozenset({"forward", "__call__", "__getitem__", "__setitem__", "__enter__", "__exit__"})
#: Code with one of these names may make the names that it looks up.
_COMPUTING = frozenset({"globals", "vars", "__dict__", "getattr"})
_DATA: Any = (*VALUE_TYPES, dict, list, tuple, set, frozenset, deque, torch.Tensor)
_HANDLED = frozenset({"_parameters", "_buffers", "_modules"})


@dataclass(frozen=True)
class Reach:
    """The result of a walk. Everything in it is held strongly."""

    tensors: tuple[tuple[Place, torch.Tensor], ...]
    modules: tuple[tuple[str, nn.Module], ...]
    generators: tuple[tuple[str, torch.Generator], ...]
    parts: tuple[Part, ...] = field(repr=False)
    #: Where code looks up what it calls: methods of classes, functions and layers of torch.
    called: tuple[Place, ...] = field(repr=False)
    classes: tuple[type, ...] = field(repr=False)
    #: The globals of files of the user's.
    spaces: tuple[dict[str, Any], ...] = field(repr=False)
    _slots: Mapping[int, tuple[object, list[Place]]] = field(repr=False)
    _storages: Mapping[StorageWeakRef, list[Place]] = field(repr=False)

    def functions(self) -> tuple[types.FunctionType, ...]:
        """Every plain function on the way."""
        return tuple(value for value, _ in self._slots.values() if isinstance(value, types.FunctionType))

    def remembering(self) -> Iterator[types.FunctionType]:
        """The functions on the way whose results `functools.cache` keeps."""
        members = (member for kind in self.classes for member in vars(kind).values())
        for value in (*members, *(value for value, _ in self._slots.values())):
            if isinstance(value, functools._lru_cache_wrapper) and isinstance(value.__wrapped__, types.FunctionType):
                yield value.__wrapped__

    def objects(self, ids: Collection[int]) -> tuple[object, ...]:
        """The objects on the way with these ids."""
        return tuple(self._slots[key][0] for key in ids if key in self._slots)

    def knows(self, value: object) -> bool:
        """Whether this very object was reached."""
        found = self._slots.get(id(value))
        return found is not None and found[0] is value

    def slots_of(self, value: object) -> tuple[Place, ...]:
        """Every slot that holds this very object, in the order found; empty if it was not reached."""
        found = self._slots.get(id(value))
        return tuple(found[1]) if found is not None and found[0] is value else ()

    def slots_of_storage(self, tensor: torch.Tensor) -> tuple[Place, ...]:
        """Every slot that holds a tensor of the same storage: views and aliases included."""
        storage = storage_of(tensor)
        return () if storage is None else tuple(self._storages.get(weak(storage), ()))

    def label(self, key: object) -> str:
        """How a key reads inside brackets. Objects as keys (a parameter in an optimizer's state) go by their name."""
        return _label(key, self._slots)

    def name_of(self, value: object) -> str | None:
        """The first name of an object, if it was reached."""
        slots = self.slots_of(value)
        return slots[0].name if slots else None


def reach(roots: Mapping[str, object]) -> Reach:
    """Walk ``roots``, by name."""
    walk = _Walk()
    held = dict(roots)  # the owner of the root slots: always as it was
    for name, value in held.items():
        walk.edge(value, Place(name, held, name, "item"))
        walk.run()
    return walk.result()


@dataclass
class _ClassEntry:
    done: set[str] = field(default_factory=set)
    data: list[str] = field(default_factory=list)
    instances: list[tuple[Any, str]] = field(default_factory=list)


class _Walk:
    def __init__(self) -> None:
        self.slots: dict[int, tuple[Any, list[Place]]] = {}
        self.queue: deque[tuple[Any, str]] = deque()
        self.optimizers: deque[tuple[Any, str]] = deque()
        self.tensors: list[tuple[Place, torch.Tensor]] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.generators: list[tuple[str, torch.Generator]] = []
        self.parts: list[Part] = []
        self.called: list[Place] = []
        self.globals_seen: set[tuple[int, str]] = set()
        self.names: set[str] = set(_ENTRY_POINTS)
        self.layers: set[type] = set()
        self.spaces: dict[int, dict[str, Any]] = {}
        self.classes: dict[type, _ClassEntry] = {}

    def run(self) -> None:
        known: tuple[int, ...] = ()
        while self.queue or self.optimizers or (len(self.classes), len(self.spaces), len(self.names)) != known:
            while self.queue:
                self.visit(*self.queue.popleft())
            known = (len(self.classes), len(self.spaces), len(self.names))
            for kind in tuple(self.classes):
                self.visit_class(kind)
            for space in tuple(self.spaces.values()):
                self.visit_space(space)
            if not self.queue and self.optimizers:
                self.queue.append(self.optimizers.popleft())

    def edge(self, value: Any, slot: Place) -> None:
        """Note that ``slot`` holds ``value``; queue what is new."""
        if isinstance(value, type):
            self.note_classes(value)
            return
        if isinstance(value, types.ModuleType):
            if is_of_user(value):
                self.note_module(value)
            return
        is_generator = type(value) is torch.Generator  # isinstance goes through a slow metaclass
        if not is_generator and is_leaf(value):
            return
        known = self.slots.get(id(value))
        if isinstance(value, torch.Tensor):
            self.tensors.append((slot, value))
        if known is not None:
            known[1].append(slot)
            return
        self.slots[id(value)] = (value, [slot])
        if is_generator:
            self.generators.append((slot.name, value))
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers.append((value, slot.name))
        else:
            self.queue.append((value, slot.name))

    def visit(self, value: Any, name: str) -> None:
        if isinstance(value, nn.Module):
            self.modules.append((name, value))
            self.note_layer(type(value))
        for part in parts_of(value, name):
            self.take(part, self.slots[id(value)][1])
        if isinstance(value, types.FunctionType):
            self.visit_code(value, name, self.slots[id(value)][1])
        elif not is_from_library(type(value)):
            self.note_class(value, name)

    def take(self, part: Part, above: list[Place]) -> None:
        """Keep a part and follow what it holds."""
        self.parts.append(part)
        if part.kind == "array":
            return
        skip = _HANDLED if part.kind == "attributes" and isinstance(part.owner, nn.Module) else ()
        for key, value in part.read().items():
            if key not in skip:
                self.edge(value, part.place(key, _label(key, self.slots), above))

    def visit_code(self, function: types.FunctionType, name: str, above: list[Place]) -> None:
        names = names_in(function.__code__)
        self.names.update(names)
        self.note_torch(function)
        for part in cells_of(function, name):
            self.take(part, above)
        self.take_globals(function.__globals__, names)
        for module in modules_of(function):
            if is_of_user(module):
                self.note_module(module)
            else:
                self.take_globals(vars(module), names)

    def note_module(self, module: types.ModuleType) -> None:
        """A file of the user's: all that any code names of it counts, since code may get at a module in many ways."""
        self.spaces[id(vars(module))] = vars(module)

    def take_globals(self, space: dict[str, Any], names: Iterable[str]) -> None:
        fresh = [key for key in names if key in space and (id(space), key) not in self.globals_seen]
        self.globals_seen.update((id(space), key) for key in fresh)
        if fresh:
            self.take(globals_part(space, fresh), [])

    def visit_space(self, space: dict[str, Any]) -> None:
        computed = not _COMPUTING.isdisjoint(self.names)
        named = (key for key, value in space.items() if key in self.names or (computed and isinstance(value, _DATA)))
        self.take_globals(space, [key for key in named if not key.startswith("__")])

    def note_torch(self, function: types.FunctionType) -> None:
        """What a function calls in modules of torch."""
        names = names_in(function.__code__)
        for key in names:
            module = function.__globals__.get(key)
            if isinstance(module, types.ModuleType) and module.__name__.partition(".")[0] == "torch":
                self.note_functions(module, names)

    def note_functions(self, module: types.ModuleType, names: Iterable[str]) -> None:
        """Functions of torch by the names that code loads: ``F.linear``, ``torch.nn.functional.linear``."""
        for key in names:
            if (id(module), key) in self.globals_seen:
                continue
            value = vars(module).get(key)
            if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
                self.globals_seen.add((id(module), key))
                self.called.append(Place(f"{module.__name__}.{key}", vars(module), key, "global"))
            elif isinstance(value, types.ModuleType) and value.__name__ == f"{module.__name__}.{key}":
                self.note_functions(value, names)

    def note_layer(self, kind: type) -> None:
        """The ``forward`` of a layer of torch."""
        base = next((base for base in kind.__mro__ if "forward" in vars(base)), None)
        if base is not None and is_from_library(base) and base not in self.layers:
            self.layers.add(base)
            self.called.append(Place(f"{base.__module__}.{base.__name__}.forward", base, "forward", "attribute"))
            forward = vars(base)["forward"]
            if isinstance(forward, types.FunctionType):
                self.note_torch(forward)

    def note_classes(self, kind: type) -> None:
        """A class by its own name: what its bases and its metaclass give it."""
        for base in (*kind.__mro__, *type(kind).mro(type(kind))):
            if is_of_user(base):
                self.classes.setdefault(base, _ClassEntry())

    def note_class(self, value: Any, name: str) -> None:
        self.note_classes(type(type(value)))
        for kind in type(value).__mro__:
            if not is_from_library(kind):
                entry = self.classes.setdefault(kind, _ClassEntry())
                entry.instances.append((value, name))
                self.class_data(kind, entry.data, ((value, name),))

    def visit_class(self, kind: type) -> None:
        """Follow what walked code names of a class: its functions, and its data as seen from every instance."""
        entry = self.classes[kind]
        fresh = [key for key in vars(kind) if key in self.names and key not in entry.done]
        entry.done.update(fresh)
        for key in fresh:
            member = vars(kind)[key]
            function = function_of(member)
            slot = Place(f"{kind.__name__}.{key}", kind, key, "attribute")
            if function is not None:
                self.edge(function, slot)
                self.called.append(slot)
            elif callable(getattr(type(member), "__get__", None)):  # a descriptor of the user's
                self.edge(member, slot)
                self.called.append(slot)
        data = [key for key in fresh if not callable(getattr(vars(kind)[key], "__get__", None))]
        if data:
            entry.data.extend(data)
            self.parts.append(Part(kind.__name__, kind, "class", tuple(data)))
            self.class_data(kind, data, entry.instances)
            if not entry.instances:  # a class that is used by its own name
                for key in data:
                    self.edge(vars(kind)[key], Place(f"{kind.__name__}.{key}", kind, key, "attribute"))

    def class_data(self, kind: type, keys: Iterable[str], instances: Iterable[tuple[Any, str]]) -> None:
        """A class attribute is a slot of each instance: that is where an assignment would shadow it."""
        for value, name in instances:
            for key in keys:
                self.edge(vars(kind)[key], Place(f"{name}.{key}", value, key, "attribute", self.slots[id(value)][1]))

    def result(self) -> Reach:
        storages: dict[StorageWeakRef, list[Place]] = {}
        for slot, tensor in self.tensors:
            storage = storage_of(tensor)
            if storage is not None:
                storages.setdefault(weak(storage), []).append(slot)
        return Reach(
            tuple(self.tensors),
            tuple(self.modules),
            tuple(self.generators),
            tuple(self.parts),
            tuple(self.called),
            tuple(self.classes),
            tuple(self.spaces.values()),
            self.slots,
            storages,
        )


def _label(key: object, slots: Mapping[int, tuple[object, list[Place]]]) -> str:
    if isinstance(key, str | int | float | bool | bytes | tuple | type(None)):
        return repr(key)
    known = slots.get(id(key))
    return known[1][0].name if known is not None else f"<{type(key).__name__}>"
