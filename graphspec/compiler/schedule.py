"""The order of capture: buckets from the largest to the smallest, within a bucket the order of the sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from graphspec.plan import Bucket, Event, Graph, Pass, RegionPlan
from graphspec.spec import Spec

#: The events of each bucket, from the largest to the smallest.
Schedule = tuple[tuple[Event, ...], ...]


def capture_schedule(spec: Spec, regions: Mapping[str, RegionPlan], buckets: tuple[Bucket, ...]) -> Schedule:
    """Every capture, and every read between captures, in order.

    A region is captured once for each combination of its own dims, at the largest bucket that has it, and at its
    first place over the sequences. An eager region runs at each of its places.
    """
    places = _places(spec)
    captured: Counter[str] = Counter()
    done: dict[tuple[int, Bucket], Graph | None] = {}
    schedule = []
    for bucket in buckets:
        projected = {dims: bucket.project(dims) for dims in {regions[name].dims for name in places}}
        events = []
        for place, region in enumerate(regions[name] for name in places):
            seen = projected[region.dims]
            key = (place, seen)
            new = key not in done
            if new:
                done[key] = _graph(region, seen, captured)
            events.append(Event(region.name, seen, done[key], new))
        schedule.append(tuple(events))
    return tuple(schedule)


def graphs_in(schedule: Schedule) -> tuple[Graph, ...]:
    """Every graph, in the order of capture."""
    return tuple(event.graph for events in schedule for event in events if event.new and event.graph is not None)


def passes(buckets: tuple[Bucket, ...], schedule: Schedule) -> tuple[Pass, ...]:
    """The schedule of the buckets at which something is captured: what a capture walks through."""
    pairs = zip(buckets, schedule, strict=True)
    return tuple(
        (bucket, events) for bucket, events in pairs if any(event.new and event.graph is not None for event in events)
    )


def _places(spec: Spec) -> list[str]:
    """Over all sequences, captured regions at their first place and eager ones at each."""
    places: list[str] = []
    seen: set[str] = set()
    for step in (step for steps in spec.sequences.values() for step in steps):
        if spec.regions[step].eager or step not in seen:
            places.append(step)
            seen.add(step)
    return places


def _graph(region: RegionPlan, bucket: Bucket, captured: Counter[str]) -> Graph | None:
    """The next graph of the region's pool; counts it in ``captured``."""
    if region.pool is None:
        return None
    captured[region.pool] += 1
    return Graph(region.name, bucket, region.pool, captured[region.pool] - 1)


def pool_orders(spec: Spec, regions: Mapping[str, RegionPlan]) -> dict[str, tuple[str, ...]]:
    """The regions of every pool in capture order; those no sequence replays come last, in declared order."""
    orders: dict[str, dict[str, None]] = {pool: {} for pool in spec.pools}
    for name in (*_places(spec), *regions):
        pool = regions[name].pool
        if pool is not None:
            orders.setdefault(pool, {})[name] = None
    return {pool: tuple(order) for pool, order in orders.items()}
