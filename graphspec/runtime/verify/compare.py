"""Two results compared, element by element: within a tolerance, or bit by bit.

Differences are taken in float64 (complex128) on the CPU. NaN equals NaN, and an infinity the same infinity;
integers and bools are exact; dtype, shape and structure must be the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch.utils import _pytree

from graphspec.report.run_values import Mismatch
from graphspec.spec import CheckOptions

_COARSE = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Accepts ``|replay - eager| <= atol + rtol * |eager|``, element by element.

    ``resized``: the two were computed at different sizes, by kernels that sum in another order. Then an error is as
    large as what was summed, not as the result: rtol counts from the largest value of the tensor, and is at least that
    of the dtype's own precision (torch.testing's).
    """

    rtol: float
    atol: float
    resized: bool = False

    @classmethod
    def of(cls, options: CheckOptions, *, resized: bool) -> Tolerance:
        """What the spec allows."""
        return cls(options.rtol, options.atol, resized)

    def allowed(self, expected: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        """The largest accepted difference of each element; ``size`` is |expected| in float64."""
        rtol = max(self.rtol, _COARSE.get(expected.dtype, 0.0)) if self.resized else self.rtol
        if self.resized:
            size = torch.where(size.isfinite(), size, 0.0).max()
        return self.atol + rtol * size

    def __str__(self) -> str:
        return f"atol {self.atol:g} + rtol {self.rtol:g} * {'max ' if self.resized else ''}|expected|"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One pair of values compared. ``max_abs`` is infinite where values differ by no number (NaN, another shape).

    ``excess`` is by how much the worst element is beyond the tolerance; not above 0 where all are within.
    """

    max_abs: float
    excess: float = -math.inf
    mismatch: Mismatch | None = None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All pairs of two results. ``first`` is the worst element of them all, ``outputs`` the largest difference of each.

    ``max_abs_diff`` is None where it is not finite: a NaN or infinity that only one side has, or another shape.
    """

    status: Literal["match", "mismatch"]
    max_abs_diff: float | None
    first: Mismatch | None
    outputs: Mapping[str, float | None]


def compare(expected: Mapping[str, Any], came: Mapping[str, Any], tolerance: Tolerance | None) -> Comparison:
    """Compare named results; without a tolerance bit by bit. Values are tensors, or structures of them."""
    pairs = [pair for name in {**expected, **came} for pair in _pairs(expected, came, name)]
    found = {name: difference(name, left, right, tolerance) for name, left, right in pairs}
    bad = [each for each in found.values() if each.mismatch is not None]
    worst = max(bad, key=lambda each: each.excess, default=None)
    return Comparison(
        status="match" if worst is None else "mismatch",
        max_abs_diff=finite(max((each.max_abs for each in found.values()), default=0.0)),
        first=None if worst is None else worst.mismatch,
        outputs={name: finite(each.max_abs) for name, each in found.items()},
    )


def difference(what: str, expected: Any, came: Any, tolerance: Tolerance | None) -> Difference:
    """Compare two leaves: tensors, or host values that must be equal."""
    if not isinstance(expected, torch.Tensor) or not isinstance(came, torch.Tensor):
        same = type(expected) is type(came) and (expected == came or (expected != expected and came != came))  # noqa: PLR0124  NaN
        return Difference(0.0) if same else _other(what, _shown(expected), _shown(came), "another value")
    for aspect in ("dtype", "shape"):
        left, right = getattr(expected, aspect), getattr(came, aspect)
        if left != right:
            return _other(what, _shown(left), _shown(right), f"another {aspect}")
    expected, came = expected.detach().cpu(), came.detach().cpu()
    if _same_bits(expected, came):
        return Difference(0.0)
    return _elements(what, expected, came, tolerance)


def described(first: Mismatch, sides: tuple[str, str], tolerance: Tolerance | None) -> str:
    """``y[1, 7]: 0.5 in eager, 0.7 in replay (|difference| 0.2, allowed ...)``."""
    index = "" if first.index is None else f"[{', '.join(map(str, first.index))}]"
    allowed = f", allowed {tolerance}" if tolerance is not None and first.index is not None else ""
    left, right = sides
    return f"{first.what}{index}: {first.expected} {left}, {first.came} {right} ({first.reason}{allowed})"


def finite(number: float) -> float | None:
    """The number if JSON can hold it."""
    return number if math.isfinite(number) else None


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors and host values inside a result, each with its place: ``out['hidden'][0]``."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, Any]] = ((f"{name}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        items = ((f"{name}[{number}]", item) for number, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        items = ((f"{name}.{field.name}", getattr(value, field.name)) for field in fields)
    else:
        children = _pytree.tree_leaves(value)
        if len(children) == 1 and children[0] is value:
            yield name, value
            return
        items = ((f"{name}.{number}", item) for number, item in enumerate(children))
    for place, item in items:
        yield from leaves(item, place)


def _pairs(expected: Mapping[str, Any], came: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any, Any]]:
    """The leaves of one name on both sides; one that only one side has is paired with a word for its absence."""
    left = dict(leaves(expected[name], name)) if name in expected else {}
    right = dict(leaves(came[name], name)) if name in came else {}
    for place in {**left, **right}:
        yield place, left.get(place, _ABSENT), right.get(place, _ABSENT)


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def _other(what: str, expected: str, came: str, reason: str) -> Difference:
    return Difference(math.inf, math.inf, Mismatch(what, None, expected, came, reason))


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return str(list(value)) if isinstance(value, torch.Size) else repr(value)


def _same_bits(expected: torch.Tensor, came: torch.Tensor) -> bool:
    return torch.equal(_bits(expected), _bits(came))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as integers of the same width."""
    if tensor.dtype is torch.complex128:
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_conj().resolve_neg().contiguous().view(_WORDS[tensor.element_size()])


def _elements(what: str, expected: torch.Tensor, came: torch.Tensor, tolerance: Tolerance | None) -> Difference:
    exact = not (expected.dtype.is_floating_point or expected.dtype.is_complex)
    gap, scale = _gap(expected, came)
    if tolerance is None:
        other = _bits(expected) != _bits(came)
        other = other.any(-1) if other.shape != gap.shape else other
        excess = torch.where(other, gap.nan_to_num(nan=math.inf, posinf=math.inf), -math.inf)
    elif exact:
        excess = torch.where(expected != came, gap, -math.inf)
    else:
        allowed = tolerance.allowed(expected, scale)
        excess = torch.where(allowed.isfinite(), gap - allowed, gap)
        excess = torch.where((gap == 0) | (excess <= 0), -math.inf, excess)
    flat = int(excess.argmax())
    largest, most = float(gap.max()), float(excess.flatten()[flat])
    if most == -math.inf:
        return Difference(largest)
    index = tuple(int(place) for place in torch.unravel_index(torch.tensor(flat), gap.shape))
    left, right = expected[index].item(), came[index].item()
    reason = f"|difference| {float(gap[index]):.3g}" if math.isfinite(float(gap[index])) else "no finite difference"
    return Difference(largest, most, Mismatch(what, index, _number(left), _number(right), reason))


def _gap(expected: torch.Tensor, came: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """|came - expected| in float64, and |expected|. Equal values and NaN in the same place are 0 apart."""
    if expected.dtype.is_complex:
        left, right = expected.to(torch.complex128), came.to(torch.complex128)
    elif expected.dtype.is_floating_point or expected.dtype is torch.bool:
        left, right = expected.to(torch.float64), came.to(torch.float64)
    else:  # float64 cannot tell large integers apart: their difference can be taken first
        apart = (came.to(torch.float64) - expected.to(torch.float64)).abs()
        return torch.where(expected == came, 0.0, apart.clamp(min=1.0)), expected.to(torch.float64).abs()
    same = (left == right) | (left.isnan() & right.isnan())
    return torch.where(same, 0.0, (right - left).abs().nan_to_num(nan=math.inf, posinf=math.inf)), left.abs()


def _number(value: complex | bool) -> str:  # noqa: FBT001
    return f"{value:.9g}" if isinstance(value, float | complex) else str(value)
