"""The pool rule at run time, for what the compiler cannot see: reads across sequences, and results lent out.

A value whose producer has index p in its pool and whose memory was held until capture e is intact after the replay of
p until a graph with an index k <= p or k > e is replayed. A clock ticks at every replay; a value is intact if no such
graph has ticked since its producer.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphspec.errors import OrderError
from graphspec.plan import Bucket, Graph, Plan, Span


class Clock:
    """When each graph of one set was last replayed. ``needed`` is False where nothing can be read too late."""

    def __init__(self, plan: Plan) -> None:
        self._spans = {(span.value, span.bucket): span for span in plan.spans}
        self._graphs: Mapping[tuple[str, int], Graph] = {(g.pool, g.index): g for g in plan.graphs}
        sizes: dict[str, int] = {}
        for graph in plan.graphs:
            sizes[graph.pool] = sizes.get(graph.pool, 0) + 1
        self._ticks = {pool: [0] * size for pool, size in sizes.items()}
        self.now = 0
        self.needed = any(region.borrowed for region in plan.regions.values()) or _crosses(plan)

    def replayed(self, graph: Graph) -> None:
        """A graph was just replayed."""
        self.now += 1
        self._ticks[graph.pool][graph.index] = self.now

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
        """The same for a result that was lent at tick ``since``: its producer counts too, at any bucket if it is static."""
        if (value, producer.bucket) in self._spans:
            return self.overwritten_by(value, producer.bucket, since)
        for graph in self._graphs.values():
            if graph.region == producer.region and self._ticks[graph.pool][graph.index] > since:
                return graph
        return None

    def require(self, reader: str, value: str, bucket: Bucket) -> None:
        """Raise OrderError unless ``value`` was made and is intact."""
        since = self.made_at(value, bucket)
        span = self._spans[value, bucket]
        producer = self._graphs[span.pool, span.first]
        if since == 0:
            at = f" at {bucket}" if bucket.sizes else ""
            message = f"region '{reader}' reads '{value}', which region '{producer.region}' has not made yet{at}"
            raise OrderError(
                message, hint=f"run the sequence that replays '{producer.region}' first, at the same sizes"
            )
        culprit = self.overwritten_by(value, bucket, since)
        if culprit is not None:
            message = (
                f"region '{reader}' reads '{value}' too late: '{culprit.region}' was replayed since region "
                f"'{producer.region}' made it, and they share the memory of pool '{span.pool}'"
            )
            hint = f"replay '{reader}' before '{culprit.region}', or give one of them a pool of its own"
            raise OrderError(message, hint=hint)


def _overwrites(span: Span, index: int) -> bool:
    return index <= span.first or (span.last is not None and index > span.last)


def _crosses(plan: Plan) -> bool:
    """Whether some sequence reads a graph's value that it has not made itself before."""
    for sequence in plan.sequences.values():
        made: set[str] = set()
        for name in sequence.steps:
            region = plan.regions[name]
            if any(wire.source in ("graph", "eager") and wire.value not in made for wire in region.reads):
                return True
            made.update(region.outputs)
    return False
