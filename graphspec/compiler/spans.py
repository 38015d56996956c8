"""How long each value keeps its memory in its pool, in capture order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from graphspec.compiler.schedule import Schedule
from graphspec.compiler.values import is_held, is_static, is_written_back, made_values
from graphspec.plan import Bucket, Graph, RegionPlan, Span, Wire
from graphspec.spec import Spec


def plan_spans(spec: Spec, regions: Mapping[str, RegionPlan], schedule: Schedule) -> tuple[Span, ...]:
    """The span of every value that a graph makes, in capture order of its producer.

    A value is released after its last consumer: after the consumer's capture or, where that is in another pool or the
    consumer is eager, after what the value's own pool captured before. Where a consumer was captured at a larger
    bucket already, the value outlives what a run replays before the consumer. A held result is never released. A value
    that a loop goes by is read at the end of every turn.
    """
    captured: Counter[str] = Counter()
    graphs: dict[tuple[str, Bucket], Graph] = {}
    last: dict[tuple[str, Bucket], int] = {}
    for events in schedule:
        replayed: dict[str, int] = {}
        for event in events:
            if event.graph is not None:
                pool, index = event.graph.pool, event.graph.index
                replayed[pool] = max(index, replayed.get(pool, index))
                captured[pool] += event.new
                graphs[event.region, event.bucket] = event.graph
            for wire in regions[event.region].reads:
                producer = _producing_graph(regions, graphs, wire, event.bucket)
                if producer is not None:
                    key = (wire.value, producer.bucket)
                    reached = captured[producer.pool] - 1 if event.new else replayed.get(producer.pool, producer.index)
                    last[key] = max(reached, last.get(key, reached))
        _hold_conditions(spec, {event.region: event.graph for event in events if event.graph is not None}, last)
    spans = []
    for graph in graphs.values():
        for value in regions[graph.region].outputs:
            if not is_written_back(spec, value) and not is_static(spec, value):
                release = None if is_held(spec, value) else last.get((value, graph.bucket), graph.index)
                spans.append(Span(value, graph.pool, graph.bucket, graph.index, release))
    return tuple(spans)


def _hold_conditions(spec: Spec, graphs: Mapping[str, Graph], last: dict[tuple[str, Bucket], int]) -> None:
    """Hold what loops go by through all that a run replays before it comes to their ends; at one bucket."""
    made = made_values(spec)
    for sequence, loops in spec.loops.items():
        for loop in loops:
            graph = graphs.get(made.get(loop.condition, ""))
            if graph is not None:
                replayed = [graphs[name] for name in spec.sequences[sequence][: loop.stop] if name in graphs]
                indices = [each.index for each in replayed if each.pool == graph.pool]
                key = (loop.condition, graph.bucket)
                last[key] = max(graph.index, last.get(key, 0), *indices)


def _producing_graph(
    regions: Mapping[str, RegionPlan], graphs: Mapping[tuple[str, Bucket], Graph], wire: Wire, reader: Bucket
) -> Graph | None:
    """The graph at whose address a reader finds a value, if it was captured before the reader."""
    if wire.source != "graph" or wire.producer is None:
        return None
    return graphs.get((wire.producer, reader.project(regions[wire.producer].dims)))
