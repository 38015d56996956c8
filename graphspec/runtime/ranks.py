"""Several ranks must capture the same graphs in the same order: a collective inside a graph waits for all of them.

Plans are compared before anything is captured, through the store of the process group and not by a collective: a
rank that never comes is then a time-out with a name, and not a hang.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from graphspec.errors import CaptureError
from graphspec.plan import Plan
from graphspec.plan_json import to_json

#: How long a rank waits for the others to open the spec, in seconds.
PATIENCE_S = 60.0


def agree(plan: Plan, patience_s: float = PATIENCE_S) -> None:
    """Compare the plans of all ranks, if there are several.

    Raises CaptureError on every rank alike, with the first difference, or naming the ranks that did not come.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    plans = _exchange(json.dumps({**to_json(plan), "digest": plan.digest}), patience_s)
    first = plans[0]
    for rank, other in enumerate(plans):
        if other["digest"] != first["digest"]:
            where, here, there = next(_differences(first, other))
            message = f"the ranks have different plans, first at {where}: rank 0 has {here}, rank {rank} has {there}"
            raise CaptureError(message, hint="open the same spec, with the same buckets and order, on every rank")


def _exchange(text: str, patience_s: float) -> list[dict[str, Any]]:
    """What every rank says, by rank. The n-th spec a rank opens is compared with the n-th of the others."""
    store: Any = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    number = store.add(f"graphspec/opened/{rank}", 1)
    keys = [f"graphspec/plan/{number}/{other}" for other in range(world)]
    store.set(keys[rank], text)
    try:
        store.wait(keys, timedelta(seconds=patience_s))
    except (RuntimeError, torch.distributed.DistError):
        late = [str(other) for other in range(world) if not store.check([keys[other]])]
        message = f"rank {rank} waited {patience_s:g} s for the plan of rank {', '.join(late)}"
        raise CaptureError(message, hint="open the spec on every rank, in the same order") from None
    return [json.loads(store.get(key)) for key in keys]


def _differences(one: Any, other: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place at which two plans differ; the digest itself comes last."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({**one, **other}, key=lambda key: (key == "digest", list({**one, **other}).index(key))):
            place = f"{where}.{key}" if where else key
            yield from _differences(one.get(key, "nothing"), other.get(key, "nothing"), place)
    elif isinstance(one, list) and isinstance(other, list):
        for index in range(max(len(one), len(other))):
            here, there = (items[index] if index < len(items) else "nothing" for items in (one, other))
            yield from _differences(here, there, f"{where}[{index}]")
    elif one != other:
        yield where, one, other
