"""Padded rows never reach real rows: shown by running one bucket with different contents in the rows it adds.

Three runs from the same states: two with one content (does the bucket repeat itself?), one with another. Results and
all that runs carry over must be the same bits; where the bucket does not repeat itself, within the tolerance. NaN is no
good content for this: a mask that multiplies would spread it (0 * NaN), a comparison hide it.

Kernels that group rows by what they hold, as mixtures of experts do, sum in another order with other contents: the
rounding of real rows changes. Such a difference is within the tolerance and does not grow with what padded rows hold;
one that reaches real rows does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graphspec.plan import Plan, concrete
from graphspec.report.run_values import Mismatch
from graphspec.runtime.padding.cases import Case
from graphspec.runtime.padding.fills import fills
from graphspec.runtime.verify.bench import Bench
from graphspec.runtime.verify.compare import Tolerance, compare, described

#: Contents so much smaller must make a leak smaller, by at least a part of that.
_SMALLER = 2.0**-10
_SHRINKS = 2.0**-5


@dataclass(frozen=True)
class Proof:
    """The outcome for one padded run. ``failure`` is None where the proof holds; else ``what`` is the value hit."""

    case: Case
    bitwise: bool = True
    note: str | None = None
    failure: str | None = None
    fix: str | None = None
    what: str | None = None


@dataclass(frozen=True)
class Trial:
    """A padded run of a sequence on ``values``, which have the real sizes.

    ``chosen``: also rows whose content the spec chose by `pad` hold something else.
    """

    plan: Plan
    bench: Bench
    case: Case
    values: Mapping[str, Any]
    tolerance: Tolerance
    chosen: bool = True

    def contents(self, seed: int) -> dict[str, torch.Tensor]:
        """What the padded rows of each padded input hold, at the shape of the bucket."""
        assert self.case.bucket is not None
        sizes = {**self.plan.constants, **dict(self.case.bucket.sizes)}
        inputs = (self.plan.buffers[name].declared for name in self.values if name in self.plan.buffers)
        buffers = {each.name: each for each in inputs if self.chosen or each.pad is None}
        shapes = {name: concrete(buffer.shape or (), sizes) for name, buffer in buffers.items()}
        padded = {name: shape for name, shape in shapes.items() if tuple(self.values[name].shape) != shape}
        return fills(buffers, padded, seed)

    def run(self, contents: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """One run with these contents; everything is put back."""
        return self.bench.filled(self.values, contents)


def prove(trial: Trial) -> Proof:
    """Run a trial three times from the states there are now; they and the random streams are put back."""
    case = trial.case
    one, other = trial.contents(1), trial.contents(2)
    if not one and not trial.chosen:
        return Proof(case)
    first = trial.run(one)
    repeated = compare(first, trial.run(one), None).first
    came = trial.run(other)
    if repeated is not None:
        found = compare(first, came, trial.tolerance).first
        note = f"{case} does not repeat itself bit by bit ({repeated.what}): padding compared with the tolerance"
        return Proof(case, bitwise=False, note=note) if found is None else _leak(trial, found, first, one, other)
    found = compare(first, came, None).first
    if found is None:
        return Proof(case)
    if compare(first, came, trial.tolerance).first is None and not _grows(trial, first, came, one, other):
        note = f"{case}: what padded rows hold changes the rounding of real ones, and nothing more ({found.what})"
        return Proof(case, bitwise=False, note=note)
    return _leak(trial, found, first, one, other)


def _grows(
    trial: Trial, first: Mapping[str, Any], came: Mapping[str, Any], one: Mapping[str, torch.Tensor],
    other: Mapping[str, torch.Tensor],
) -> bool:  # fmt: skip
    """Whether the difference of two contents is smaller where the contents are. That of whole numbers cannot be."""
    small, smaller = _scaled(one), _scaled(other)
    if not any(value.is_floating_point() or value.is_complex() for value in one.values()):
        return False
    before = compare(first, came, None).max_abs_diff
    after = compare(trial.run(small), trial.run(smaller), None).max_abs_diff
    return before is None or after is None or after < before * _SHRINKS


def _scaled(contents: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: value * _SMALLER if value.is_floating_point() or value.is_complex() else value
        for name, value in contents.items()
    }


def _leak(
    trial: Trial, place: Mismatch, first: Mapping[str, Any], one: Mapping[str, torch.Tensor],
    other: Mapping[str, torch.Tensor],
) -> Proof:  # fmt: skip
    """Name the inputs whose padded rows are to blame: those that change real rows on their own."""
    blamed = [name for name in one if compare(first, trial.run({**one, name: other[name]}), None).first is not None]
    names = " and ".join(f"'{name}'" for name in blamed or one)
    said = described(place, ("with one content", "with another"), None)
    message = f"padded rows reach real rows at {trial.case}: what {names} holds in them changes {said}"
    fix = (
        "something mixes rows (a reduction, a sort, a write to an index): mask the padded rows with a buffer "
        "`from: {size: DIM}`, or declare the dim exact. If the model knows padded rows by their `pad`, choose one that "
        "`sample` never draws"
    )
    return Proof(trial.case, failure=message, fix=fix, what=place.what)
