"""The values an expression can have, as far as the ranges of its params say: what decides a comparison for all of them.

Rounding is monotone, so the ends computed in floats are the ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """Every number from ``low`` to ``high``, both included. A bool is 0 or 1."""

    low: float
    high: float


EVERYTHING = Interval(-math.inf, math.inf)


def _over(ends: list[float]) -> Interval:
    """The interval over these ends; infinity minus infinity, or times zero, says nothing."""
    return EVERYTHING if any(math.isnan(end) for end in ends) else Interval(min(ends), max(ends))


def _product(a: Interval, b: Interval) -> Interval:
    return _over([one * other for one in (a.low, a.high) for other in (b.low, b.high)])


#: How an operation maps the intervals of its operands.
INTERVALS: Mapping[str, Callable[..., Interval]] = {
    "add": lambda a, b: _over([a.low + b.low, a.high + b.high]),
    "sub": lambda a, b: _over([a.low - b.high, a.high - b.low]),
    "mul": _product,
    "neg": lambda a: Interval(-a.high, -a.low),
    "abs": lambda a: a if a.low >= 0 else Interval(0, max(-a.low, a.high)),
    "sym_float": lambda a: a,
    "sym_min": lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high)),
    "sym_max": lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high)),
}


def decided(comparison: str, a: Interval, b: Interval) -> bool | None:
    """The answer of a comparison if it is the same for every pair of values; None if not, or for no comparison."""
    if comparison in ("gt", "ge"):
        return decided({"gt": "lt", "ge": "le"}[comparison], b, a)
    same, apart = a.low == a.high == b.low == b.high, a.high < b.low or b.high < a.low
    always, never = {
        "lt": (a.high < b.low, a.low >= b.high),
        "le": (a.high <= b.low, a.low > b.high),
        "eq": (same, apart),
        "ne": (apart, same),
    }.get(comparison, (False, False))
    return True if always else False if never else None
