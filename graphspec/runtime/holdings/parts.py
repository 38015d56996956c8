"""What a Python object is made of, and what counts as having nothing inside.

Invariant: code of the standard library, torch and numpy is never entered; nn modules, optimizers and scalers of torch
are data.
"""

from __future__ import annotations

import argparse
import array
import configparser
import enum
import functools
import queue
import sys
import sysconfig
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, UserString, deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, cast

import torch
from torch import nn

from graphspec.runtime.holdings.places import Part, PartKind, attributes_of
from graphspec.runtime.holdings.readers import reader_of
from graphspec.runtime.importing.folder import file_of, imported

#: Values with nothing inside, compared by value.
VALUE_TYPES = (
    int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout,
    torch.Size, slice, range, type(Ellipsis), Decimal, Fraction, date, time, timedelta, PurePath,
)  # fmt: skip
#: Classes of the standard library whose objects are nothing but what they hold.
DATA_CLASSES = (
    argparse.Namespace, UserDict, UserList, UserString, ChainMap, queue.Queue, configparser.RawConfigParser,
    configparser.SectionProxy, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet,
    types.SimpleNamespace,
)  # fmt: skip
_LEAVES = frozenset(VALUE_TYPES)
_MODULE_DICTS = {"_parameters": "parameters", "_buffers": "buffers", "_modules": "modules"}
_STDLIB = sysconfig.get_path("stdlib")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_LIBRARIES = frozenset({"torch", "torch_npu", "torchair", "numpy", "graphspec"})
_DATA_OF_LIBRARIES = ("torch.nn.", "torch.optim.", "torch.amp.", "torch.cuda.amp.", "torch_npu.npu.amp")
_CONTAINERS: Any = dict | list | tuple | set | frozenset | deque
_PLAIN: Any = types.MethodType | functools.partial
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


def is_leaf(value: Any) -> bool:
    """Whether there is nothing to walk into: plain values, types, modules of Python, threads, library internals."""
    kind = type(value)
    if kind in _LEAVES or isinstance(value, _NEVER):
        return True
    if isinstance(value, torch.Tensor | nn.Module | torch.optim.Optimizer | _CONTAINERS | _PLAIN):
        return False
    if isinstance(value, DATA_CLASSES) or is_array(value):
        return False
    if isinstance(value, types.FunctionType):
        return is_from_library(value)
    if "__wrapped__" in (attributes_of(value) or ()):
        return False  # functools.lru_cache and the like
    module = str(module_of(kind))
    return is_library(module) and not module.startswith(_DATA_OF_LIBRARIES) and reader_of(value) is None


def is_array(value: Any) -> bool:
    """Whether this is nothing but numbers in memory: an array, of numpy (which is not imported here) or of Python."""
    if isinstance(value, bytearray | array.array):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject


def module_of(value: Any) -> str | None:
    """Where a class or a function says it is from; what `exec` makes may not say."""
    return getattr(value, "__module__", None)


def is_from_library(value: Any) -> bool:
    """Whether a class or a function is of torch, numpy, graphspec or the standard library."""
    return is_library(module_of(value))


@functools.lru_cache(maxsize=4096)
def is_installed_file(path: object) -> bool:
    """Whether a file belongs to an installed library, wherever that is: beside it lies what an installer notes."""
    file = PurePath(str(path))
    if not _INSTALLED.isdisjoint(file.parts):
        return True
    return any(root and file.is_relative_to(root) and _is_installation(root) for root in sys.path)


@functools.cache
def _is_installation(root: str) -> bool:
    """Whether a folder on the path is where packages are installed, ``pip install --target`` included."""
    return any(Path(root).glob("*.dist-info"))


def is_of_user(kind: type | types.ModuleType) -> bool:
    """Whether a class or a module is from a file of the user's, not of an installed library."""
    name = kind.__name__ if isinstance(kind, types.ModuleType) else module_of(kind)
    return not is_library(name) and not is_installed_file(getattr(sys.modules.get(str(name)), "__file__", None))


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
    if (reader := reader_of(value)) is not None:
        yield Part(name, value, "content", (reader.suffix,))
    own = None if isinstance(value, types.MethodType | threading.local) else attributes_of(value)
    if own is not None and (own or not isinstance(value, torch.Tensor | types.FunctionType)):
        yield Part(name, value, "attributes")
    if isinstance(value, nn.Module):
        dicts = own or {}  # those of a ScriptModule are wrappers of C++, made anew at each look
        yield from (
            Part(name, value, cast("PartKind", kind))
            for key, kind in _MODULE_DICTS.items()
            if isinstance(dicts.get(key), dict)
        )
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
    if is_from_library(kind):
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


def cells_of(function: types.FunctionType, name: str) -> Iterator[Part]:
    """The closure cells of a function."""
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Part(f"{name}.<closure>.{variable}", cell, "cell", ("cell_contents",))


def modules_of(function: types.FunctionType) -> Iterator[types.ModuleType]:
    """The modules that a function is in, that its globals hold under names that it loads, and that it imports."""
    space = function.__globals__
    own = sys.modules.get(str(space.get("__name__")))
    if own is not None and vars(own) is space:
        yield own
    for name in names_in(function.__code__):
        within = f"{space.get('__package__')}.{name}"  # from . import name
        for module in (space.get(name), imported(name, space), sys.modules.get(within)):
            if isinstance(module, types.ModuleType) and not is_library(module.__name__):
                yield module


def globals_part(space: Mapping[str, Any], names: Iterable[str]) -> Part:
    """What a namespace holds under these names, those of a class or a file of the user's called as they are written."""
    module = str(space.get("__name__"))
    return Part(file_of(module) or module, space, "globals", tuple(key for key in names if key in space))


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Every global and attribute name in a code object and those nested in it, and every text that could be one."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        names = names_in(constant) if isinstance(constant, types.CodeType) else names_in_text(constant)
        found.update(dict.fromkeys(names))
    return tuple(found)


def names_in_text(constant: Any) -> Iterator[str]:
    """The names that a text may be, or a path of them, or that a tuple of texts holds: `match` keeps its names so."""
    if isinstance(constant, str) and all(part.isidentifier() or part.isdecimal() for part in constant.split(".")):
        yield from (constant, *constant.split("."))
    elif isinstance(constant, tuple):
        for item in constant:
            yield from names_in_text(item)


def function_of(member: Any) -> types.FunctionType | None:
    """The plain function behind a class attribute (method, property, static or class method), if there is one."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, staticmethod | classmethod):
        member = member.__func__
    elif not isinstance(member, types.FunctionType):  # functools.lru_cache and the like
        member = (attributes_of(member) or {}).get("__wrapped__")
    return member if isinstance(member, types.FunctionType) else None
