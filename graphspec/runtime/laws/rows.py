"""Rows that a bucket adds: what they write and change, and operators that mix them with real ones.

Two traces of one region at two sizes of a dim show which axes hold rows: their size follows the dim. Where such an axis
is one of a tensor that the model owns, its rows beyond the real ones are written too.

What is computed along such an axis is suspect, unless a mask keeps the padded
rows out: a tensor of booleans, or what is computed from one, or a number the caller gives for each row. This is a
warning; whether results depend on padded rows is proven by ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic, Severity
from graphspec.plan import Plan
from graphspec.recording.calls import Call, Ref, refs_in, written_refs
from graphspec.runtime.laws.evidence import Facts, PaddedRun, Resized
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


def written_rows(opened: Facts, seen: Resized) -> Iterator[Diagnostic]:
    """GS752: what the model owns is written in as many rows as the dim has, and no state declares which they are."""
    said: set[int] = set()
    for one, other in zip(seen.larger.calls, seen.smaller.calls, strict=True):
        for ref, partner in zip(written_refs(one), written_refs(other), strict=False):
            if ref.storage in said or ref.storage not in seen.larger.outside:
                continue
            if not any(_holds_rows(ref, partner, axis, seen.sizes) for axis in range(len(ref.size))):
                continue
            tensor = seen.larger.outside[ref.storage].tensor
            slots = opened.reach.slots_of(tensor) or opened.reach.slots_of_storage(tensor)
            if slots and seen.dim not in opened.kept.get(tensor.untyped_storage()._cdata, ()):
                said.add(ref.storage)
                name = slots[0].name
                message = f"region '{seen.region}' writes {name} in rows that a bucket of '{seen.dim}' adds: {one.name}"
                yield Diagnostic(
                    "GS752",
                    f"{message} at {one.site} writes {list(ref.size)}",
                    file=one.site.file or None,
                    line=one.site.line or None,
                    hint=_kept(name),
                )


def padded_run(plan: Plan, run: PaddedRun) -> Iterator[Diagnostic]:
    """GS752 for what a padded run leaves to later ones, GS753 for its results; warnings where nothing wrong is seen."""
    severity: Severity = "warning" if run.meant else "error"
    path = ("regions", run.writer or _maker(plan, run))
    if run.writer is not None:
        message = f"region '{run.writer}' writes {run.what} for rows that a bucket adds: {run.said}"
        yield Diagnostic("GS752", message, path=path, hint=run.fix or _kept(run.what), severity=severity)
    else:
        message = f"rows that a bucket adds change a run: {run.said}"
        yield Diagnostic("GS753", message, path=path, hint=run.fix or _APART, severity=severity)


_APART = (
    "mask the padded rows with a buffer `from: {size: DIM}`, or declare the dim exact; what a captured region computes "
    "from a size, such as x.shape[0], is that of the bucket; if it is rounding, raise check.rtol and check.atol"
)


def _kept(name: str) -> str:
    """How rows that are not the run's are kept as they were."""
    if name.startswith("state "):
        return "mask the padded rows with a buffer `from: {size: DIM}`, or declare the dim exact"
    short = name.rpartition(".")[2]
    return (
        f"declare its shape, so that rows which are not the run's are kept: {short}: {{role: state, attr: {name}, "
        f"shape: [...]}}; or name slots that padded rows may write: `pad_rows: {{{short}: [0]}}`"
    )


def _maker(plan: Plan, run: PaddedRun) -> str:
    """The region that makes a result, or the first of the sequence."""
    steps = plan.sequences[run.sequence].steps
    named = (
        step
        for step in reversed(steps)
        for name in plan.regions[step].outputs
        if run.what == name or run.what.startswith((f"{name}[", f"{name}."))
    )
    return next(named, steps[0])


def padded_mixing(_: Facts, seen: Resized) -> Iterator[Diagnostic]:
    """GS747: warnings for one dim, one for each operator of a line."""
    region, dim, sizes, larger, smaller = seen.region, seen.dim, seen.sizes, seen.larger, seen.smaller
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
