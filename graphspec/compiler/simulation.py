"""A run of a sequence, simulated: which values are intact, and which reads come after their memory was reused."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from graphspec.plan import Bucket, Graph, Plan, Sequence, Span


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


@dataclass(frozen=True)
class Read:
    """A step of a sequence reads what a region makes; ``made_at`` is the latest step before it that made it."""

    sequence: str
    step: int
    region: str
    value: str
    producer: str
    in_pool: bool
    made_at: int | None


def made_reads(plan: Plan, sequence: Sequence) -> list[Read]:
    """Every read of a value that some region makes, by step."""
    found = []
    made_at: dict[str, int] = {}
    for step, region in enumerate(sequence.steps):
        for wire in plan.regions[region].reads:
            if wire.producer is not None:
                at = made_at.get(wire.producer)
                in_pool = wire.source == "graph"
                found.append(Read(sequence.name, step, region, wire.value, wire.producer, in_pool, at))
        made_at[region] = step
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
        pools: dict[str, PoolMemory] = defaultdict(PoolMemory)
        reads_at: dict[int, list[tuple[Read, Span]]] = defaultdict(list)
        for read in reads:
            span = self.span(read, bucket)
            reads_at[read.step].append((read, span))
            if read.made_at is None:
                pools[span.pool].add(span)
        late: dict[Read, int] = {}
        made: dict[Span, None] = {}
        for step, region in enumerate(sequence.steps):
            for read, span in reads_at[step]:
                lost_at = pools[span.pool].lost_at(span)
                if lost_at is not None:
                    late[read] = lost_at
            graph = self.graph(region, bucket)
            if graph is not None:
                makes = self._makes[graph.pool, graph.index]
                pools[graph.pool].replay(graph.index, makes, step)
                made.update((span, None) for span in makes if span.value in watched)
        lost = {span: pools[span.pool].lost_at(span) for span in made}
        taken = {span: at for span, at in lost.items() if at is not None}
        return Run(late, taken, lost.keys() - taken.keys())
