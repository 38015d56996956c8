"""Padded rows never reach real rows: shown by running one bucket with different contents in the rows it adds.

Three runs from the same states: two with one content (does the bucket repeat itself?), one with another. Real rows of
the results and of what runs carry over must be the same bits; where the bucket does not repeat itself, within the
tolerance. NaN is no good content for this: a mask that multiplies would spread it (0 * NaN), a comparison hide it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from graphspec.plan import concrete
from graphspec.report.run_values import Mismatch
from graphspec.runtime.holdings.random_state import Ambient
from graphspec.runtime.trial.cases import Case
from graphspec.runtime.trial.feed import cloned
from graphspec.runtime.trial.fills import fills
from graphspec.runtime.trial.subject import Subject
from graphspec.runtime.values.trees import owned
from graphspec.runtime.verify.compare import compare, described

if TYPE_CHECKING:
    from graphspec.runtime.replay.sequence import BoundSequence


@dataclass(frozen=True)
class Proof:
    """The outcome for one padded run. ``failure`` is None where the proof holds."""

    case: Case
    bitwise: bool = True
    note: str | None = None
    failure: str | None = None
    fix: str | None = None


def prove(subject: Subject, sequence: BoundSequence, case: Case) -> Proof:
    """Run ``case`` three times from the states there are now; they and the random streams are put back."""
    trial = _Trial(subject, sequence, case, subject.feed(sequence.plan, case, 0))
    one, other = trial.contents(1), trial.contents(2)
    first = trial.run(one)
    repeated = compare(first, trial.run(one), None)
    tolerance = subject.tolerance(case) if repeated.first is not None else None
    found = compare(first, trial.run(other), tolerance)
    note = None
    if repeated.first is not None:
        note = f"{case} does not repeat itself bit by bit ({repeated.first.what}): padding compared with the tolerance"
    if found.first is None:
        return Proof(case, repeated.first is None, note)
    return _leak(trial, found.first, first, one, other)


@dataclass(frozen=True)
class _Trial:
    subject: Subject
    sequence: BoundSequence
    case: Case
    values: Mapping[str, Any]

    def contents(self, seed: int) -> dict[str, torch.Tensor]:
        """What the padded rows of each padded input hold, at the shape of the bucket."""
        assert self.case.bucket is not None
        runner = self.subject.runner
        sizes = {**runner.plan.constants, **dict(self.case.bucket.sizes)}
        shapes = {name: concrete(runner.plan.buffers[name].shape or (), sizes) for name in self.sequence.plan.inputs}
        padded = {name: shape for name, shape in shapes.items() if tuple(self.values[name].shape) != shape}
        return fills({name: buffer.declared for name, buffer in runner.plan.buffers.items()}, padded, seed)

    def run(self, contents: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The real rows of one run; everything is put back."""
        carried = self.subject.carried
        before, ambient = carried.save(), Ambient.take(self.subject.generators)
        self.subject.runner.poison()
        results = owned(self.sequence.run(cloned(self.values), contents))
        found = {**results, **carried.real_rows(dict(self.case.sizes))}
        carried.restore(before)
        ambient.restore()
        return found


def _leak(
    trial: _Trial, place: Mismatch, first: Mapping[str, Any], one: Mapping[str, torch.Tensor],
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
    return Proof(trial.case, failure=message, fix=fix)
