"""The pool rule at run time, for what the compiler cannot see: reads across sequences, and results lent out.

A value whose producer has index p in its pool and whose memory was held until capture e is intact after the replay of
p until a graph with an index k <= p or k > e is replayed. A clock ticks at every replay; a value is intact if no such
graph has ticked since its producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphspec.errors import OrderError
from graphspec.plan import Bucket, Graph, Plan, Span


@dataclass(frozen=True)
class Foreign:
    """A value that a step reads and its own sequence has not made before. ``dims`` are those it comes in sizes of.

    ``in_pool``: it lies in graph memory. Else in an allocation of its own: one for each bucket (of an eager region), or
    one for all (``bucket`` None, a static output).
    """

    value: str
    producer: str
    bucket: Bucket | None
    dims: tuple[str, ...]
    in_pool: bool


class Clock:
    """When each graph of one set was last replayed. ``needed`` is False where nothing can be read too late."""

    def __init__(self, plan: Plan) -> None:
        self._spans = {(span.value, span.bucket): span for span in plan.spans}
        self._graphs: Mapping[tuple[str, int], Graph] = {(g.pool, g.index): g for g in plan.graphs}
        sizes: dict[str, int] = {}
        for graph in plan.graphs:
            sizes[graph.pool] = sizes.get(graph.pool, 0) + 1
        self._ticks = {pool: [0] * size for pool, size in sizes.items()}
        self._last: dict[str, tuple[Bucket, Mapping[str, int]]] = {}
        self.now = 0
        self.needed = any(region.borrowed for region in plan.regions.values()) or _crosses(plan)

    def replayed(self, graph: Graph) -> None:
        """A graph was just replayed."""
        self.now += 1
        self._ticks[graph.pool][graph.index] = self.now

    def ran(self, region: str, bucket: Bucket, sizes: Mapping[str, int]) -> None:
        """A region has just made its values, at a bucket of its own dims and these real sizes."""
        self._last[region] = (bucket, sizes)

    def made_at(self, value: str, bucket: Bucket) -> int:
        """The tick at which a value was last made; 0 if it was not."""
        span = self._spans[value, bucket]
        return self._ticks[span.pool][span.first]

    def overwritten_by(self, value: str, bucket: Bucket, since: int) -> Graph | None:
        """The graph that may have overwritten a value made at tick ``since``; None while it is intact."""
        span = self._spans[value, bucket]
        for index, tick in enumerate(self._ticks[span.pool]):
            if tick > since and _overwrites(span, index):
                return self._graphs[span.pool, index]
        return None

    def overwritten_since(self, producer: Graph, value: str, since: int) -> Graph | None:
        """The same for a result lent at tick ``since``: its producer counts too, at any bucket if it is static."""
        if (value, producer.bucket) in self._spans:
            return self.overwritten_by(value, producer.bucket, since)
        for graph in self._graphs.values():
            if graph.region == producer.region and self._ticks[graph.pool][graph.index] > since:
                return graph
        return None

    def require(self, reader: str, read: Foreign, sizes: Mapping[str, int]) -> None:
        """Raise OrderError unless a value was made last at ``sizes``, the real ones of this run, and is intact."""
        made = self._last.get(read.producer)
        if made is None or (read.in_pool and self.made_at(read.value, _bucket(read)) == 0):
            at = f" at {read.bucket}" if read.bucket is not None and read.bucket.sizes else ""
            message = f"region '{reader}' reads '{read.value}', which region '{read.producer}' has not made yet{at}"
            hint = f"run the sequence that replays '{read.producer}' first, at the same sizes"
            raise OrderError(message, hint=hint)
        if read.in_pool:
            self._require_intact(reader, read)
        bucket, real = made
        then = {dim: real.get(dim, bucket[dim]) for dim in read.dims}
        now = {dim: sizes.get(dim, then[dim] if read.bucket is None else read.bucket[dim]) for dim in read.dims}
        if then != now:
            message = (
                f"region '{reader}' reads '{read.value}' in a run at {_listed(now)}, and region '{read.producer}' made "
                f"it last at {_listed(then)}"
            )
            raise OrderError(message, hint=f"run the sequence that replays '{read.producer}' first, at the same sizes")

    def _require_intact(self, reader: str, read: Foreign) -> None:
        bucket = _bucket(read)
        culprit = self.overwritten_by(read.value, bucket, self.made_at(read.value, bucket))
        if culprit is not None:
            pool = self._spans[read.value, bucket].pool
            message = (
                f"region '{reader}' reads '{read.value}' too late: '{culprit.region}' was replayed since region "
                f"'{read.producer}' made it, and they share the memory of pool '{pool}'"
            )
            hint = f"replay '{reader}' before '{culprit.region}', or give one of them a pool of its own"
            raise OrderError(message, hint=hint)


def _bucket(read: Foreign) -> Bucket:
    assert read.bucket is not None, "a value in a pool has an address for each bucket"
    return read.bucket


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in sizes.items())


def _overwrites(span: Span, index: int) -> bool:
    return index <= span.first or (span.last is not None and index > span.last)


def _crosses(plan: Plan) -> bool:
    """Whether some sequence reads a graph's value that it has not made itself before."""
    for sequence in plan.sequences.values():
        made: set[str] = set()
        for name in sequence.steps:
            region = plan.regions[name]
            if any(wire.producer is not None and wire.value not in made for wire in region.reads):
                return True
            made.update(region.outputs)
    return False
