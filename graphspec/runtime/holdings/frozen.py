"""Host values that a graph froze: what the captured code could read besides tensors, and must still find.

Which attributes a call reads cannot be seen from outside, but which names its code loads can. So everything of the
model that is reachable under a loaded name of code that ran is watched: numbers and text by value, other objects by
identity, containers by their length too, submodules, hooks and methods put on a module always. Functions in globals and
methods of classes are among it. That may refuse a change of another object's attribute of the same name. What is too
large to be compared on every run is warned of.

What an eager region of the same spec changes on its runs is left out: it is told from a frozen value by the two
dry runs (proof.py).
"""

from __future__ import annotations

import argparse
import functools
import os
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from graphspec.runtime.holdings.closures import constant_cells
from graphspec.runtime.holdings.parts import DATA_CLASSES, VALUE_TYPES, is_from_library, is_installed_file, is_of_user
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.holdings.slots import MISSING, Part, Slot, upwards

_CALLED_BY_TORCH = frozenset({"forward", "__call__"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GUARDED = frozenset({"training", "_modules", "_parameters", "_buffers"})
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_TENSORS = ("_parameters", "_buffers")
_WALKERS = frozenset({
    "children", "modules", "parameters", "buffers", "named_children", "named_modules", "named_parameters",
    "named_buffers", "state_dict",
})  # fmt: skip
_DEFAULTS = ("__defaults__", "__kwdefaults__")
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_LARGEST_ARRAY = 1 << 16  # bytes that are compared on every run
_LONGEST = 1024  # items of one container that are watched one by one
_LONGEST_COPY = 1 << 16  # items of one container that are compared at all
_HOLDERS = (functools.partial, types.MethodType, *DATA_CLASSES)


@dataclass(frozen=True)
class Frozen:
    """``values`` must still be found in their slots, ``sizes`` must keep their length, ``arrays`` their bytes.

    ``copies`` are long containers, compared as wholes. ``owners``, modules and other objects and classes, must get no
    attribute that is among ``names``, and stay what they are. ``forms`` are tensors that keep type, dtype and shape, of
    which code may ask though no graph reads the tensor itself. ``orders`` are dicts that keep the order of their keys.
    ``walks``: dicts must not grow either. ``variables`` are those of the environment. ``unwatched`` are too large for
    any of this.
    """

    names: Collection[str]
    methods: Collection[str]
    walks: bool
    values: list[tuple[Slot, Any]] = field(default_factory=list)
    sizes: list[tuple[str, Any]] = field(default_factory=list)
    arrays: list[Part] = field(default_factory=list)
    copies: list[tuple[str, Any, Any]] = field(default_factory=list)
    owners: list[tuple[str, Any]] = field(default_factory=list)
    forms: list[Slot] = field(default_factory=list)
    orders: list[tuple[str, dict[Any, Any]]] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)


def frozen(
    found: Reach,
    names: Collection[str],
    moving: Collection[str],
    *,
    methods: Collection[str] = (),
    computes_names: bool = False,
    walks: bool = True,
) -> Frozen:
    """What to watch, given the names that captured code loads. ``moving`` are slots that eager regions change.

    ``methods`` are those of the names that are only called, so that what cannot be called is not found by them.
    ``computes_names``: of the user's own objects everything is watched, since no name says what is read. Not
    ``walks``: that code asks dicts for entries by key only, so that new ones do not concern it.
    """
    result = Frozen({*names, *_CALLED_BY_TORCH}, methods, walks)
    result.sizes.extend((f"the global {name}", getattr(nn.modules.module, f"_global{name}")) for name in _HOOKS)
    walked = not _WALKERS.isdisjoint(names)
    for name, module in found.modules:
        own = vars(module)
        result.sizes.extend((f"{name}.{hooks}", own[hooks]) for hooks in _HOOKS)
        if walked:
            held = [(f"{name}.{kind}", own[kind]) for kind in _TENSORS if kind in own]
            result.sizes.extend(held)
            result.orders.extend(held)
        if walked or isinstance(module, _CONTAINERS):
            result.sizes.append((name, own["_modules"]))
            result.orders.append((name, own["_modules"]))
    result.owners.extend(_owners(found))
    result.forms.extend(
        slot
        for slot, _ in found.tensors
        if slot.name not in moving and (slot.kind in ("parameter", "buffer") or slot.key in names)
    )
    called = [slot for slot in found.called if slot.key in result.names]
    result.values.extend((slot, slot.get()) for slot in (*called, *_codes(found)) if slot.name not in moving)
    result.variables.extend(_variables(names))
    if result.variables:
        result.values.append((Slot("os.environ", vars(os), "environ", "global"), os.environ))
    constants = constant_cells(found.functions())
    for part in found.parts:
        if id(part.owner) in constants or isinstance(part.owner, tuple):
            continue
        if part.kind not in ("items", "sequence", "set", "array"):
            whole = computes_names and part.kind in ("attributes", "fields") and is_of_user(type(part.owner))
            read = {*names, *map(str, part.read())} if whole else names
            slots = ((slot, value) for slot, value in _slots(found, part, read) if slot.name not in moving)
            result.values.extend((slot, value) for slot, value in slots if slot.key not in methods or callable(value))
        elif part.name not in moving and _is_named(found, part.owner, names):
            _watch_container(result, found, part, moving)
    return result


def _owners(found: Reach) -> Iterator[tuple[str, Any]]:
    """Everything that has attributes: modules and other objects, and their classes."""
    for part in found.parts:
        owner = part.owner
        known = isinstance(owner, (nn.Module, *_NAMESPACES)) or not is_from_library(type(owner))
        if part.kind in ("attributes", "fields") and known and not isinstance(owner, torch.Tensor):
            yield part.name, owner
    yield from ((kind.__name__, kind) for kind in found.classes)


def _codes(found: Reach) -> Iterator[Slot]:
    """What a tool that reloads edited files puts into functions that are there already. Libraries are not edited."""
    for function in found.functions():
        if not is_installed_file(function.__code__.co_filename):
            name = found.slots_of(function)[0].name
            yield from (Slot(f"{name}.{key}", function, key, "attribute") for key in ("__code__", *_DEFAULTS))


def _variables(names: Collection[str]) -> Iterator[str]:
    """The environment variables that loaded code may ask for, those that are not set included."""
    if "environ" in names or "getenv" in names:
        yield from (name for name in names if name.isupper() or name in os.environ)


def _watch_container(result: Frozen, found: Reach, part: Part, moving: Collection[str]) -> None:
    owner = part.owner
    if part.kind == "array":
        if len(owner) * getattr(owner, "itemsize", 1) <= _LARGEST_ARRAY >= getattr(owner, "nbytes", 0):
            result.arrays.append(part)
        else:
            result.unwatched.append(part.name)
        return
    content = part.read()
    if len(content) > _LONGEST or part.kind == "set":
        plain = all(isinstance(value, VALUE_TYPES) for value in content.values())
        if plain and len(content) <= _LONGEST_COPY:
            result.copies.append((part.name, owner, owner.copy()))
        elif len(content) > _LONGEST:
            result.unwatched.append(part.name)
        else:
            result.sizes.append((part.name, owner))
        return
    if part.kind == "sequence" or (result.walks and not _is_registry(found, owner)):
        result.sizes.append((part.name, owner))
        if isinstance(owner, dict):
            result.orders.append((part.name, owner))
    for key, value in content.items():
        slot = part.slot(key, found.label(key), ())
        if slot.name not in moving and _is_frozen(value):
            result.values.append((slot, value))


def _slots(found: Reach, part: Part, names: Collection[str]) -> Iterator[tuple[Slot, Any]]:
    content = part.read()
    if part.kind in ("modules", "cell"):
        keys = list(content)
    elif part.kind in ("parameters", "buffers"):
        keys = [key for key, value in content.items() if value is None]  # a tensor is guarded by its address
    elif part.kind == "attributes" and isinstance(part.owner, DATA_CLASSES) and not isinstance(part.owner, _NAMESPACES):
        keys = list(content) if _is_named(found, part.owner, names) else []
    elif part.kind in ("attributes", "fields", "class", "globals"):
        keys = [key for key in content if key in names and key not in _GUARDED and not str(key).startswith("__")]
    else:
        return
    for key in keys:
        if _is_frozen(content[key]):
            yield part.slot(key, found.label(key), ()), content[key]
    if part.kind == "attributes":
        yield from _inherited(part, content, names)


def _is_frozen(value: Any) -> bool:
    """Whether another object in this place could change what a call does, and nothing else watches for it.

    Tensors, and modules that hold some, are guarded by address.
    """
    if isinstance(value, nn.Module):
        return not any(True for _ in value.parameters()) and not any(True for _ in value.buffers())
    return not isinstance(value, torch.Tensor)


def _inherited(part: Part, own: Collection[str], names: Collection[str]) -> Iterator[tuple[Slot, Any]]:
    """Class attributes as seen from an instance, which an assignment to the instance would hide."""
    seen = set(own)
    for kind in type(part.owner).__mro__:
        if is_from_library(kind):
            continue
        for key, value in vars(kind).items():
            plain = not key.startswith("__") and not hasattr(type(value), "__get__")
            if plain and key in names and key not in seen and _is_frozen(value):
                slot = Slot(f"{part.name}.{key}", part.owner, key, "attribute")
                given = slot.get()  # which `__getattribute__` may give from elsewhere, or not at all
                if given is not MISSING:
                    yield slot, given
            seen.add(key)


def _is_registry(found: Reach, owner: Any) -> bool:
    """Whether a container belongs to an installed library, which registers what else the process imports or makes."""
    slots = list(upwards(found.slots_of(owner), lambda slot: not _is_top(slot)))
    return bool(slots) and all(map(_is_installed, slots))


def _is_top(slot: Slot) -> bool:
    return slot.kind == "global" or isinstance(slot.owner, type)


def _is_installed(slot: Slot) -> bool:
    """Whether a library holds this slot, or what holds its owner does."""
    if slot.kind == "global":
        return is_installed_file(slot.owner.get("__file__"))
    return not is_of_user(slot.owner) if isinstance(slot.owner, type) else bool(slot.above)


def _is_named(found: Reach, owner: Any, names: Collection[str]) -> bool:
    """Whether loaded code can get to a container: by a name that holds it, or what it is in, and so on up."""
    slots = upwards(found.slots_of(owner), lambda slot: slot.kind == "item" or isinstance(slot.owner, _HOLDERS))
    return any(_leads_to_code(slot, names) for slot in slots)


def _leads_to_code(slot: Slot, names: Collection[str]) -> bool:
    if slot.kind == "item":  # its key is no way to it: what matters is whether something leads to what holds the item
        return not slot.above
    return (
        slot.kind == "cell"
        or slot.key in names
        or (isinstance(slot.owner, types.FunctionType) and slot.key in _DEFAULTS)
    )
