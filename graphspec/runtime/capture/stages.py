"""Which regions a pass calls over one bucket, and which of them it captures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphspec.plan import Bucket, Graph, Plan


@dataclass(frozen=True)
class Event:
    """A region at a bucket of its own dims; ``graph`` None: an eager one."""

    region: str
    bucket: Bucket
    graph: Graph | None


#: Called with each region and bucket as its capture begins.
Progress = Callable[[Event], None]


@dataclass(frozen=True)
class Stage:
    """One step of a pass over one bucket. ``fresh``: its graph is captured in this pass, not in one before."""

    event: Event
    place: tuple[str, int]
    fresh: bool


def plan_stages(plan: Plan) -> list[tuple[Bucket, list[Stage]]]:
    """For every bucket that has graphs of its own, the steps that lead to them, in replay order."""
    graphs = {(graph.region, graph.bucket): graph for graph in plan.graphs}
    done: set[tuple[str, Bucket]] = set()
    passes = []
    for bucket in plan.buckets:
        stages: dict[Any, Stage] = {}
        for sequence in plan.sequences.values():
            for index, name in enumerate(sequence.steps):
                own = bucket.project(plan.regions[name].dims)
                graph = graphs.get((name, own))
                place = (sequence.name, index)
                key = place if graph is None else (name, own)
                stages.setdefault(key, Stage(Event(name, own, graph), place, (name, own) not in done))
        if any(stage.fresh and stage.event.graph is not None for stage in stages.values()):
            passes.append((bucket, list(stages.values())))
            done.update((stage.event.region, stage.event.bucket) for stage in stages.values())
    return passes
