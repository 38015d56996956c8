"""A run of a sequence, simulated: which values are intact, and which reads come after their memory was reused."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from graphspec.plan import Bucket, Graph, Plan, Sequence, Span
from graphspec.spec import Loop
from graphspec.turns import Block, Turns


class PoolMemory:
    """One pool during a run.

    A value with the span [p, e] is intact after the replay of p until a capture outside (p, e] is replayed: p and
    what was captured before it may use the same memory, and so may what was captured after its release.
    A replay costs O(log n) amortized: each value is pushed once when it is made and popped once when it is lost.
    """

    def __init__(self) -> None:
        self._by_last: list[tuple[float, int, Span]] = []
        self._by_first: list[tuple[int, int, Span]] = []
        self._lost: dict[Span, int] = {}
        self._made = 0

    def add(self, span: Span) -> None:
        """The value was just made."""
        self._lost.pop(span, None)
        self._made += 1  # breaks ties, so that spans are never compared
        heapq.heappush(self._by_last, (math.inf if span.last is None else span.last, self._made, span))
        heapq.heappush(self._by_first, (-span.first, self._made, span))

    def replay(self, index: int, makes: Iterable[Span], step: int) -> None:
        """The graph with this capture index is replayed as step ``step`` and makes the values ``makes``."""
        # An entry left from an earlier making of a value has the same span: what it says holds for the latest one.
        while self._by_last and self._by_last[0][0] < index:
            self._lost.setdefault(heapq.heappop(self._by_last)[-1], step)
        while self._by_first and -self._by_first[0][0] >= index:
            self._lost.setdefault(heapq.heappop(self._by_first)[-1], step)
        for span in makes:
            self.add(span)

    def lost_at(self, span: Span) -> int | None:
        """The step that may have overwritten the value, None while it is intact."""
        return self._lost.get(span)

    def copy(self) -> PoolMemory:
        """The same memory, for another way on from here."""
        other = PoolMemory()
        other._by_last, other._by_first = list(self._by_last), list(self._by_first)
        other._lost, other._made = dict(self._lost), self._made
        return other

    def join(self, before: PoolMemory) -> None:
        """After a turn of a loop that began with ``before``: what is intact either way, with the turn or without."""
        for span, step in before._lost.items():
            self._lost.setdefault(span, step)


@dataclass(frozen=True)
class Read:
    """A step of a sequence reads what a region makes; ``made_at`` is the latest step before it that certainly made it.

    ``loop``: it is no region that reads, but a loop, before each of its turns; ``step`` is the first of those.
    """

    sequence: str
    step: int
    region: str
    value: str
    producer: str
    in_pool: bool
    made_at: int | None
    loop: Loop | None = None

    @property
    def who(self) -> str:
        """The reader, as messages call it."""
        return f"region {self.region!r}" if self.loop is None else f"the loop `while: {self.value}`"


def made_reads(plan: Plan, sequence: Sequence) -> list[Read]:
    """Every read of a value that some region makes, by step."""
    found = []
    for at, ran in sequence.certain():
        loop = at if isinstance(at, Loop) else None
        step = at.first if isinstance(at, Loop) else at
        region = "" if loop is not None else sequence.steps[step]
        for wire in (plan.condition(loop.condition),) if loop is not None else plan.regions[region].reads:
            if wire.producer is not None:
                made_at, in_pool = ran.get(wire.producer), wire.source == "graph"
                read = Read(sequence.name, step, region, wire.value, wire.producer, in_pool, made_at, loop)
                found.append(read)
    return found


@dataclass(frozen=True)
class Run:
    """What a simulated run shows.

    ``late``: the reads that come too late, with the step that took the memory. Of the watched values the run made,
    ``taken`` are those whose memory a later step took, ``intact`` the others.
    """

    late: Mapping[Read, int]
    taken: Mapping[Span, int]
    intact: Collection[Span]


class Simulator:
    """Simulates the sequences of one plan. Its tables are made once and only read."""

    def __init__(self, plan: Plan) -> None:
        self._regions = plan.regions
        self._graphs = {(graph.region, graph.bucket): graph for graph in plan.graphs}
        self._spans = {(span.value, span.bucket): span for span in plan.spans}
        self._makes: dict[tuple[str, int], list[Span]] = defaultdict(list)
        for span in plan.spans:
            self._makes[span.pool, span.first].append(span)

    def graph(self, region: str, bucket: Bucket) -> Graph | None:
        """The graph a region replays in a run at ``bucket``; None for an eager region."""
        return self._graphs.get((region, bucket.project(self._regions[region].dims)))

    def span(self, read: Read, bucket: Bucket) -> Span:
        """The span of what ``read`` reads in a run at ``bucket``."""
        return self._spans[read.value, bucket.project(self._regions[read.producer].dims)]

    def run(self, sequence: Sequence, bucket: Bucket, reads: Iterable[Read], watched: Collection[str] = ()) -> Run:
        """Replay the sequence once; ``reads`` are its reads of a graph's memory, ``watched`` names of values.

        What it reads before making it was made by an earlier run, and is intact when this one starts.
        """
        run = _SimulatedRun(self, sequence, bucket, watched)
        for read in reads:
            run.expect(read, self.span(read, bucket))
        run.through(sequence.program)
        lost = {span: run.pools[span.pool].lost_at(span) for span in run.made}
        taken = {span: at for span, at in lost.items() if at is not None}
        return Run(run.late, taken, lost.keys() - taken.keys())

    def makes(self, graph: Graph) -> list[Span]:
        """The spans of what a graph makes in its pool."""
        return self._makes[graph.pool, graph.index]


class _SimulatedRun:
    """One run on its way: its pools, and what was seen so far."""

    def __init__(self, simulator: Simulator, sequence: Sequence, bucket: Bucket, watched: Collection[str]) -> None:
        self._simulator = simulator
        self._sequence = sequence
        self._bucket = bucket
        self._watched = watched
        self._reads: dict[int | Loop, list[tuple[Read, Span]]] = defaultdict(list)
        self.pools: dict[str, PoolMemory] = defaultdict(PoolMemory)
        self.late: dict[Read, int] = {}
        self.made: dict[Span, None] = {}

    def expect(self, read: Read, span: Span) -> None:
        """The run has this read; what it does not make itself is there when it begins."""
        self._reads[read.step if read.loop is None else read.loop].append((read, span))
        if read.made_at is None:
            self.pools[span.pool].add(span)

    def through(self, program: Block, *, looking: bool = True) -> None:
        """Run a program; ``looking``: at its reads.

        A loop is walked twice: first for what one turn leaves behind, which each further turn would leave too, then
        from there with an eye on the reads. What is intact at its end is so after any number of turns, none included.
        """
        for item in program:
            if isinstance(item, int):
                self._step(item, looking=looking)
                continue
            self._turn(item, looking=False)
            if looking:
                self._look(item.loop)
                self._turn(item, looking=True)

    def _turn(self, turns: Turns, *, looking: bool) -> None:
        before = {pool: memory.copy() for pool, memory in self.pools.items()}
        self.through(turns.body, looking=looking)
        for pool, memory in before.items():
            self.pools[pool].join(memory)

    def _look(self, at: int | Loop) -> None:
        for read, span in self._reads[at]:
            lost_at = self.pools[span.pool].lost_at(span)
            if lost_at is not None:
                self.late[read] = lost_at

    def _step(self, step: int, *, looking: bool) -> None:
        if looking:
            self._look(step)
        graph = self._simulator.graph(self._sequence.steps[step], self._bucket)
        if graph is not None:
            makes = self._simulator.makes(graph)
            self.pools[graph.pool].replay(graph.index, makes, step)
            self.made.update((span, None) for span in makes if span.value in self._watched)
