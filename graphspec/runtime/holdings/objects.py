"""Python state: what attributes, containers, closures and globals held, to be compared and put back.

Invariants:
- A snapshot is shallow and by identity; containers are put back in place, so whoever shares them sees it.
- What the session created stays: new keys, and lazy initialisation (see `_Comparison`). What existed is put back.
- A lazy initialisation that happens again in the next run was none: it is then reported and undone.
- Values are compared by identity, plain numbers and text by type and value; putting back runs no ``__setattr__``.
"""

from __future__ import annotations

import array
import copy
import functools
import numbers
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from operator import is_
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn

from graphspec.runtime.holdings.parts import VALUE_TYPES, is_of_user
from graphspec.runtime.holdings.places import MISSING, Part
from graphspec.runtime.holdings.reach import Reach
from graphspec.runtime.holdings.readers import Reading, reader_of
from graphspec.runtime.holdings.versions import version

ChangeKind = Literal["scalar", "tensor", "container", "replaced", "object", "memory"]

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_COPIED = (dict, OrderedDict, defaultdict, list, set, deque)
_READ_ONLY = (tuple, frozenset, MethodType, torch.Tensor)


@dataclass(frozen=True)
class Change:
    """One slot or container that a run changed. ``before`` or ``after`` is MISSING where there was nothing.

    ``kind``: ``scalar`` numbers, text, None, flags; ``tensor`` a slot rebound to or from a tensor; ``container`` a
    list, dict or set that changed its members; ``replaced`` a slot that holds another list, dict or set; ``memory`` a
    tensor whose own address, shape, strides or dtype changed; ``object`` anything else.
    """

    name: str
    kind: ChangeKind
    before: Any
    after: Any


@dataclass
class _Kept:
    """A part and what it holds by right.

    ``lazy`` maps keys initialised lazily to what they held at first; those of ``together`` were initialised under one
    flag, and are undone together. ``unsteady`` keys turned out not to be lazy, ``added`` ones were not there at first.
    ``exact``: nothing new may stay.
    """

    part: Part
    content: dict[Any, Any]
    exact: bool
    label: Callable[[Any], str]
    defaults: Mapping[str, Any]
    lazy: dict[Any, Any] = field(default_factory=dict)
    together: set[Any] = field(default_factory=set)
    unsteady: set[Any] = field(default_factory=set)
    added: set[Any] = field(default_factory=set)
    resting: tuple[dict[Any, Any], int] | None = None

    def is_resting(self, mapping: dict[Any, Any]) -> bool:
        """Whether this dict held the content when it was last looked at, and nothing was written to it since."""
        resting = self.resting
        return resting is not None and resting[0] is mapping and version(mapping) == resting[1]

    def rest(self, mapping: dict[Any, Any]) -> None:
        """This dict holds the content. The order of an ordered one is its own, and has no version."""
        now = (
            version(mapping) if type(mapping) is dict or (type(mapping) is OrderedDict and len(mapping) <= 1) else None
        )
        self.resting = None if now is None else (mapping, now)


@dataclass(frozen=True)
class _Comparison:
    """A part now against what was kept. ``target`` is what it should hold, ``created`` the names that stay.

    Lazy initialisation is: None that became something; and where in one object something was created and a flag went
    from False to True, everything that this object rebound in that run.
    """

    target: dict[Any, Any]
    now: dict[Any, Any]
    changes: tuple[Change, ...] = ()
    created: tuple[str, ...] = ()
    lazy: tuple[Any, ...] = ()
    together: bool = False
    again: frozenset[Any] = frozenset()


