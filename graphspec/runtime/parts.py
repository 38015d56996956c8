"""What a Python object is made of: its slots, and the mutable parts that hold them.

A `Slot` is a place that can hold something else tomorrow: an attribute, a dict entry, a closure cell.
A `Part` is one mutable content of one object, read as a flat mapping; an object may have several (a module has its
attributes, parameters, buffers and submodules). Walking (reach.py) and snapshots (objects.py) share these two words.

Invariants:
- Reading a part never runs code of the model: no property, no ``__getattr__``, no overridden ``__getitem__``.
- Code of the standard library, torch and numpy is never entered; nn modules, optimizers and scalers of torch are data.
"""

from __future__ import annotations

import enum
import functools
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import nn

SlotKind = Literal["attribute", "parameter", "buffer", "item", "cell", "global"]
PartKind = Literal[
    "attributes", "parameters", "buffers", "modules",  # a dict that belongs to an object
    "fields",  # read with getattr: __slots__, and what built-in objects hold
    "items", "sequence", "set",  # a container itself
    "cell", "globals", "class", "array",
]  # fmt: skip


class Missing(enum.Enum):
    """The value of a slot that is gone."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing.MISSING

#: Values with nothing inside, compared by value.
VALUE_TYPES = (
    int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout,
    torch.Size, slice, range, type(Ellipsis),
)  # fmt: skip
_LEAVES = frozenset(VALUE_TYPES)
_MODULE_DICTS = {"_parameters": "parameters", "_buffers": "buffers", "_modules": "modules"}
_STDLIB = sysconfig.get_path("stdlib")
_LIBRARIES = frozenset({"torch", "torch_npu", "torchair", "numpy", "graphspec"})
_DATA_OF_LIBRARIES = ("torch.nn.", "torch.optim.", "torch.amp.", "torch.cuda.amp.", "torch_npu.npu.amp")
_CONTAINERS: Any = dict | list | tuple | set | frozenset | deque
_PLAIN: Any = types.MethodType | functools.partial | types.SimpleNamespace
_NEVER = (type, types.ModuleType, types.CodeType, types.FrameType, threading.Thread, enum.Enum)

#: What built-in objects are made of: (types, kind of the part, its keys).
_BUILT_IN: tuple[tuple[Any, PartKind, tuple[str, ...]], ...] = (
    (dict, "items", ()),
    (list | tuple | deque, "sequence", ()),
    (set | frozenset, "set", ()),
    (types.MethodType, "fields", ("__self__", "__func__")),
    (functools.partial, "fields", ("func", "args", "keywords")),
    (types.FunctionType, "fields", ("__defaults__", "__kwdefaults__")),
)


@dataclass(frozen=True, eq=False)
class Slot:
    """A place that holds an object: ``key`` of ``owner``.

    ``name`` is dotted, e.g. ``model.layers.0.weight`` or ``model.cache['k'][3]``. ``above`` are the slots that hold the
    owner itself; a slot is where its name says as long as they all still do.
    """

    name: str
    owner: Any
    key: Any
    kind: SlotKind
    above: Sequence[Slot] = field(default=(), repr=False)

    def holder(self) -> Any:
        """The dict, list, tuple or set that holds the value now; None when only ``getattr`` can reach it."""
        if self.kind in ("item", "global"):
            return self.owner
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
            if isinstance(holder, dict):
                return dict.get(holder, self.key, MISSING)
            if isinstance(holder, set | frozenset):
                return next((item for item in holder if item is self.key), MISSING)
            return getattr(self.owner, self.key) if holder is None else holder[self.key]
        except (AttributeError, LookupError, TypeError, ValueError):
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
            items = dict(dict.items(mapping))
            return {key: items[key] for key in self.keys if key in items} if self.kind == "globals" else items
        if self.kind == "sequence":
            return dict(enumerate(self.owner))
        if self.kind == "set":
            return dict(zip(self.owner, self.owner, strict=True))
        if self.kind == "array":
            return {"bytes": self.owner.tobytes()}
        if self.kind == "class":
            return {key: vars(self.owner)[key] for key in self.keys if key in vars(self.owner)}
        return {key: value for key in self.keys if (value := _field(self.owner, key)) is not MISSING}

    def slot(self, key: Any, label: str, above: Sequence[Slot]) -> Slot:
        """The slot of ``key``; ``label`` is how the key reads inside brackets."""
        kind: SlotKind = "attribute"
        owner, name = self.owner, f"{self.name}.{key}"
        if self.kind in ("items", "sequence", "set"):
            names = getattr(self.owner, "_fields", None)
            kind, name = "item", f"{self.name}.{names[key]}" if names else f"{self.name}[{label}]"
        elif self.kind == "cell":
            kind, name = "cell", self.name
        elif self.kind in ("globals", "parameters", "buffers"):
            kind = cast("SlotKind", self.kind[:-1])
        return Slot(name, owner, key, kind, above)


def _field(owner: Any, key: str) -> Any:
    try:
        return getattr(owner, key)
    except (AttributeError, ValueError):  # an unset slot, an empty cell
        return MISSING


def attributes_of(owner: Any) -> dict[str, Any] | None:
    """The ``__dict__`` of an object, or None (built-ins, slots only, classes)."""
    own = getattr(owner, "__dict__", None)
    return own if isinstance(own, dict) else None


def is_leaf(value: Any) -> bool:
    """Whether there is nothing to walk into: plain values, types, modules of Python, threads, library internals."""
    kind = type(value)
    if kind in _LEAVES or isinstance(value, _NEVER):
        return True
    if isinstance(value, torch.Tensor | nn.Module | torch.optim.Optimizer | _CONTAINERS | _PLAIN) or is_array(value):
        return False
    if isinstance(value, types.FunctionType):
        return is_library(value.__module__)
    if "__wrapped__" in (attributes_of(value) or ()):
        return False  # functools.lru_cache and the like
    module = str(kind.__module__)
    return is_library(module) and not module.startswith(_DATA_OF_LIBRARIES)


def is_array(value: Any) -> bool:
    """Whether this is a numpy array of numbers, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject


