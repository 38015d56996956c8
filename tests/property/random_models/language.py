"""A random program as data: statements of Python, the spec around them, and the runs to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A dim and how often it is taken: ("b", 2) is `2*b`. Plain integers are themselves.
Axis = int | tuple[str, int]


@dataclass(frozen=True)
class Argument:
    """One parameter of a region's method: its name in Python, and the spec's value for it."""

    name: str
    value: Any


@dataclass(frozen=True)
class RegionDraw:
    """A method of the model. ``returns`` is the expression after `return`, ``outputs`` the spec's key of that name.

    ``keys`` are the other keys of the region in the spec.
    """

    name: str
    arguments: tuple[Argument, ...]
    lines: tuple[str, ...]
    returns: str
    outputs: Any
    keyword: bool = False
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def eager(self) -> bool:
        """Whether it is never captured."""
        return bool(self.keys.get("eager"))


@dataclass(frozen=True)
class RunDraw:
    """One run, and what is done before it: nothing, poison, reset, recapture, scale (weights in place), write."""

    sequence: str
    sizes: Mapping[str, int]
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    before: str = ""


@dataclass(frozen=True)
class Draw:
    """A whole random program. ``illegal`` names the feature for which it must be refused, if it has one.

    ``padded``: runs may be smaller than their bucket, and no statement mixes rows.
    """

    seed: int
    init: tuple[str, ...]
    dims: Mapping[str, Any]
    params: Mapping[str, Mapping[str, Any]]
    buffers: Mapping[str, Mapping[str, Any]]
    pools: Mapping[str, tuple[str, ...]]
    regions: tuple[RegionDraw, ...]
    sequences: Mapping[str, tuple[str, ...]]
    runs: tuple[RunDraw, ...]
    padded: bool = False
    illegal: str | None = None

    def region(self, name: str) -> RegionDraw:
        """A region by its name."""
        return next(region for region in self.regions if region.name == name)


def concrete(shape: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape as the spec writes it (4, "b", "2*b") at given sizes."""
    return tuple(_size(axis, sizes) for axis in shape)


def written(axes: tuple[Axis, ...]) -> list[Any]:
    """Axes as the spec writes them."""
    return [axis if isinstance(axis, int) else axis[0] if axis[1] == 1 else f"{axis[1]}*{axis[0]}" for axis in axes]


def _size(axis: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, int):
        return axis
    factor, star, dim = axis.partition("*")
    return int(factor) * sizes[dim] if star else sizes[axis]


def names_in(value: Any) -> list[str]:
    """The names inside an argument as the spec writes it."""
    if isinstance(value, str):
        return [value]
    inside = value.get("list") or value.get("dict") or ()
    return list(inside.values() if isinstance(inside, dict) else inside)
