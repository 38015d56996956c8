"""The check that host values are what the graphs were captured with; what is watched, frozen.py says."""

from __future__ import annotations

import functools
import os
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from graphspec.errors import GuardError
from graphspec.runtime import hazards
from graphspec.runtime.holdings.frozen import Frozen
from graphspec.runtime.holdings.guards import is_plain
from graphspec.runtime.holdings.identities import Identities
from graphspec.runtime.holdings.objects import keys_of, same, same_keys
from graphspec.runtime.holdings.parts import is_from_library
from graphspec.runtime.holdings.slots import MISSING, Slot, attributes_of
from graphspec.runtime.holdings.untouched import Tree

_WATCH = str(Path(hazards.__file__).parent)


class FrozenGuard:
    """The check that host values are what the graphs were captured with."""

    def __init__(self, watched: Frozen) -> None:
        self._values = watched.values
        self._sizes = [(name, owner, len(owner)) for name, owner in watched.sizes]
        self._arrays = [(part, part.read()) for part in watched.arrays]
        self._copies = watched.copies
        self._names = watched.names
        self._forms = [(slot, _form(slot.get())) for slot in watched.forms]
        self._orders = [(name, owner, keys_of(owner)) for name, owner in watched.orders]
        self._owners = [(name, owner, type(owner), set(_attributes_of(owner))) for name, owner in watched.owners]
        self._keys = self._attributes()
        self._methods = watched.methods
        self._variables = {name: os.environ.get(name) for name in watched.variables}
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
        return [set(_attributes_of(owner)) for _, owner, _, _ in self._owners]

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
            added = {
                key: value for key, value in _attributes_of(owner).items() if key in self._names and key not in before
            }
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


def _attributes_of(owner: Any) -> Mapping[str, Any]:
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
    return isinstance(value, types.FunctionType) and is_from_library(value)


def _shown(value: Any, other: str = "") -> str:
    """A value in a message, or what it is; another one of the kind where ``other`` reads the same."""
    text = repr(value) if isinstance(value, (int, float, complex, bool, str, type(None), tuple)) else ""
    shown = text if text and len(text) <= 40 else f"a {type(value).__name__}"  # noqa: PLR2004
    return f"another {type(value).__name__}" if shown == other else shown
