"""GS3xx: every read of every declared sequence comes in time.

Each sequence is simulated at each of its buckets against the spans of the plan. A value that only another sequence
makes is checked as far as the file can show it; the rest is enforced at run time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphspec.compiler.simulation import Read, Simulator, made_reads
from graphspec.errors import Diagnostic
from graphspec.finding import finding
from graphspec.places import loop_places, step_places
from graphspec.plan import Bucket, Plan, Sequence, Span
from graphspec.spec import Spec

OVERWRITTEN = "GS301"
NEVER_MADE = "GS302"
CAPTURED_TOO_LATE = "GS303"
LENT_TOO_SHORT = "GS304"

#: A message lists at most this many regions between the producer and the reader.
_LISTED = 8


@dataclass(frozen=True)
class _Problem:
    code: str
    message: str
    hint: str


@dataclass(frozen=True)
class _Overwrite:
    """``by`` takes the memory of a value before its read; ``replayed`` leads from its producer to the reader.

    ``earlier_turn``: it does so in the turn of a loop before the one that reads.
    """

    bucket: Bucket
    span: Span
    by: str
    replayed: tuple[str, ...]
    earlier_turn: bool = False


def check(spec: Spec, plan: Plan) -> list[Diagnostic]:
    """Every read that cannot be served, by sequence and step."""
    reads = {name: made_reads(plan, sequence) for name, sequence in plan.sequences.items()}
    problems = _unmade(plan, reads)
    no_address = {_target(read) for read, found in problems.items() if found.code == CAPTURED_TOO_LATE}
    problems |= _overwritten(
        plan,
        {
            name: [each for each in of if each.in_pool and each not in problems and _target(each) not in no_address]
            for name, of in reads.items()
        },
    )
    late = [_finding(spec, read, problems[read]) for of in reads.values() for read in of if read in problems]
    return [*late, *_lent(spec, plan)]


def _target(read: Read) -> tuple[str, str]:
    return read.region, read.value


def _finding(spec: Spec, read: Read, problem: _Problem) -> Diagnostic:
    place = step_places(spec, read.sequence)[read.step]
    if read.loop is not None:
        place = loop_places(spec, read.sequence)[read.loop]
    return finding(spec.document, problem.code, problem.message, place, hint=problem.hint)


def _lent(spec: Spec, plan: Plan) -> Iterator[Diagnostic]:
    """Results without a copy whose memory a later step of the same run takes: nobody could ever read them."""
    lent = {name: region.name for region in plan.regions.values() for name in region.borrowed}
    simulator = Simulator(plan)
    for name, sequence in plan.sequences.items():
        watched = lent.keys() & set(sequence.results)
        taken: dict[str, int] = {}
        for bucket in sequence.buckets if watched else ():
            run = simulator.run(sequence, bucket, (), watched)
            taken |= {span.value: step for span, step in run.taken.items()}
        for value, step in taken.items():
            by = sequence.steps[step]
            message = (
                f"the result {value!r} of region {lent[value]!r} is handed out without a copy, and {by!r} reuses its"
                f" memory in pool {plan.regions[by].pool!r} before the run returns"
            )
            hint = f"remove `copy: false` of {value!r}, or take {by!r} out of the pool {plan.regions[by].pool!r}"
            yield finding(spec.document, LENT_TOO_SHORT, message, step_places(spec, name)[step], hint=hint)


def _unmade(plan: Plan, reads: Mapping[str, list[Read]]) -> dict[Read, _Problem]:
    """Reads of what was not made before: by no other sequence either, or by one that is captured later."""
    captured: dict[str, int] = {}
    sequences: dict[str, set[str]] = defaultdict(set)
    for sequence in plan.sequences.values():
        for region in sequence.steps:
            captured.setdefault(region, len(captured))
            sequences[region].add(sequence.name)
    problems: dict[Read, _Problem] = {}
    addressless: set[tuple[str, str]] = set()
    for read in (read for of in reads.values() for read in of if read.made_at is None):
        makers = sequences[read.producer]
        if not makers or makers == {read.sequence}:
            before = plan.sequences[read.sequence].steps[: read.step]
            problems[read] = _never_made(read, later=bool(makers), maybe=read.producer in before)
        elif read.loop is not None:
            continue  # the host looks where the value lies
        elif captured[read.producer] >= captured[read.region] and _target(read) not in addressless:
            addressless.add(_target(read))
            problems[read] = _captured_too_late(read)
    return problems


def _never_made(read: Read, *, later: bool, maybe: bool) -> _Problem:
    """``later``: in the sequence; ``maybe``: before the reader, in a loop that may run no turn."""
    keep = "keep a value of an earlier run in a buffer with `role: state`"
    if maybe:
        message = f"{read.who} reads {read.value!r} of region {read.producer!r}, whose loop may run no turn before"
        return _Problem(NEVER_MADE, message, f"replay {read.producer!r} once before the loop too, or {keep}")
    if read.loop is not None:
        why = "which has not run before the first turn" if later else "which no sequence replays"
        message = f"{read.who} goes by a value of region {read.producer!r}, {why}"
        return _Problem(NEVER_MADE, message, f"replay {read.producer!r} once before the loop too, or {keep}")
    if read.region == read.producer:
        message = f"region {read.region!r} reads its own output {read.value!r} before it has made it"
        return _Problem(NEVER_MADE, message, keep)
    why = "which comes later in the sequence" if later else "which no sequence replays"
    message = f"region {read.region!r} reads {read.value!r} of region {read.producer!r}, {why}"
    return _Problem(NEVER_MADE, message, f"replay {read.producer!r} before {read.region!r}, or {keep}")


def _captured_too_late(read: Read) -> _Problem:
    return _Problem(
        CAPTURED_TOO_LATE,
        f"region {read.region!r} reads {read.value!r} of region {read.producer!r}, which is captured after it:"
        " the value has no address yet",
        f"list a sequence that replays {read.producer!r} before {read.region!r} first",
    )


def _overwritten(plan: Plan, reads: Mapping[str, list[Read]]) -> dict[Read, _Problem]:
    """Reads after the replay of a graph that may use the same memory."""
    simulator = Simulator(plan)
    late: dict[Read, list[_Overwrite]] = defaultdict(list)
    intact: set[Span] = set()
    taken: dict[Span, tuple[Sequence, int]] = {}
    across = {read.value for of in reads.values() for read in of if read.made_at is None}
    for name, sequence in plan.sequences.items():
        for bucket in sequence.buckets:
            run = simulator.run(sequence, bucket, reads[name], across)
            for read, step in run.late.items():
                late[read].append(_within(sequence, read, step, simulator.span(read, bucket), bucket))
            intact.update(run.intact)
            taken |= {span: (sequence, step) for span, step in run.taken.items()}
    for name, sequence in plan.sequences.items():
        for read in (read for read in reads[name] if read.made_at is None and read not in late):
            for bucket in sequence.buckets:
                span = simulator.span(read, bucket)
                if span not in intact:
                    late[read].append(_across(read, *taken[span], span, bucket))
    return {read: _too_late(plan, simulator, read, overwrites) for read, overwrites in late.items()}


def _within(sequence: Sequence, read: Read, step: int, span: Span, bucket: Bucket) -> _Overwrite:
    """The sequence that reads also replays what takes the memory."""
    if step >= read.step:
        return _Overwrite(bucket, span, sequence.steps[step], (), earlier_turn=True)
    before = (read.producer, *sequence.steps[: read.step]) if read.made_at is None else ()
    replayed = before or sequence.steps[read.made_at : read.step]
    return _Overwrite(bucket, span, sequence.steps[step], (*replayed, read.region))


def _across(read: Read, maker: Sequence, step: int, span: Span, bucket: Bucket) -> _Overwrite:
    """Every sequence that makes the value ends with its memory taken; ``maker`` is one of them."""
    made_at = max(at for at in range(step) if maker.steps[at] == read.producer)
    return _Overwrite(bucket, span, maker.steps[step], (*maker.steps[made_at : step + 1], read.region))


def _too_late(plan: Plan, simulator: Simulator, read: Read, overwrites: list[_Overwrite]) -> _Problem:
    first = overwrites[-1]  # the largest bucket
    pool, by = first.span.pool, first.by
    everywhere = len(overwrites) == len(plan.sequences[read.sequence].buckets)
    at = "" if everywhere else f" (at {first.bucket})"
    if first.earlier_turn:
        message = (
            f"{read.who} reads {read.value!r} of region {read.producer!r} again in its next turn, after {by!r} has"
            f" reused its memory in pool {pool!r}{at}"
        )
        hint = f"take {by!r} out of the pool {pool!r}, or replay {read.producer!r} in the loop after {by!r}"
        return _Problem(OVERWRITTEN, message, hint)

    def captured(region: str) -> float:
        graph = simulator.graph(region, first.bucket)
        outside = first.span.first if first.span.last is None else first.span.last
        return graph.index if graph is not None and graph.pool == pool else outside + 0.5

    listed = [name for name in dict.fromkeys(first.replayed) if name == read.region or plan.regions[name].pool == pool]
    if len(listed) > _LISTED:
        listed = [name for name in listed if name in (read.producer, by, read.region)]
    expected = sorted(listed, key=captured)
    place = f"after {read.who}" if captured(by) > captured(read.region) else f"before {read.producer!r}"
    return _Problem(
        OVERWRITTEN,
        f"{read.who} reads {read.value!r} of region {read.producer!r} after {by!r} has reused its memory"
        f" in pool {pool!r}: expected {', '.join(expected)} (the order of capture), got {', '.join(listed)}{at}",
        f"replay {by!r} {place}, or take it out of the pool {pool!r}",
    )
