"""Dotted paths into the user's objects: a step is a key, an index or an attribute; ``*`` is any of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from graphspec.errors import ModelError
from graphspec.nearest import nearest
from graphspec.runtime.importing.user_code import read_attribute


def step_into(owner: Any, step: str, what: str) -> Any:
    """The part of ``owner`` that a step names. Raises KeyError where there is none, ModelError where reading it fails.

    Text names an integer key too: ``states.0`` is in ``{0: ...}``.
    """
    number = int(step) if step.removeprefix("-").isdecimal() else None
    if isinstance(owner, Mapping):
        for key in (step, number):
            if key is not None and key in owner:
                return owner[key]
    try:
        return read_attribute(owner, step, what)  # a ModuleList has "0" as an attribute
    except AttributeError:
        if number is None or isinstance(owner, (Mapping, torch.Tensor)):
            raise KeyError(step) from None
    try:
        return owner[number]
    except (IndexError, KeyError, TypeError):
        raise KeyError(step) from None


def parts_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """Every part of an object that a path can name, as ``*`` does."""
    if isinstance(owner, Mapping):
        yield from ((str(key), item) for key, item in owner.items())
    elif isinstance(owner, (list, tuple)):
        yield from ((str(index), item) for index, item in enumerate(owner))
    elif isinstance(owner, torch.nn.Module):
        named = {**owner._parameters, **owner._buffers, **owner._modules}
        plain = {key: item for key, item in vars(owner).items() if not key.startswith("_") and key != "training"}
        yield from ((key, item) for key, item in {**named, **plain}.items() if item is not None)
    else:
        yield from getattr(owner, "__dict__", {}).items()


def matching(model: Any, pattern: str, what: str, *, hint: str | None = None) -> dict[str, Any]:
    """What a path from ``model`` leads to, by full path. ``*`` stands for any one name or index.

    Raises ModelError, for ``what``, where a step leads nowhere; ``hint`` is for one that is like no name there.
    """
    _, *steps = pattern.split(".")
    found: dict[str, Any] = {"model": model}
    for step in steps:
        below = {f"{path}.{key}": item for path, each in found.items() for key, item in _matching(each, step, what)}
        if not below:
            path, owner = next(iter(found.items()))
            message = f"{what}: {pattern} leads nowhere: {lacks(path, owner, step)}"
            raise ModelError(message, hint=nearby(owner, step) or hint)
        found = below
    return found


def _matching(owner: Any, step: str, what: str) -> list[tuple[str, Any]]:
    if step == "*":
        return list(parts_of(owner))
    try:
        return [(step, step_into(owner, step, what))]
    except KeyError:
        return []


def lacks(path: str, owner: Any, step: str) -> str:
    """That a step leads nowhere, in words: what is at ``path``, and what it has instead."""
    if isinstance(owner, (list, tuple)):
        return f"{path} (a {type(owner).__name__} of {len(owner)}) has no '{step}'"
    keys = f" with {_some(owner)}" if isinstance(owner, Mapping) else ""
    return f"{path} (a {type(owner).__name__}{keys}) has no '{step}'"


def nearby(owner: Any, step: str) -> str | None:
    """The name that was meant, as a hint."""
    close = nearest(step, _names(owner))
    return f"did you mean '{close}'?" if close is not None else None


def _names(owner: Any) -> list[str]:
    if isinstance(owner, Mapping):
        return list(map(str, owner))
    return [name for name in dir(owner) if not name.startswith("_")]


def _some(keys: Mapping[Any, Any], most: int = 8) -> str:
    shown = ", ".join(map(repr, itertools.islice(keys, most)))
    return f"the keys {shown}{', ...' if len(keys) > most else ''}" if shown else "no keys"