class PythonState:
    """The kept content of every mutable part of a `Reach`."""

    def __init__(self, found: Reach) -> None:
        self._kept: dict[tuple[Any, ...], _Kept] = {}
        self._exchanged: list[tuple[_Kept, list[Any]]] = []
        self.extend(found)

    def extend(self, found: Reach) -> None:
        """Keep the parts that are not known yet, as they are now."""
        hooks = {id(value) for _, module in found.modules for key, value in vars(module).items() if "hooks" in key}
        for part in found.parts:
            if part.identity not in self._kept and not isinstance(part.owner, _READ_ONLY):
                exact = id(part.owner) in hooks
                self._kept[part.identity] = _Kept(part, part.read(), exact, found.label, _class_values(part))

    def changes(self) -> tuple[tuple[Change, ...], tuple[str, ...]]:
        """What differs now, and the names that were created. Changes nothing."""
        return _report(_compare(kept) for kept in self._kept.values())

    def restore(self) -> tuple[tuple[Change, ...], tuple[str, ...]]:
        """Put back what existed, and take what was created as existing from now on."""
        self._put_back_exchanged()
        outcomes = []
        compared = [(kept, _compare(kept)) for kept in self._kept.values()]
        left = {id(each.before) for _, outcome in compared for each in outcome.changes if each.kind == "replaced"}
        for kept, seen in compared:
            if seen.now is kept.content:
                continue
            outcome = seen
            if id(kept.part.owner) in left:  # the run put another one in its place: what it had in this one goes
                outcome = replace(seen, target=kept.content, created=(), lazy=())
            outcomes.append(outcome)
            _take_lazy(kept, outcome)
            kept.added.update(key for key in outcome.target if key not in kept.content)
            if not _identical(outcome.now, outcome.target):
                _write(kept.part, outcome.now, outcome.target)
            kept.content, kept.resting = outcome.target, None
        return _report(outcomes)

    def settle(self, owner: object, key: Any, value: Any) -> None:
        """An attribute of an object holds this value, and is put back to it from now on."""
        for kept in self._kept.values():
            if kept.part.owner is owner and kept.part.kind == "attributes" and key in kept.content:
                kept.content, kept.resting = {**kept.content, key: value}, None
                _write(kept.part, kept.part.read(), {**kept.part.read(), key: value})

    def held(self, keys: Collection[str]) -> dict[str, Any]:
        """What slots of the user's objects and globals hold now under these keys, by name.

        With the key ``set``, that of a method, what variables of contexts hold too.
        """
        found: dict[str, Any] = {}
        for kept in self._kept.values():
            if _is_of_context(kept.part):
                content, every = kept.part.read(), kept.part.kind == "content" and "set" in keys
                found.update((_slot_name(kept, key), content[key]) for key in content if every or key in keys)
        return found

    def exchange(self, names: Collection[str], value: object) -> frozenset[str]:
        """Put ``value`` in the slots of these names, until the next `restore`; gives the names of those that exist."""
        done: set[str] = set()
        for kept in self._kept.values():
            if not _is_exchangeable(kept.part):
                continue
            now = kept.part.read()
            keys = [key for key in now if _slot_name(kept, key) in names]
            if keys:
                self._exchanged.append((kept, keys))
                _write(kept.part, now, {**now, **dict.fromkeys(keys, value)})
                done.update(_slot_name(kept, key) for key in keys)
        return frozenset(done)

    def _put_back_exchanged(self) -> None:
        """What was exchanged was changed by nobody: a slot that was filled lazily is no less steady for it."""
        for kept, keys in self._exchanged:
            now = kept.part.read()
            _write(kept.part, now, {**now, **{key: kept.content[key] for key in keys if key in kept.content}})
        self._exchanged.clear()

    def forget(self, names: Collection[str]) -> None:
        """Take back what was created under these names: new keys go, lazy ones hold again what they held at first."""
        for kept in self._kept.values():
            now = kept.part.read()
            gone = [key for key in now if key in kept.content and _slot_name(kept, key) in names]
            if not gone:
                continue
            leave = {id(key) for key in gone if key in kept.added}  # by identity: tensors may be keys
            target = {key: value for key, value in now.items() if id(key) not in leave}
            target.update((key, kept.lazy[key]) for key in gone if id(key) not in leave and key in kept.lazy)
            _write(kept.part, now, target)
            kept.content, kept.resting = target, None


def _is_exchangeable(part: Part) -> bool:
    """Whether its slots can hold anything: attributes, globals, entries by key, variables of contexts."""
    named = part.kind in ("attributes", "fields", "globals", "class", "items", "cell")
    return named or isinstance(part.owner, ContextVar)


def _is_of_context(part: Part) -> bool:
    """Whether its slots are such as contexts are kept in."""
    if part.kind in ("attributes", "fields", "class"):
        return is_of_user(part.owner if isinstance(part.owner, type) else type(part.owner))
    of_thread = part.kind == "items" and part.name.endswith(".__dict__")  # of a threading.local
    return part.kind == "globals" or of_thread or isinstance(part.owner, ContextVar)


def _report(outcomes: Iterable[_Comparison]) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    changes: list[Change] = []
    created: list[str] = []
    for outcome in outcomes:
        changes.extend(outcome.changes)
        created.extend(outcome.created)
    return tuple(changes), tuple(created)


def _untouched(kept: _Kept) -> bool:
    """Whether a dict or sequence holds the very objects it held, told without a copy: nearly every part does."""
    part, content = kept.part, kept.content
    mapping = part.mapping() if part.kind != "globals" else None
    if mapping is not None:
        if kept.is_resting(mapping):
            return True
        same_keys = len(mapping) == len(content) and all(map(is_, mapping, content))
        same_values = same_keys and all(map(is_, mapping.values(), content.values()))
        if same_values:
            kept.rest(mapping)
        return same_values
    return part.kind == "sequence" and len(part.owner) == len(content) and all(map(is_, part.owner, content.values()))


