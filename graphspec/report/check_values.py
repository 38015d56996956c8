"""What `graphspec check` found, as finished values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphspec.errors import Diagnostic


@dataclass(frozen=True)
class TracedValue:
    """One tensor that a region returns."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class TracedRegion:
    """A region traced at its largest bucket. ``ended``: the trace stopped before the region returned."""

    name: str
    bucket: str
    operators: int
    outputs: tuple[TracedValue, ...]
    eager: bool = False
    ended: bool = False


@dataclass(frozen=True)
class CheckReport:
    """``parameters`` and ``bytes`` are those of the model, never allocated; ``device`` is who was judged for."""

    spec: str
    device: str
    parameters: int
    bytes: int
    regions: Sequence[TracedRegion]
    findings: Sequence[Diagnostic]
