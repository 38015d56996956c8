"""A plan for a person: what is captured in which order, who reads what from whom, and what it costs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import groupby

from graphspec.plan import Bucket, BufferPlan, Plan, RegionPlan, Sequence
from graphspec.report.plan_values import value_rows
from graphspec.report.tables import shortened, table
from graphspec.turns import Block, Turns
from graphspec.units import counted, human_bytes

#: Longer lists leave their middle out.
_BUCKETS = 8
_REGIONS = 12
_VARIANTS = 24


def render(plan: Plan) -> str:
    """The plan as text; a section that has nothing to say is left out."""
    opened = len(plan.opened)
    in_pool = {pool: opened * count for pool, count in Counter(graph.pool for graph in plan.graphs).items()}
    of_region = {name: opened * count for name, count in Counter(graph.region for graph in plan.graphs).items()}
    inline = [region for region in plan.regions.values() if region.declared.inline]
    outside = {region.name for region in inline}
    pools = (
        (pool, str(in_pool.get(pool, 0)), shortened(order, _REGIONS))
        for pool, order in plan.pools.items()
        if not outside.issuperset(order)
    )
    regions = (_region(region, of_region.get(name, 0)) for name, region in plan.regions.items() if name not in outside)
    sections = (
        [_headline(plan)],
        table("capture order", ("buckets", "regions"), _capture_order(plan)),
        table("variants", ("graphs", "captured"), _variants(plan)),
        table("pools", ("graphs", "regions in capture order"), pools),
        table("regions", ("graphs", "one for each", "updates", "compiled by"), regions),
        table("inline", ("modules", "captured when they are called"), map(_inline, inline)),
        table("values", ("made by", "read by", "how"), value_rows(plan)),
        table("buffers", ("role", "dtype", "shape", "largest", "bytes"), _buffers(plan)),
        *(_sequence(sequence) for sequence in plan.sequences.values()),
        [f"digest {plan.digest}"],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _inline(region: RegionPlan) -> tuple[str, str, str]:
    """What nobody knows the graphs of before the model is called."""
    order = "all forwards, then all backwards as their gradients came" if region.declared.backward else "forwards"
    return region.name, region.declared.call, order


def _headline(plan: Plan) -> str:
    graphs, pools = len(plan.graphs) * len(plan.opened), len({graph.pool for graph in plan.graphs})
    facts = [
        f"{counted(graphs, 'graph')} in {counted(pools, 'pool')}",
        f"{human_bytes(_static_bytes(plan))} of static buffers",
        f"device {plan.device}",
    ]
    if plan.buckets != (Bucket(),):
        facts.insert(1, counted(len(plan.buckets), "bucket"))
    if len(plan.variants) > 1:
        facts.insert(-2, counted(len(plan.variants), "variant"))
    return f"{plan.name}: {', '.join(facts)}"


def _capture_order(plan: Plan) -> Iterator[tuple[str, ...]]:
    """One row for each run of buckets at which the same regions are captured."""
    first = 1
    for regions, group in groupby(_captured_at(plan), key=lambda at: at[1]):
        buckets = [bucket for bucket, _ in group]
        last = first + len(regions) * len(buckets) - 1
        if regions:
            places = str(first) if first == last else f"{first}-{last}"
            yield places, _bucket_list(buckets), shortened(regions, _REGIONS)
        first = last + 1


def _variants(plan: Plan) -> Iterator[tuple[str, ...]]:
    """One row for each variant, where a spec has several or cannot list them."""
    if len(plan.variants) == 1 and not plan.unlisted:
        return
    count = str(len(plan.graphs))
    for at, variant in enumerate(plan.variants[:_VARIANTS]):
        yield str(variant) or "every input", count, "" if at < len(plan.opened) else "by the first run that needs it"
    if len(plan.variants) > _VARIANTS:
        yield f"... ({len(plan.variants)} in all)", ""
    for name in plan.unlisted:
        yield f"{name}: each further value", count, "by the first run that has it, in a bounded cache"


def _captured_at(plan: Plan) -> Iterator[tuple[Bucket, tuple[str, ...]]]:
    """For each bucket the regions whose graphs are captured there: a projection is captured at its first bucket."""
    rest = deque(plan.graphs)
    for bucket in plan.buckets:
        here: dict[str, None] = {}
        while rest and rest[0].region not in here:
            if rest[0].bucket != bucket.project(plan.regions[rest[0].region].dims):
                break
            here[rest.popleft().region] = None
        yield bucket, tuple(here)


def _bucket_list(buckets: Iterable[Bucket]) -> str:
    """``batch = 8, 4, 2, 1`` or ``batch x cache = 8x64, 8x32``; empty where nothing is bucketed."""
    listed = list(buckets)
    dims = " x ".join(dim for dim, _ in listed[0].sizes)
    sizes = ("x".join(str(size) for _, size in bucket.sizes) for bucket in listed)
    return f"{dims} = {shortened(sizes, _BUCKETS)}" if dims else ""


def _region(region: RegionPlan, graphs: int) -> tuple[str, ...]:
    updates = (f"{update.op} {update.arg} from {update.param}" for update in region.updates)
    graphs_of = "eager" if region.eager else str(graphs)
    return region.name, graphs_of, " x ".join(region.dims), "; ".join(updates), region.compiler or ""


def _buffers(plan: Plan) -> Iterator[tuple[str, ...]]:
    for buffer in plan.buffers.values():
        symbolic = buffer.shape is not None and any(not isinstance(axis, int) for axis in buffer.shape)
        largest = _axes(buffer.largest) if symbolic else ""
        yield buffer.name, buffer.role, buffer.dtype or "", _axes(buffer.shape), largest, _size(buffer)
    if sum(buffer.static and buffer.bytes is not None for buffer in plan.buffers.values()) > 1:
        yield "all static", "", "", "", "", human_bytes(_static_bytes(plan))


def _axes(shape: Iterable[object] | None) -> str:
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"


def _size(buffer: BufferPlan) -> str:
    if buffer.bytes is None:
        return "" if buffer.role in ("output", "intermediate") else "owned by the model"
    return human_bytes(buffer.bytes) + ("" if buffer.static else " in its graph's pool")


def _static_bytes(plan: Plan) -> int:
    return sum(buffer.bytes or 0 for buffer in plan.buffers.values() if buffer.static)


def _sequence(sequence: Sequence) -> list[str]:
    facts = (
        ("takes", ", ".join((*sequence.inputs, *(f"{param} (param)" for param in sequence.params)))),
        ("gives", ", ".join(sequence.results)),
        ("sizes", _bucket_list(sequence.buckets)),
    )
    lines = [f"  {name}  {said}" for name, said in facts if said]
    return [f"sequence {sequence.name}: {shortened(_steps(sequence.program, sequence.steps), _REGIONS)}", *lines]


def _steps(program: Block, names: tuple[str, ...]) -> list[str]:
    """``embed``, or ``while active (step, sample)`` for a loop."""
    return [names[item] if isinstance(item, int) else _loop(item, names) for item in program]


def _loop(turns: Turns, names: tuple[str, ...]) -> str:
    most = "" if turns.loop.limit is None else f", at most {turns.loop.limit:,} times"
    return f"while {turns.loop.condition}{most} ({', '.join(_steps(turns.body, names))})"
