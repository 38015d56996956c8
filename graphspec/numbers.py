"""Which values a dtype can hold and a param may have: what the rules share with the runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from graphspec.spec import Axis, Constant, DimSize, Param, Shape, Spec

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
#: Up to where a floating dtype holds every integer; above, only some of them.
WHOLE: Mapping[str, int] = {
    "float8_e4m3fn": 1 << 4, "float8_e5m2": 1 << 3, "float16": 1 << 11, "bfloat16": 1 << 8,
    "float32": 1 << 24, "complex64": 1 << 24, "float64": 1 << 53, "complex128": 1 << 53,
}  # fmt: skip
_PLAIN: Mapping[str, Any] = {"int": 0, "float": 0.0, "bool": False, "str": ""}


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


def unkept(value: Any, dtype: str) -> str | None:
    """Why a copy in ``dtype`` would be another value than this one of a param; None where it is the same.

    A fraction may be rounded, as torch rounds it; an integer may not, and a finite number may not become infinite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return misfit(value, dtype)
    problem = misfit(value, dtype)
    if problem is None and type(value) is int and dtype in FLOATS and not _is_kept(value, WHOLE[dtype]):
        return f"{dtype} holds every integer up to {WHOLE[dtype]}, and not this one"
    return problem


def _is_kept(value: int, whole: int) -> bool:
    """Whether a significand that holds ``whole`` holds this integer: its trailing zeros are the exponent's."""
    size = abs(value)
    return size <= whole or size // (size & -size) < whole


def default_of(param: Param) -> Any:
    """The one value that fills a param where none was given; None where its bounds and choices allow none.

    Its default; else its first choice within the bounds; else zero, or the number within the bounds nearest to it.
    A bound that is still the name of a dim (of a spec built by hand) is no bound here.
    """
    if param.default is not None:
        return param.default
    low, high = (None if isinstance(bound, str) else bound for bound in (param.min, param.max))
    if param.choices is not None:
        return next((choice for choice in param.choices if is_within(choice, low, high)), None)
    value = _PLAIN[param.type]
    if param.type in {"int", "float"}:
        value = low if low is not None and value < low else high if high is not None and value > high else value
    return value if is_within(value, low, high) else None


def is_within(value: Any, low: float | None, high: float | None) -> bool:
    """Whether a value is within the bounds, of which texts and booleans have none."""
    if isinstance(value, bool | str):
        return True
    return (low is None or value >= low) and (high is None or value <= high)


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
    """The shape at the largest buckets; None for an axis of any size, or whose dim is not declared."""
    return tuple(_extent(spec, axis) for axis in shape)


def _extent(spec: Spec, axis: Axis) -> int | None:
    if isinstance(axis, DimSize):
        found = size(spec, axis.dim)
        return None if found is None else axis.factor * found
    return axis if isinstance(axis, int) else None


def size(spec: Spec, dim: str, *, least: bool = False) -> int | None:
    """The size of a constant, else the largest (or least) bucket; None for a dim that does not exist."""
    found = spec.dims.get(dim)
    if found is None:
        return None
    if isinstance(found, Constant):
        return found.value
    return (min if least else max)(found.sizes, default=None)
