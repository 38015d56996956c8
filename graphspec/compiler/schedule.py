"""The order of capture: buckets from the largest to the smallest, within a bucket the order of the sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphspec.plan import Bucket, Graph, RegionPlan
from graphspec.spec import Spec


@dataclass(frozen=True)
class Event:
    """One step of the capture phase: a graph is captured, or (``graph`` None) an eager region runs."""

    region: str
    bucket: Bucket
    graph: Graph | None


def capture_schedule(spec: Spec, regions: Mapping[str, RegionPlan], buckets: tuple[Bucket, ...]) -> tuple[Event, ...]:
    """Every capture and every eager run between captures, in order.

    A region is captured once for each combination of its own dims, at the first sequence and the largest bucket
    that has it. An eager region runs at each of its places in the sequences.
    """
    captured: Counter[str] = Counter()
    done: set[tuple[object, ...]] = set()
    events: list[Event] = []
    for place, region, bucket in _walk(spec, regions, buckets):
        key = (*place, region.name, bucket) if region.pool is None else (region.name, bucket)
        if key in done:
            continue
        done.add(key)
        graph = None
        if region.pool is not None:
            graph = Graph(region.name, bucket, region.pool, captured[region.pool])
            captured[region.pool] += 1
        events.append(Event(region.name, bucket, graph))
    return tuple(events)


def _walk(
    spec: Spec, regions: Mapping[str, RegionPlan], buckets: tuple[Bucket, ...]
) -> Iterator[tuple[tuple[str, int], RegionPlan, Bucket]]:
    """Every step of every sequence at every bucket, the bucket as the region sees it."""
    for bucket in buckets:
        seen_by = {dims: bucket.project(dims) for dims in {region.dims for region in regions.values()}}
        for sequence, steps in spec.sequences.items():
            for index, step in enumerate(steps):
                yield (sequence, index), regions[step], seen_by[regions[step].dims]


def pool_orders(
    spec: Spec, regions: Mapping[str, RegionPlan], schedule: tuple[Event, ...]
) -> dict[str, tuple[str, ...]]:
    """The regions of every pool in capture order; those no sequence replays come last, in declared order."""
    orders: dict[str, dict[str, None]] = {pool: {} for pool in spec.pools}
    for name in (*(event.region for event in schedule), *regions):
        pool = regions[name].pool
        if pool is not None:
            orders.setdefault(pool, {})[name] = None
    return {pool: tuple(order) for pool, order in orders.items()}
