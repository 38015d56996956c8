"""Operators that mix padded rows with real ones, found by comparing two traces of one region at two sizes of a dim.

An axis whose size follows the dim holds rows. What is computed along it is suspect, unless a mask keeps the padded
rows out: a tensor of booleans, or what is computed from one, or a number the caller gives for each row. This is a
warning; whether results depend on padded rows is proven by ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic
from graphspec.recording.calls import Call, Recording, Ref, refs_in
from graphspec.runtime.laws.mixing import mixed_axes, short_name

#: Operators whose result is a mask, or masked, where what they are given is.
_PASS_ON = frozenset(
    {"_to_copy", "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "permute", "transpose", "t",
     "slice", "select", "clone", "contiguous", "alias", "detach", "copy_", "lift_fresh", "mul", "mul_", "add", "add_",
     "sub", "rsub", "neg", "div", "div_", "clamp", "clamp_min", "cumsum", "sum", "exp", "abs", "relu", "where",
     "masked_fill", "masked_fill_", "native_dropout", "_softmax", "_safe_softmax"}
)  # fmt: skip
_APPLY = frozenset({"mul", "mul_", "where", "masked_fill", "masked_fill_", "add", "add_", "sub"})
#: Sums of products: the factor that is zero in padded rows keeps those of the other one out.
_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot"})


def padded_mixing(
    region: str, dim: str, sizes: tuple[int, int], larger: Recording, smaller: Recording
) -> Iterator[Diagnostic]:
    """Warnings for one dim, one for each operator of a line. The recordings call the same, at the two ``sizes``."""
    masks = _Masks()
    said: set[tuple[str, int, str]] = set()
    for one, other in zip(larger.calls, smaller.calls, strict=True):
        masks.follow(one)
        small = list(refs_in((*other.args, *other.kwargs.values())))
        paired = dict(zip(map(id, refs_in((*one.args, *one.kwargs.values()))), small, strict=False))
        mixed = list(mixed_axes(one))
        if short_name(one) in _PRODUCTS and any(masks.protects(ref) for ref, _ in mixed):
            continue
        for ref, axis in mixed:
            partner = paired.get(id(ref))
            if partner is None or masks.protects(ref) or not _holds_rows(ref, partner, axis, sizes):
                continue
            place = (one.site.file, one.site.line, one.name)
            if place not in said:
                said.add(place)
                yield _finding(region, dim, one, ref, axis)


def _holds_rows(one: Ref, other: Ref, axis: int, sizes: tuple[int, int]) -> bool:
    """Whether an axis is a fixed multiple of the dim at both sizes, and not the same at both."""
    if len(one.size) != len(other.size) or axis >= len(one.size):
        return False
    here, there = one.size[axis], other.size[axis]
    return here != there and here * sizes[1] == there * sizes[0]


class _Masks:
    """Which storages hold masks, and which hold values a mask has been applied to."""

    def __init__(self) -> None:
        self._masks: set[int] = set()
        self._masked: set[int] = set()

    def protects(self, ref: Ref) -> bool:
        """Whether the padded rows of a tensor were masked, or it is a mask itself."""
        return self._is_mask(ref) or ref.storage in self._masked

    def follow(self, call: Call) -> None:
        """Carry both kinds through one call."""
        name = short_name(call)
        given = list(refs_in((*call.args, *call.kwargs.values())))
        made = {ref.storage for ref in refs_in(call.outputs)}
        if name in _PASS_ON and given and all(self._is_mask(ref) for ref in given):
            self._masks.update(made)
            return
        applied = name in _APPLY and any(self._is_mask(ref) for ref in given)
        if applied or (name in _PASS_ON and any(ref.storage in self._masked for ref in given)):
            self._masked.update(made)

    def _is_mask(self, ref: Ref) -> bool:
        return not ref.dtype.is_floating_point or ref.storage in self._masks


def _finding(region: str, dim: str, call: Call, ref: Ref, axis: int) -> Diagnostic:
    return Diagnostic(
        "GS747",
        f"region '{region}': {call.name} at {call.site} works along axis {axis} of a tensor {list(ref.size)}, which "
        f"holds the rows of dim '{dim}': rows that a bucket pads would reach real ones",
        severity="warning",
        file=call.site.file or None,
        line=call.site.line or None,
        hint=f"mask the padded rows (a buffer with `from: {{size: {dim}}}` has the real size), or list the sizes as "
        f"`{dim}: {{sizes: [...], exact: true}}`; `graphspec run` proves whether results change",
    )
