"""Replay against eager: the same inputs from the same states, outputs and states compared after every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from graphspec.report.run_values import Check, Mismatch, PaddingProof
from graphspec.runtime.cases import Case
from graphspec.runtime.compare import Comparison, compare, described, owned
from graphspec.runtime.feed import cloned
from graphspec.runtime.padding_proof import Proof, prove
from graphspec.runtime.random_state import Ambient
from graphspec.runtime.rounds import ROUND, Rounds
from graphspec.runtime.subject import Progress, Subject

if TYPE_CHECKING:
    from graphspec.runtime.sequence import BoundSequence

def check(subject: Subject, steps: int, progress: Progress) -> Check:
    """Check every sequence in declared order, each from the states the first step of the one before it left.

    Stops at the first mismatch. States and random streams are afterwards as they were.
    """
    carried = subject.carried
    start, ambient = carried.save(), Ambient.take(subject.generators)
    found = []
    try:
        for sequence in subject.runner.sequences.values():
            found.append(_check_sequence(subject, sequence, steps, progress))
            if found[-1].failure is not None:
                break
    finally:
        carried.restore(start)
        ambient.restore()
    return _merged(found, subject)


def _check_sequence(subject: Subject, sequence: BoundSequence, steps: int, progress: Progress) -> Check:
    """Every case once and on in turns up to ``steps``, then the proof for the padded ones."""
    every = subject.cases(sequence)
    total = max(steps, len(every))
    rounds = Rounds(subject.carried)
    worst: float | None = 0.0
    after_first = None
    for step, case in enumerate(islice(cycle(every), total)):
        progress(f"check {sequence.name}", step, total)
        values = subject.feed(sequence.plan, case, step)
        comparison = rounds(lambda case=case, values=values: _step(subject, sequence, case, values))  # type: ignore[misc]
        worst = _larger(worst, comparison.max_abs_diff)
        if comparison.first is not None:
            return _mismatch(subject, (sequence, case, step), comparison.first, worst)
        after_first = after_first or subject.carried.save()
    rounds.restart()
    proofs = []
    padded = [case for case in every if case.padded]
    for number, case in enumerate(padded):
        progress(f"padding {sequence.name}", number, len(padded))
        proofs.append(prove(subject, sequence, case))
        rounds.restart()
        if proofs[-1].failure is not None:
            break
    subject.carried.restore(after_first or [])
    return _passed(subject, sequence, every, proofs, total, worst, rounds.limit)


def _step(subject: Subject, sequence: BoundSequence, case: Case, values: Mapping[str, Any]) -> Comparison:
    """One run of eager, and from the same states and random streams one of the graphs, on poisoned memory."""
    carried, sizes = subject.carried, dict(case.sizes)
    before, ambient = carried.save(), Ambient.take(subject.generators)
    expected = {**owned(sequence.eager(cloned(values))), **carried.contents(sizes)}
    carried.restore(before)
    ambient.restore()
    subject.runner.poison()
    came = {**owned(sequence.run(cloned(values))), **carried.contents(sizes)}
    return compare(expected, came, subject.tolerance(case))


def _passed(
    subject: Subject, sequence: BoundSequence, every: Sequence[Case], proofs: Sequence[Proof], steps: int,
    worst: float | None, limit: int,
) -> Check:  # fmt: skip
    several = len(subject.runner.sequences) > 1
    failed = next((proof for proof in proofs if proof.failure is not None), None)
    labels = tuple(f"{sequence.name}: {case}" if several else str(case) for case in every if case.sizes)
    proven = tuple(str(proof.case) for proof in proofs)
    notes = [f"the states of '{sequence.name}' hold {limit} steps, and were put back after them"] if limit < ROUND else []
    return Check(
        status="match" if failed is None else "mismatch",
        rtol=subject.runner.spec.check.rtol,
        atol=subject.runner.spec.check.atol,
        max_abs_diff=worst,
        steps=steps,
        runs=labels,
        proof=PaddingProof(proven, all(proof.bitwise for proof in proofs)) if proofs else None,
        notes=tuple(dict.fromkeys((*notes, *(proof.note for proof in proofs if proof.note)))),
        failure=None if failed is None else failed.failure,
        fix=None if failed is None else failed.fix,
    )


def _mismatch(
    subject: Subject, at: tuple[BoundSequence, Case, int], first: Mismatch, worst: float | None
) -> Check:
    sequence, case, step = at
    place = ", ".join(filter(None, (f"sequence '{sequence.name}'", f"step {step}", str(case))))
    said = described(first, ("in eager", "in replay"), subject.tolerance(case))
    if first.index is None:
        fix = "eager and replay must return the same structure, shapes and dtypes"
    elif case.padded:
        fix = (
            "padded rows reach real ones, or kernels of another size round otherwise; run a full bucket with --dim to "
            "tell. For rounding, raise check.rtol and check.atol"
        )
    else:
        fix = "if it is rounding, raise check.rtol and check.atol"
    return Check(
        status="mismatch",
        rtol=subject.runner.spec.check.rtol,
        atol=subject.runner.spec.check.atol,
        max_abs_diff=worst,
        steps=step + 1,
        failure=f"replay differs from eager: {said}; {place}",
        fix=fix,
    )


def _merged(found: Sequence[Check], subject: Subject) -> Check:
    """The checks of several sequences as one."""
    worst: float | None = 0.0
    for each in found:
        worst = _larger(worst, each.max_abs_diff)
    proofs = [each.proof for each in found if each.proof is not None]
    sizes = tuple(size for proof in proofs for size in proof.sizes)
    return Check(
        status="mismatch" if any(each.status == "mismatch" for each in found) else "match",
        rtol=subject.runner.spec.check.rtol,
        atol=subject.runner.spec.check.atol,
        max_abs_diff=worst,
        steps=sum(each.steps for each in found),
        runs=tuple(label for each in found for label in each.runs),
        proof=PaddingProof(sizes, all(proof.bitwise for proof in proofs)) if proofs else None,
        notes=tuple(dict.fromkeys(note for each in found for note in each.notes)),
        failure=next((each.failure for each in found if each.failure is not None), None),
        fix=next((each.fix for each in found if each.fix is not None), None),
    )


def _larger(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)
