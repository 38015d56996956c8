"""Replay against eager: the same inputs from the same states, outputs and states compared after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING

from graphspec.report.run_values import Check, Mismatch, PaddingProof
from graphspec.runtime.holdings.random_state import Ambient
from graphspec.runtime.padding.cases import Case
from graphspec.runtime.padding.proof import Proof, Trial, prove
from graphspec.runtime.trial.rounds import ROUND, Rounds
from graphspec.runtime.trial.subject import Progress, Subject
from graphspec.runtime.verify.compare import described

if TYPE_CHECKING:
    from graphspec.runtime.replay.sequence import BoundSequence


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
    if every[0].bucket is None:
        note = f"no bucket of '{sequence.name}' holds {every[0]}: its runs fall back to eager, and nothing is replayed"
        return replace(_nothing(subject), status="skipped", max_abs_diff=None, notes=(note,))
    total = max(steps, len(every))
    rounds = Rounds(subject.carried)
    found = _nothing(subject)
    after_first = None
    for step, case in enumerate(islice(cycle(every), total)):
        progress(f"check {sequence.name}", step, total)
        values = subject.feed(sequence.plan, case, step)
        comparison = rounds(partial(subject.bench(sequence, values).compared, values, subject.tolerance(case)))
        found = replace(found, steps=step + 1, max_abs_diff=_larger(found.max_abs_diff, comparison.max_abs_diff))
        if comparison.first is not None:
            return _mismatch(found, subject, (sequence, case, step), comparison.first)
        after_first = after_first or subject.carried.save()
    if rounds.limit < ROUND:
        note = f"the states of '{sequence.name}' hold {rounds.limit} steps, and were put back after them"
        found = replace(found, notes=(note,))
    labels = tuple(str(case) for case in every if case.sizes)
    found = replace(found, runs={sequence.name: labels} if labels else {})
    rounds.restart()
    found = _with_proof(found, subject, sequence, [case for case in every if case.padded], progress)
    subject.carried.restore(after_first or [])
    return found


def _nothing(subject: Subject) -> Check:
    """A check that has compared nothing yet."""
    allowed = subject.runner.plan.check
    # A later sequence may read what an earlier one left in graph memory, so the runner spares it then.
    poisoned = "inputs and graph memory" if len(subject.runner.sequences) == 1 else "inputs"
    return Check("match", allowed.rtol, allowed.atol, max_abs_diff=0.0, poisoned=poisoned)


def _mismatch(found: Check, subject: Subject, at: tuple[BoundSequence, Case, int], first: Mismatch) -> Check:
    sequence, case, step = at
    place = ", ".join(filter(None, (f"sequence '{sequence.name}'", f"step {step}", str(case))))
    said = described(first, ("in eager", "in replay"), subject.tolerance(case))
    fix = "if it is rounding, raise check.rtol and check.atol"
    if first.index is None:
        fix = "eager and replay must return the same structure, shapes and dtypes"
    elif case.padded:
        fix = f"padded rows reach real ones, or kernels round otherwise at another size: {fix}"
    return replace(found, status="mismatch", failure=f"replay differs from eager: {said}; {place}", fix=fix)


def _with_proof(
    found: Check, subject: Subject, sequence: BoundSequence, padded: Sequence[Case], progress: Progress
) -> Check:
    """``found`` with the padding proof of every padded case, up to the first that fails."""
    proofs: list[Proof] = []
    for number, case in enumerate(padded):
        progress(f"padding {sequence.name}", number, len(padded))
        proofs.append(prove(_trial(subject, sequence, case)))
        if proofs[-1].failure is not None:
            return replace(found, status="mismatch", failure=proofs[-1].failure, fix=proofs[-1].fix)
    if not proofs:
        return found
    notes = (proof.note for proof in proofs if proof.note is not None)
    return replace(
        found,
        proof=PaddingProof(tuple(str(case) for case in padded), all(proof.bitwise for proof in proofs)),
        notes=tuple(dict.fromkeys((*found.notes, *notes))),
    )


def _trial(subject: Subject, sequence: BoundSequence, case: Case) -> Trial:
    values = subject.feed(sequence.plan, case, 0)
    return Trial(subject.runner.plan, subject.bench(sequence, values), case, values, subject.tolerance(case))


def _merged(found: Sequence[Check], subject: Subject) -> Check:
    """The checks of several sequences as one; only the last can have failed."""
    compared = [each for each in found if each.status != "skipped"]
    total = replace(_nothing(subject) if compared else found[0], notes=_notes(found))
    for each in compared:
        proofs = [proof for proof in (total.proof, each.proof) if proof is not None]
        sizes = tuple(size for proof in proofs for size in proof.sizes)
        total = replace(
            each,
            max_abs_diff=_larger(total.max_abs_diff, each.max_abs_diff),
            steps=total.steps + each.steps,
            runs={**total.runs, **each.runs},
            proof=PaddingProof(sizes, all(proof.bitwise for proof in proofs)) if proofs else None,
            notes=total.notes,
        )
    return total


def _notes(found: Sequence[Check]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for each in found for note in each.notes))


def _larger(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)
