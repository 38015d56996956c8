"""Host values that a graph froze: what the captured code could read besides tensors, and must still find.

Which attributes a call reads cannot be seen from outside, but which names its code loads can. So everything of the
model that is reachable under a loaded name of code that ran is watched: numbers and text by value, other objects by
identity, containers by their length too, submodules, hooks and methods put on a module always. That may refuse a change
of another object's attribute of the same name. What is too large to be compared on every run is warned of.

What an eager region of the same spec changes on its runs is left out: it is told from a frozen value by the two
dry runs (proof.py).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from graphspec.errors import GuardError
from graphspec.runtime.holdings.closures import constant_cells
from graphspec.runtime.holdings.identities import Identities
from graphspec.runtime.holdings.objects import same
from graphspec.runtime.holdings.parts import VALUE_TYPES, is_library
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.holdings.slots import MISSING, Part, Slot
from graphspec.runtime.holdings.untouched import Tree

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GUARDED = frozenset({"training", "_modules", "_parameters", "_buffers"})
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
_PYTHON = (list, dict, set, tuple, frozenset, types.SimpleNamespace)
_WATCHED = (*VALUE_TYPES, *_PYTHON, np.generic, np.ndarray, torch.Generator)
_LARGEST_ARRAY = 1 << 16  # bytes that are compared on every run
_LONGEST = 1024  # items of one container that are watched one by one
_LONGEST_COPY = 1 << 16  # items of one container that are compared at all
_HOLDERS = (functools.partial, types.MethodType, types.SimpleNamespace)


@dataclass(frozen=True)
class Frozen:
    """``values`` must still be found in their slots, ``sizes`` must keep their length, ``arrays`` their bytes.

    ``copies`` are long containers, compared as wholes. ``modules`` must get no attribute that is among ``names``.
    ``walks``: dicts must not grow either. ``unwatched`` are too large for any of this.
    """

    names: Collection[str]
    walks: bool
    values: list[tuple[Slot, Any]] = field(default_factory=list)
    sizes: list[tuple[str, Any]] = field(default_factory=list)
    arrays: list[tuple[str, Any]] = field(default_factory=list)
    copies: list[tuple[str, Any, Any]] = field(default_factory=list)
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)


class FrozenGuard:
    """The check that host values are what the graphs were captured with. Cheap while they are the same objects."""

    def __init__(self, watched: Frozen) -> None:
        self._values = watched.values
        self._sizes = [(name, owner, len(owner)) for name, owner in watched.sizes]
        self._empty = [owner for _, owner, length in self._sizes if not length]
        self._filled = [owner for _, owner, length in self._sizes if length]
        self._lengths = [len(owner) for owner in self._filled]
        self._arrays = [(name, array, array.tobytes()) for name, array in watched.arrays]
        self._copies = watched.copies
        self._names = {*watched.names, "forward"}
        self._modules = [(name, vars(module), set(vars(module))) for name, module in watched.modules]
        self._owners = [module for _, module in watched.modules]
        self._attributes = [own for _, own, _ in self._modules]
        self._counts = [len(own) for own in self._attributes]
        self._identities = self._expect()

    def check(self) -> None:
        """Pass, or raise GuardError with the name of every value that changed, and what it was and is."""
        if self._holds():
            return
        findings = list(dict.fromkeys(self._examine()))
        if findings:
            message = f"the graphs were captured with other host values: {'; '.join(findings)}"
            raise GuardError(message, hint="call runner.recapture(), or put back what was there")
        self._values = [(slot, slot.get()) for slot, _ in self._values]  # equal values in other objects
        self._identities = self._expect()
        self._counts = [len(own) for own in self._attributes]

    def watch(self, tree: Tree) -> None:
        """Have a tree expect all that `check` looks at."""
        self._identities.watch(tree)
        for _, owner, length in self._sizes:
            tree.length(owner, length)
        for module, count in zip(self._owners, self._counts, strict=True):
            tree.attributes(module, count)
        if self._arrays or self._copies:
            tree.otherwise(self._contents_hold)

    def _expect(self) -> Identities:
        identities = Identities()
        for slot, value in self._values:
            identities.expect(slot, value)
        return identities

    def _holds(self) -> bool:
        try:
            return (
                self._identities.hold()
                and not any(self._empty)
                and list(map(len, self._filled)) == self._lengths
                and list(map(len, self._attributes)) == self._counts
                and self._contents_hold()
            )
        except Exception:  # noqa: BLE001 # a vanished place raises what its kind raises; the examination names it
            return False

    def _contents_hold(self) -> bool:
        return all(array.tobytes() == content for _, array, content in self._arrays) and all(
            owner == copy for _, owner, copy in self._copies
        )

    def _examine(self) -> Iterator[str]:
        for slot, before in self._values:
            now = slot.get()
            if now is MISSING:
                yield f"{slot.name} was deleted"
            elif not same(before, now):
                yield f"{slot.name} was {_shown(before)} and is {_shown(now)}"
        for name, own, before in self._modules:
            yield from (
                f"{name}.{key} was added, as {_shown(own[key])}"
                for key in own
                if key in self._names and key not in before and not _is_wrapper_of_torch(own[key])
            )
        yield from self._examine_containers()

    def _examine_containers(self) -> Iterator[str]:
        for name, owner, length in self._sizes:
            if len(owner) != length:
                what = "hook" if "hooks" in name else "item"
                yield f"{name} had {length} {what}{'s' * (length != 1)} and has {len(owner)}"
        yield from (f"the numbers in {name} changed" for name, array, old in self._arrays if array.tobytes() != old)
        yield from (f"the items of {name} changed" for name, owner, old in self._copies if owner != old)


def frozen(found: Reach, names: Collection[str], moving: Collection[str], *, walks: bool = True) -> Frozen:
    """What to watch, given the names that captured code loads. ``moving`` are slots that eager regions change.

    Not ``walks``: that code asks dicts for entries by key only, so that new ones do not concern it.
    """
    result = Frozen(names, walks)
    result.sizes.extend((f"the global {name}", getattr(nn.modules.module, f"_global{name}")) for name in _HOOKS)
    for name, module in found.modules:
        own = vars(module)
        result.sizes.extend((f"{name}.{hooks}", own[hooks]) for hooks in _HOOKS)
        result.modules.append((name, module))
        if isinstance(module, _CONTAINERS):
            result.sizes.append((name, own["_modules"]))
    constants = constant_cells(found.functions())
    for part in found.parts:
        if id(part.owner) in constants or isinstance(part.owner, tuple):
            continue
        if part.kind not in ("items", "sequence", "set", "array"):
            result.values.extend((slot, value) for slot, value in _slots(found, part, names) if slot.name not in moving)
        elif part.name not in moving and _is_named(found, part.owner, names):
            _watch_container(result, found, part, moving)
    return result


def _watch_container(result: Frozen, found: Reach, part: Part, moving: Collection[str]) -> None:
    owner = part.owner
    if part.kind == "array":
        if owner.nbytes <= _LARGEST_ARRAY:
            result.arrays.append((part.name, owner))
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
    if part.kind == "sequence" or result.walks:
        result.sizes.append((part.name, owner))
    for key, value in content.items():
        slot = part.slot(key, found.label(key), ())
        if slot.name not in moving and _is_frozen(value, function=True):
            result.values.append((slot, value))


def _slots(found: Reach, part: Part, names: Collection[str]) -> Iterator[tuple[Slot, Any]]:
    content = part.read()
    if part.kind in ("modules", "cell"):
        keys = list(content)
    elif part.kind in ("attributes", "fields", "class", "globals"):
        keys = [key for key in content if key in names and key not in _GUARDED and not str(key).startswith("__")]
    else:
        return
    for key in keys:
        if _is_frozen(content[key], function=part.kind == "attributes"):
            yield part.slot(key, found.label(key), ()), content[key]
    if part.kind == "attributes":
        yield from _inherited(part, content, names)


def _is_frozen(value: Any, *, function: bool) -> bool:
    """Whether another object in this place could change what a call does, and nothing else watches for it.

    Tensors, and modules that hold some, are guarded by address; functions count where an instance holds them.
    """
    if isinstance(value, torch.Tensor):
        return False
    if isinstance(value, nn.Module):
        return not any(True for _ in value.parameters()) and not any(True for _ in value.buffers())
    if isinstance(value, _CODE):
        return function
    return isinstance(value, _WATCHED) or not is_library(type(value).__module__)


def _inherited(part: Part, own: Collection[str], names: Collection[str]) -> Iterator[tuple[Slot, Any]]:
    """Class attributes as seen from an instance, which an assignment to the instance would hide."""
    seen = set(own)
    for kind in type(part.owner).__mro__:
        if is_library(kind.__module__):
            continue
        for key, value in vars(kind).items():
            plain = not key.startswith("__") and not hasattr(type(value), "__get__")
            if plain and key in names and key not in seen and _is_frozen(value, function=False):
                slot = Slot(f"{part.name}.{key}", part.owner, key, "attribute")
                yield slot, slot.get()  # which `__getattribute__` may give from elsewhere
            seen.add(key)


def _is_named(found: Reach, owner: Any, names: Collection[str]) -> bool:
    """Whether loaded code can get to a container: by a name that holds it, or what it is in, and so on up."""
    todo, seen = list(found.slots_of(owner)), set[int]()
    for slot in todo:  # grows while it is walked
        # The key of an item is no way to it: what matters is whether something leads to what holds the item.
        if slot.kind == "cell" or (slot.key in names if slot.kind != "item" else not slot.above):
            return True
        if slot.kind == "item" or isinstance(slot.owner, _HOLDERS):
            fresh = [above for above in slot.above if id(above) not in seen]
            seen.update(map(id, fresh))
            todo += fresh
    return False


def _is_wrapper_of_torch(value: Any) -> bool:
    """Whether torch itself put a function here: `make_graphed_callables` replaces ``forward`` by its equal."""
    return isinstance(value, types.FunctionType) and is_library(value.__module__)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (int, float, complex, bool, str, type(None), tuple)) else ""
    return text if text and len(text) <= 40 else f"a {type(value).__name__}"  # noqa: PLR2004
