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
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphspec.errors import GuardError
from graphspec.runtime import hazards
from graphspec.runtime.holdings.closures import constant_cells, is_installed
from graphspec.runtime.holdings.guards import is_plain
from graphspec.runtime.holdings.identities import Identities
from graphspec.runtime.holdings.objects import keys_of, same, same_keys
from graphspec.runtime.holdings.parts import (
    DATA_CLASSES,
    VALUE_TYPES,
    is_installed_file,
    is_library,
    is_of_user,
    module_of,
)
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.holdings.slots import MISSING, Part, Slot, attributes_of
from graphspec.runtime.holdings.untouched import Tree

_CALLED_BY_TORCH = frozenset({"forward", "__call__"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_WATCH = str(Path(hazards.__file__).parent)
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
    ``walks``: dicts must not grow either. ``unwatched`` are too large for any of this.
    """

    names: Collection[str]
    methods: Collection[str]
    walks: bool
    values: list[tuple[Slot, Any]] = field(default_factory=list)
    sizes: list[tuple[str, Any]] = field(default_factory=list)
    arrays: list[Part] = field(default_factory=list)
    copies: list[tuple[str, Any, Any]] = field(default_factory=list)
    owners: list[tuple[str, Any]] = field(default_factory=list)
    forms: list[tuple[Slot, tuple[Any, ...]]] = field(default_factory=list)
    orders: list[tuple[str, dict[Any, Any]]] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)


class FrozenGuard:
    """The check that host values are what the graphs were captured with."""

    def __init__(self, watched: Frozen) -> None:
        self._values = watched.values
        self._sizes = [(name, owner, len(owner)) for name, owner in watched.sizes]
        self._arrays = [(part, part.read()) for part in watched.arrays]
        self._copies = watched.copies
        self._names = {*watched.names, *_CALLED_BY_TORCH}
        self._forms = watched.forms
        self._orders = [(name, owner, keys_of(owner)) for name, owner in watched.orders]
        self._owners = [(name, owner, type(owner), set(attributes(owner))) for name, owner in watched.owners]
        self._keys = self._attributes()
        self._methods = watched.methods
        self._variables = _variables(watched.names)
        self._identities = self._expect()

    def check(self) -> None:
        """Pass, or raise GuardError with the name of every value that changed, and what it was and is."""
        if self.holds():
            return
        findings = list(dict.fromkeys(self._examine()))
        if findings:
            message = f"the graphs were captured with other host values: {'; '.join(findings)}"
            raise GuardError(message, hint="call runner.recapture(), or put back what was there")
        self._values = [(slot, slot.get()) for slot, _ in self._values]  # equal values in other objects
        self._identities = self._expect()
        self._keys = self._attributes()

    def watch(self, tree: Tree) -> None:
        """Have a tree expect all that `check` looks at."""
        self._identities.watch(tree)
        for _, owner, length in self._sizes:
            tree.length(owner, length)
        for (_, owner, kind, _), keys in zip(self._owners, self._keys, strict=True):
            if keys or attributes_of(owner) is not None:
                tree.attributes(owner, keys)
            if not isinstance(owner, type):
                tree.kind(owner, kind)
        self._watch_order_and_forms(tree)
        if self._variables:
            tree.unwritten(os.environ._data, self._variables_hold)  # type: ignore[attr-defined]
        if self._arrays or self._copies:
            tree.otherwise(self._contents_hold)

    def _watch_order_and_forms(self, tree: Tree) -> None:
        for slot, form in self._forms:
            tensor, holder = slot.get(), slot.holder()
            if isinstance(holder, dict) and isinstance(tensor, torch.Tensor) and is_plain(tensor):
                tree.entry(holder, slot.key, tensor)
                tree.tensors([tensor])
            else:
                tree.otherwise(functools.partial(_has_form, slot, form))
        for _, owner, order in self._orders:
            if isinstance(owner, OrderedDict):  # its order is its own, not that of the dict beneath
                tree.otherwise(functools.partial(_is_in_order, owner, order))
            else:
                tree.unwritten(owner, functools.partial(_is_in_order, owner, order))

    def _expect(self) -> Identities:
        identities = Identities()
        for slot, value in self._values:
            identities.expect(slot, value)
        return identities

    def holds(self) -> bool:
        """Whether everything is as it was, by the quick comparison."""
        try:
            return (
                self._identities.hold()
                and all(len(owner) == length for _, owner, length in self._sizes)
                and all(_has_form(slot, form) for slot, form in self._forms)
                and all(_is_in_order(owner, order) for _, owner, order in self._orders)
                and all(type(owner) is kind for _, owner, kind, _ in self._owners)
                and self._attributes() == self._keys
                and self._contents_hold()
                and self._variables_hold()
            )
        except Exception:  # noqa: BLE001 # a vanished place raises what its kind raises; the examination names it
            return False

    def _attributes(self) -> list[set[str]]:
        return [set(attributes(owner)) for _, owner, _, _ in self._owners]

    def _contents_hold(self) -> bool:
        return all(part.read() == content for part, content in self._arrays) and all(
            owner == copy for _, owner, copy in self._copies
        )

    def _variables_hold(self) -> bool:
        return all(os.environ.get(name) == value for name, value in self._variables.items())

    def _examine(self) -> Iterator[str]:
        for slot, before in self._values:
            now = slot.get()
            if now is MISSING:
                yield f"{slot.name} was deleted"
            elif not same(_unwatched(before), _unwatched(now)):
                yield f"{slot.name} was {_shown(before)} and is {_shown(now, other=_shown(before))}"
        for slot, form in self._forms:
            now = slot.get()
            if _form(now) != form:
                yield f"{slot.name} was {_tensor_shown(form)} and is {_tensor_shown(_form(now))}"
        for name, owner, kind, before in self._owners:
            if type(owner) is not kind:
                yield f"{name} was a {kind.__name__} and is {_shown(owner, other=f'a {kind.__name__}')}"
            added = {key: value for key, value in attributes(owner).items() if key in self._names and key not in before}
            yield from (
                f"{name}.{key} was added, as {_shown(value)}"
                for key, value in added.items()
                if not _is_wrapper_of_torch(value)
                and not same(getattr(kind, key, MISSING), value)
                and (key not in self._methods or callable(value))
            )
        yield from self._examine_containers()
        for name, value in self._variables.items():
            if os.environ.get(name) != value:
                yield f"the environment variable {name} was {_shown(value)} and is {_shown(os.environ.get(name))}"

    def _examine_containers(self) -> Iterator[str]:
        for name, owner, length in self._sizes:
            if len(owner) != length:
                what = "hook" if "hooks" in name else "item"
                yield f"{name} had {length} {what}{'s' * (length != 1)} and has {len(owner)}"
        yield from (
            f"the order of {name} changed"
            for name, owner, order in self._orders
            if len(owner) == len(order) and not _is_in_order(owner, order)
        )
        yield from (f"the numbers in {part.name} changed" for part, old in self._arrays if part.read() != old)
        yield from (f"the items of {name} changed" for name, owner, old in self._copies if owner != old)


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
    result = Frozen(names, methods, walks)
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
        (slot, _form(tensor))
        for slot, tensor in found.tensors
        if slot.name not in moving and (slot.kind in ("parameter", "buffer") or slot.key in names)
    )
    called = [slot for slot in found.called if slot.key in names or slot.key in _CALLED_BY_TORCH]
    result.values.extend((slot, slot.get()) for slot in (*called, *_codes(found)) if slot.name not in moving)
    if _variables(names):
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
        known = isinstance(owner, (nn.Module, *_NAMESPACES)) or not is_library(module_of(type(owner)))
        if part.kind in ("attributes", "fields") and known and not isinstance(owner, torch.Tensor):
            yield part.name, owner
    yield from ((kind.__name__, kind) for kind in found.classes)


def _codes(found: Reach) -> Iterator[Slot]:
    """What a tool that reloads edited files puts into functions that are there already. Libraries are not edited."""
    for function in found.functions():
        if not is_installed(function.__code__):
            name = found.slots_of(function)[0].name
            yield from (Slot(f"{name}.{key}", function, key, "attribute") for key in ("__code__", *_DEFAULTS))


def _variables(names: Collection[str]) -> dict[str, str | None]:
    """The environment variables that loaded code may ask for, those that are not set included."""
    if "environ" not in names and "getenv" not in names:
        return {}
    return {name: os.environ.get(name) for name in names if name.isupper() or name in os.environ}


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
        if is_library(module_of(kind)):
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
    todo, seen = list(found.slots_of(owner)), set[int]()
    for slot in todo:  # grows while it is walked
        if slot.kind == "global":
            known = is_installed_file(slot.owner.get("__file__"))
        elif isinstance(slot.owner, type):
            known = not is_of_user(slot.owner)
        else:
            known = bool(slot.above)
            fresh = [above for above in slot.above if id(above) not in seen]
            seen.update(map(id, fresh))
            todo += fresh
        if not known:
            return False
    return bool(todo)


def _is_named(found: Reach, owner: Any, names: Collection[str]) -> bool:
    """Whether loaded code can get to a container: by a name that holds it, or what it is in, and so on up."""
    todo, seen = list(found.slots_of(owner)), set[int]()
    for slot in todo:  # grows while it is walked
        # The key of an item is no way to it: what matters is whether something leads to what holds the item.
        if slot.kind == "cell" or (slot.key in names if slot.kind != "item" else not slot.above):
            return True
        if isinstance(slot.owner, types.FunctionType) and slot.key in _DEFAULTS:
            return True
        if slot.kind == "item" or isinstance(slot.owner, _HOLDERS):
            fresh = [above for above in slot.above if id(above) not in seen]
            seen.update(map(id, fresh))
            todo += fresh
    return False


def attributes(owner: Any) -> Mapping[str, Any]:
    """What an object or a class has of its own; nothing where it has slots only."""
    return vars(owner) if isinstance(owner, type) else attributes_of(owner) or {}


def _form(value: Any) -> tuple[Any, ...]:
    """What code can ask of a tensor and a replay does not."""
    if not isinstance(value, torch.Tensor):
        return (type(value),)
    try:
        return type(value), value.dtype, tuple(value.shape)
    except (RuntimeError, ValueError):  # an uninitialised parameter
        return (type(value),)


def _has_form(slot: Slot, form: tuple[Any, ...]) -> bool:
    return _form(slot.get()) == form


def _tensor_shown(form: tuple[Any, ...]) -> str:
    kind, *rest = form
    return f"a {kind.__name__}" + (f" {rest[0]} {list(rest[1])}" if rest else "")


def _is_in_order(owner: dict[Any, Any], order: list[Any]) -> bool:
    return same_keys(keys_of(owner), order)


def _unwatched(value: Any) -> Any:
    """A function without the wrapper of a watch: another thread may be capturing another spec just now."""
    own = isinstance(value, types.FunctionType) and value.__code__.co_filename.startswith(_WATCH)
    return getattr(value, "__wrapped__", value) if own else value


def _is_wrapper_of_torch(value: Any) -> bool:
    """Whether torch itself put a function here: `make_graphed_callables` replaces ``forward`` by its equal."""
    return isinstance(value, types.FunctionType) and is_library(module_of(value))


def _shown(value: Any, other: str = "") -> str:
    """A value in a message, or what it is; another one of the kind where ``other`` reads the same."""
    text = repr(value) if isinstance(value, (int, float, complex, bool, str, type(None), tuple)) else ""
    shown = text if text and len(text) <= 40 else f"a {type(value).__name__}"  # noqa: PLR2004
    return f"another {type(value).__name__}" if shown == other else shown