def is_library(module: str | None) -> bool:
    """Whether a module name belongs to torch, numpy, graphspec or the standard library."""
    top = str(module).partition(".")[0]
    if top in _LIBRARIES:
        return True
    if top not in sys.stdlib_module_names:
        return False
    # A model may live in a file named like a module of the standard library: code.py, calendar.py.
    path = getattr(sys.modules.get(top), "__file__", None)
    return path is None or path.startswith(_STDLIB)


def parts_of(value: Any, name: str) -> Iterator[Part]:
    """The parts of one object, its code left out (see `code_parts`)."""
    if isinstance(value, torch.Tensor):
        yield from _tensor_parts(value, name)
    for kinds, kind, keys in _BUILT_IN:
        if isinstance(value, kinds):
            yield Part(name, value, kind, keys)
            break
    if is_array(value):
        yield Part(name, value, "array")
    own = None if isinstance(value, types.MethodType) else attributes_of(value)
    if own is not None and (own or not isinstance(value, torch.Tensor | types.FunctionType)):
        yield Part(name, value, "attributes")
    if isinstance(value, nn.Module):
        yield from (Part(name, value, cast("PartKind", kind)) for kind in _MODULE_DICTS.values())
    slots = slot_names(type(value))
    if slots:
        yield Part(name, value, "fields", slots)


def _tensor_parts(tensor: torch.Tensor, name: str) -> Iterator[Part]:
    if tensor.is_leaf and tensor.grad is not None:
        yield Part(name, tensor, "fields", ("grad",))
    if hasattr(type(tensor), "__tensor_flatten__"):  # wrapper subclasses such as DTensor
        yield Part(name, tensor, "fields", tuple(cast("Any", tensor).__tensor_flatten__()[0]))


def slot_names(kind: type) -> tuple[str, ...]:
    """The names in ``__slots__`` of a user's class."""
    if is_library(kind.__module__):
        return ()
    names: list[str] = []
    for base in kind.__mro__:
        declared = vars(base).get("__slots__", ())
        for slot in (declared,) if isinstance(declared, str) else tuple(declared):
            private = slot.startswith("__") and not slot.endswith("__")
            member = f"_{base.__name__.lstrip('_')}{slot}" if private else slot
            if isinstance(vars(base).get(member), types.MemberDescriptorType):
                names.append(member)
    return tuple(names)


def code_parts(function: types.FunctionType, name: str) -> Iterator[Part]:
    """Closure cells of a function, and the globals its code really names (nested functions included)."""
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Part(f"{name}.<closure>.{variable}", cell, "cell", ("cell_contents",))
    names = names_in(function.__code__)
    yield _globals_part(function.__globals__, str(function.__module__), names)
    for key in names:
        module = function.__globals__.get(key)
        if isinstance(module, types.ModuleType) and not is_library(module.__name__):
            yield _globals_part(vars(module), module.__name__, names)


def _globals_part(namespace: Mapping[str, Any], module: str, names: tuple[str, ...]) -> Part:
    return Part(module, namespace, "globals", tuple(key for key in names if key in namespace))


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Every global and attribute name in a code object and those nested in it, once each."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(dict.fromkeys(names_in(constant)))
    return tuple(found)


def function_of(member: Any) -> types.FunctionType | None:
    """The plain function behind a class attribute (method, property, static or class method), if there is one."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, staticmethod | classmethod):
        member = member.__func__
    elif not isinstance(member, types.FunctionType):  # functools.lru_cache and the like
        member = (attributes_of(member) or {}).get("__wrapped__")
    return member if isinstance(member, types.FunctionType) else None
