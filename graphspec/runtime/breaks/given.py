"""Which host values an eager part is given anew in every run: those of params, found by comparing two calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphspec.runtime.breaks.seen import PartSeen

_PLAIN = (bool, int, float, complex, str, bytes, slice, torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class GivenAnew:
    """An argument of a part that differs between two calls, by its place; ``param`` is what it follows, if it does."""

    part: int
    argument: int
    param: str | None


def given_params(
    parts: tuple[Sequence[PartSeen], Sequence[PartSeen]], params: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Iterator[GivenAnew]:
    """The host values that two calls gave their parts otherwise."""
    for number, (first, second) in enumerate(zip(*parts, strict=False)):
        for argument, value in second.host.items():
            before = first.host.get(argument)
            if not _same(before, value):
                yield GivenAnew(number, argument, _followed((before, value), params))


def _followed(values: tuple[Any, Any], params: tuple[Mapping[str, Any], Mapping[str, Any]]) -> str | None:
    """The param that has these values in the two calls."""
    for name, second in params[1].items():
        if _same(values[0], params[0].get(name)) and _same(values[1], second):
            return name
    return None


def _same(one: Any, other: Any) -> bool:
    """Whether two host values are one: the very object, or equal plain values."""
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _PLAIN) and repr(one) == repr(other)
