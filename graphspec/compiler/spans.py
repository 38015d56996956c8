"""How long each value keeps its memory in its pool, in capture order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from graphspec.compiler.schedule import Event
from graphspec.compiler.values import is_held, is_static, is_written_back
from graphspec.plan import Bucket, Graph, RegionPlan, Span, Wire
from graphspec.spec import Spec


def plan_spans(spec: Spec, regions: Mapping[str, RegionPlan], schedule: tuple[Event, ...]) -> tuple[Span, ...]:
    """The span of every value that a graph makes, in capture order of its producer.

    A value is released after the capture of its last consumer. A consumer outside the pool (of another pool, or
    eager) keeps it until the last capture its own pool makes before that consumer. A held result is never released.
    """
    captured: Counter[str] = Counter()
    graphs: dict[tuple[str, Bucket], Graph] = {}
    last: dict[tuple[str, Bucket], int] = {}
    for event in schedule:
        if event.graph is not None:
            captured[event.graph.pool] += 1
            graphs[event.region, event.bucket] = event.graph
        for wire in regions[event.region].reads:
            producer = _producing_graph(regions, graphs, wire, event.bucket)
            if producer is not None:
                last[wire.value, producer.bucket] = captured[producer.pool] - 1
    return tuple(
        Span(
            value, graph.pool, graph.bucket, graph.index, None if held else last.get((value, graph.bucket), graph.index)
        )
        for graph in graphs.values()
        for value in regions[graph.region].outputs
        if not is_written_back(spec, value) and not is_static(spec, value)
        for held in [is_held(spec, value)]
    )


def _producing_graph(
    regions: Mapping[str, RegionPlan], graphs: Mapping[tuple[str, Bucket], Graph], wire: Wire, reader: Bucket
) -> Graph | None:
    """The graph at whose address a reader finds a value, if it was captured before the reader."""
    if wire.source != "graph" or wire.producer is None:
        return None
    return graphs.get((wire.producer, reader.project(regions[wire.producer].dims)))