def _compare(kept: _Kept) -> _Comparison:
    if _untouched(kept):
        return _Comparison(kept.content, kept.content)
    now = kept.part.read()
    if _identical(now, kept.content):
        return _Comparison(kept.content, now)
    if kept.part.kind in ("sequence", "set") and (
        now.keys() != kept.content.keys() or isinstance(kept.part.owner, deque)
    ):
        change = Change(kept.part.name, "container", tuple(kept.content.values()), tuple(now.values()))
        return _Comparison(kept.content, now, (change,))
    return _compare_keys(kept, now)


def _compare_keys(kept: _Kept, now: dict[Any, Any]) -> _Comparison:
    before = kept.content
    changed = [key for key in before if not same(before[key], now.get(key, MISSING))]
    moved = [key for key in changed if key not in now and before[key] is None and _is_registered(kept.part, key)]
    before = {key: value for key, value in before.items() if key not in moved}
    changed = [key for key in changed if key in before]
    new = [key for key in now if key not in before]
    shadows = [key for key in new if kept.exact or (key in kept.defaults and not same(kept.defaults[key], now[key]))]
    stays = [key for key in new if key not in shadows]
    lazy, together = _lazy_keys(kept, now, changed, created=bool(stays))
    again = frozenset(key for key in changed if key in kept.lazy)
    if again & kept.together:
        again |= kept.together
    target = {key: now[key] if key in lazy else kept.lazy.get(key, before[key]) if key in again else before[key]
              for key in before}  # fmt: skip
    target.update((key, now[key]) for key in stays)
    changes = [_change(kept, key, before[key], now.get(key, MISSING)) for key in changed if key not in lazy]
    changes += [_change(kept, key, kept.defaults.get(key, MISSING), now[key]) for key in shadows]
    created = tuple(_slot_name(kept, key) for key in (*stays, *lazy))
    return _Comparison(target, now, tuple(changes), created, lazy, together, again)


def _take_lazy(kept: _Kept, outcome: _Comparison) -> None:
    for key in outcome.again:
        del kept.lazy[key]
    kept.together -= outcome.again
    kept.unsteady |= outcome.again
    kept.lazy.update((key, kept.content[key]) for key in outcome.lazy)
    if outcome.together:
        kept.together.update(outcome.lazy)


def _lazy_keys(kept: _Kept, now: dict[Any, Any], changed: list[Any], *, created: bool) -> tuple[tuple[Any, ...], bool]:
    """The changed keys that look like lazy initialisation, and whether one flag covers them all."""
    if kept.exact or kept.part.kind in ("sequence", "set", "array", "content"):
        return (), False
    candidates = [key for key in changed if key not in kept.unsteady and key not in kept.lazy and key in now]
    opened = [key for key in candidates if kept.content[key] is None]
    flipped = any(kept.content[key] is False and now[key] is True for key in candidates if key != "training")
    initialised = kept.part.kind in ("attributes", "fields") and flipped and (created or opened)
    return (tuple(key for key in candidates if key != "training"), True) if initialised else (tuple(opened), False)


def _is_registered(part: Part, key: Any) -> bool:
    """Whether a module holds this attribute as a submodule, parameter or buffer now: ``self.act = nn.ReLU()``."""
    if part.kind != "attributes" or not isinstance(part.owner, nn.Module):
        return False
    return any(key in vars(part.owner)[name] for name in ("_modules", "_parameters", "_buffers"))


def _class_values(part: Part) -> Mapping[str, Any]:
    """The class attributes that an instance attribute would shadow: ``count = 0`` in the class, ``self.count += 1``."""
    if part.kind != "attributes" or isinstance(part.owner, type):
        return {}
    classes = [kind for kind in reversed(type(part.owner).__mro__) if kind not in (object, nn.Module)]
    values = {key: value for kind in classes for key, value in vars(kind).items() if not key.startswith("__")}
    # What a cached property computes takes its place in the instance: it hides nothing.
    return {key: value for key, value in values.items() if not isinstance(value, functools.cached_property)}


