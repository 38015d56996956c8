"""Structured values: taking the tensors out of what a callable returns, and putting others back in their places.

Dicts, lists, tuples, named tuples, dataclasses, transformers' ``ModelOutput`` and everything registered with
``torch.utils._pytree`` keep their types. A tensor that appears twice is one leaf and appears twice again.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from graphspec.runtime.values.paths import step_into

#: Values that are part of the structure: they are the same at every replay.
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)

Rebuild = Callable[[Sequence[Any]], Any]


class UnknownTypeError(TypeError):
    """A value that is neither a tensor nor a known structure; the message names the type and the place."""


@dataclasses.dataclass(frozen=True)
class Tree:
    """``leaves`` are the distinct tensors; ``rebuild`` puts as many others in their places."""

    leaves: tuple[torch.Tensor, ...]
    rebuild: Rebuild
    constants: tuple[Any, ...]


def flatten(value: Any, *, place: str = "the value", opaque: bool = False) -> Tree:
    """Take the tensors out of ``value``.

    Raises UnknownTypeError for an object that cannot be taken apart and put together again; with ``opaque`` such an
    object stays in its place, and so does what only pytrees know to take apart.
    """
    if type(value) is torch.Tensor:  # what most regions return
        return Tree((value,), _first, ())
    flattener = _Flattener(opaque=opaque)
    rebuild = flattener.visit(value, place)
    return Tree(tuple(flattener.leaves), rebuild, tuple(flattener.constants))


def _first(leaves: Sequence[Any]) -> Any:
    return leaves[0]


def walk(value: Any) -> Iterator[Any]:
    """What lies in nested lists, tuples and dicts, in order: everything that is none of these."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)) or isinstance(value, torch.Size):
        yield value
        return
    for item in value:
        yield from walk(item)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same lists and dicts, new ones, with ``change`` of everything in them; tuples become lists."""
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mapped(item, change) for item in value]
    return change(value)


def follow(value: Any, path: str) -> Any:
    """The part of ``value`` at a dotted path of dict keys, attributes and indices; the empty path is all of it.

    Raises KeyError with the step that leads nowhere and what is there instead.
    """
    for step in path.split(".") if path else ():
        value = _step(value, step)
    return value


def _step(value: Any, step: str) -> Any:
    try:
        if not isinstance(value, torch.Tensor):
            return step_into(value, step, "a result")
    except KeyError:
        pass
    if isinstance(value, (list, tuple)) and step.lstrip("-").isdigit():
        message = f"'{step}': the {type(value).__name__} has {len(value)} items"
        raise KeyError(message)
    if isinstance(value, Mapping):
        have = f"a {type(value).__name__} with the keys {', '.join(map(repr, value)) or 'none'}"
    else:
        have = f"a {type(value).__name__}"
    message = f"'{step}': what is there is {have}"
    raise KeyError(message)


class _Flattener:
    def __init__(self, *, opaque: bool) -> None:
        self._opaque = opaque
        self.leaves: list[torch.Tensor] = []
        self.constants: list[Any] = []
        self._index: dict[int, int] = {}

    def visit(self, value: Any, place: str) -> Rebuild:
        if isinstance(value, torch.Tensor):
            index = self._index.setdefault(id(value), len(self.leaves))
            if index == len(self.leaves):
                self.leaves.append(value)
            return lambda leaves: leaves[index]
        if isinstance(value, PLAIN):
            self.constants.append(value)
            return lambda _: value
        if isinstance(value, Mapping):
            return self._mapping(value, place)
        if isinstance(value, (list, tuple)):
            return self._sequence(value, place)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, place)
        return self._registered(value, place)

    def _mapping(self, value: Mapping[Any, Any], place: str) -> Rebuild:
        parts = {key: self.visit(item, f"{place}[{key!r}]") for key, item in value.items()}

        def rebuild(leaves: Sequence[Any]) -> Any:
            items = {key: part(leaves) for key, part in parts.items()}
            if type(value) is dict:
                return items
            kind: Any = type(value)
            if hasattr(kind, "__dataclass_fields__"):  # ModelOutput: a dict whose keys are fields
                return kind(**items)
            again: Any = copy.copy(value)
            for key, item in items.items():
                again[key] = item
            return again

        return rebuild

    def _sequence(self, value: Sequence[Any], place: str) -> Rebuild:
        parts = [self.visit(item, f"{place}[{number}]") for number, item in enumerate(value)]
        kind: Any = type(value)
        if hasattr(value, "_fields"):
            return lambda leaves: kind(*(part(leaves) for part in parts))
        return lambda leaves: kind(part(leaves) for part in parts)

    def _dataclass(self, value: Any, place: str) -> Rebuild:
        names = [entry.name for entry in dataclasses.fields(value)]
        parts = {name: self.visit(getattr(value, name), f"{place}.{name}") for name in names}

        def rebuild(leaves: Sequence[Any]) -> Any:
            again = copy.copy(value)
            for name, part in parts.items():
                object.__setattr__(again, name, part(leaves))  # also for frozen ones
            return again

        return rebuild

    def _registered(self, value: Any, place: str) -> Rebuild:
        if self._opaque:
            self.constants.append(value)
            return lambda _: value
        children, spec = _pytree.tree_flatten(value)
        if len(children) == 1 and children[0] is value:
            message = f"{place} is a {type(value).__qualname__}, which cannot be taken apart and put together again"
            raise UnknownTypeError(message)
        parts = [self.visit(child, f"{place}.{number}") for number, child in enumerate(children)]
        return lambda leaves: _pytree.tree_unflatten([part(leaves) for part in parts], spec)


def owned(results: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of results: memory they share with states or graphs changes with the next run."""
    copies: dict[str, Any] = {}
    for name, value in results.items():
        tree = flatten(value, place=f"output '{name}'")
        copies[name] = tree.rebuild([leaf.detach().clone() for leaf in tree.leaves])
    return copies
