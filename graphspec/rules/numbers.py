"""Which values a dtype can hold: what the rules about `pad`, `init` and `sample` share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from graphspec.spec import Constant, Shape, Spec

#: Least and greatest value of the integer dtypes.
INTEGERS: Mapping[str, tuple[int, int]] = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
#: Greatest finite value of the floating dtypes; complex ones are two of float32 or float64.
FLOATS: Mapping[str, float] = {
    "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float16": 65504.0, "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38, "complex64": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308, "complex128": 1.7976931348623157e308,
}  # fmt: skip
_WITHOUT_INFINITY = frozenset({"float8_e4m3fn"})


def misfit(value: Any, dtype: str) -> str | None:
    """Why ``dtype`` cannot hold this number or boolean; None where it can, rounding of fractions aside."""
    if dtype == "bool":
        return None if isinstance(value, bool) or value in (0, 1) else "a bool buffer holds true and false"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{dtype} holds numbers"
    return _not_integer(value, dtype) if dtype in INTEGERS else _not_float(value, dtype)


def _not_integer(value: float, dtype: str) -> str | None:
    low, high = INTEGERS[dtype]
    if not isinstance(value, int):
        return f"{dtype} holds integers"
    return None if low <= value <= high else f"{dtype} holds {low} to {high}"


def _not_float(value: float, dtype: str) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{dtype} has no infinity" if dtype in _WITHOUT_INFINITY and math.isinf(value) else None
    return None if abs(value) <= FLOATS[dtype] else f"{dtype} holds up to {FLOATS[dtype]:g}"


def leaves(value: Any) -> Iterator[Any]:
    """The numbers of a nested list, or the value itself."""
    if isinstance(value, list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def extents(value: Any) -> tuple[int, ...] | None:
    """The shape of a nested list; () for a scalar, None where it is ragged."""
    if not isinstance(value, list):
        return ()
    inner = {extents(each) for each in value}
    if len(inner) > 1 or None in inner:
        return None
    return (len(value), *(inner.pop() or () if inner else ()))


def largest(spec: Spec, shape: Shape) -> tuple[int | None, ...]:
    """The shape at the largest buckets; None for an axis whose dim is not declared."""
    return tuple(axis if isinstance(axis, int) else _times(axis.factor, size(spec, axis.dim)) for axis in shape)


def size(spec: Spec, dim: str, *, least: bool = False) -> int | None:
    """The size of a constant, else the largest (or least) bucket; None for a dim that does not exist."""
    found = spec.dims.get(dim)
    if found is None:
        return None
    if isinstance(found, Constant):
        return found.value
    return (min if least else max)(found.sizes, default=None)


def _times(factor: int, count: int | None) -> int | None:
    return None if count is None else factor * count