def _change(kept: _Kept, key: Any, before: Any, after: Any) -> Change:
    if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):
        kind: ChangeKind = "tensor"
    elif kept.part.kind != "array" and isinstance(before, _CONTAINERS) and isinstance(after, _CONTAINERS):
        kind = "replaced"
        if type(after) in _COPIED:  # as it is now: the next run may put something into it, and leave another one
            after = copy.copy(after)
    elif kept.part.kind == "array" or isinstance(before, _CONTAINERS) or isinstance(after, _CONTAINERS):
        kind = "container"
    else:
        plain = all(value is MISSING or _is_plain(value) for value in (before, after))
        kind = "scalar" if plain else "object"
    return Change(_slot_name(kept, key), kind, before, after)


def _slot_name(kept: _Kept, key: Any) -> str:
    return kept.part.name if kept.part.kind == "array" else kept.part.place(key, kept.label(key), ()).name


def _is_plain(value: Any) -> bool:
    return isinstance(value, (*VALUE_TYPES, numbers.Number, Reading))


def same(before: Any, after: Any) -> bool:
    """Whether a slot still holds the same thing: the same object, or an equal plain value of the same type."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if type(before) is tuple:
        return len(before) == len(after) and all(same(a, b) for a, b in zip(before, after, strict=True))
    if not _is_plain(before):
        return False
    if isinstance(before, (float, complex)):
        return repr(before) == repr(after)  # nan is nan, and 0.0 is not -0.0
    return bool(before == after)


def _identical(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """The same objects (bytes: equal ones) under the same keys in the same order."""
    return same_keys(one, other) and all(
        mine is theirs or (type(mine) is bytes and mine == theirs)
        for mine, theirs in zip(one.values(), other.values(), strict=True)
    )


def keys_of(mapping: dict[Any, Any]) -> list[Any]:
    """The keys of a dict in order, read without code of its class; an OrderedDict has an order of its own."""
    return list(OrderedDict.keys(mapping) if isinstance(mapping, OrderedDict) else dict.keys(mapping))


def same_keys(one: Collection[Any], other: Collection[Any]) -> bool:
    """The same keys in the same order. Tensors may be keys, so ``==`` is left to plain values."""
    return len(one) == len(other) and all(
        mine is theirs or (not isinstance(mine, torch.Tensor) and mine == theirs)
        for mine, theirs in zip(one, other, strict=True)
    )


def _write(part: Part, now: dict[Any, Any], target: dict[Any, Any]) -> None:
    mapping = part.mapping()
    if mapping is not None:
        _write_mapping(mapping, now, target, whole=part.kind != "globals")
    elif part.kind == "sequence":
        _write_sequence(part.owner, target.values())
    elif part.kind == "set":
        set.clear(part.owner)
        set.update(part.owner, target)
    elif part.kind == "array":
        _write_array(part.owner, target["bytes"])
    elif part.kind == "content":
        _write_content(part, target)
    else:
        _write_fields(part, now, target)


def _write_mapping(mapping: dict[Any, Any], now: dict[Any, Any], target: dict[Any, Any], *, whole: bool) -> None:
    """Key by key where that keeps the order, else anew; never through overridden methods."""
    base: Any = OrderedDict if isinstance(mapping, OrderedDict) else dict
    if whole and not same_keys(now, target):
        base.clear(mapping)
        now = {}
    for key, value in target.items():
        if key not in now or now[key] is not value:
            base.__setitem__(mapping, key, value)


def _write_array(owner: Any, content: bytes) -> None:
    if isinstance(owner, bytearray):
        owner[:] = content
    elif isinstance(owner, array.array):
        owner[:] = array.array(owner.typecode, content)
    else:
        owner[...] = sys.modules["numpy"].frombuffer(content, owner.dtype).reshape(owner.shape)


def _write_content(part: Part, target: dict[Any, Any]) -> None:
    """Some cannot be put back, as where a generator stands; that it moved is then all that can be said."""
    reader = reader_of(part.owner)
    if reader is not None and reader.write is not None and target:
        reader.write(part.owner, target[reader.suffix])


def _write_sequence(owner: Any, values: Iterable[Any]) -> None:
    if isinstance(owner, list):
        list.__setitem__(owner, slice(None), list(values))
    else:
        deque.clear(owner)
        deque.extend(owner, values)


def _write_fields(part: Part, now: dict[Any, Any], target: dict[Any, Any]) -> None:
    """Slots, cells, defaults and class attributes, through the base setter."""
    setter: Any = type.__setattr__ if part.kind == "class" else object.__setattr__
    for key, value in _differing(now, target):
        if value is MISSING:
            delattr(part.owner, key)
        else:
            setter(part.owner, key, value)


def _differing(now: dict[Any, Any], target: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    for key in {**now, **target}:
        value = target.get(key, MISSING)
        if now.get(key, MISSING) is not value:
            yield key, value
