"""The values of a plan, one row each: who makes it, who reads it, and whether it is copied on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from graphspec.plan import BufferPlan, Plan, RegionPlan
from graphspec.report.tables import shortened
from graphspec.spec import FromParam, FromSize

_READERS = 4
#: The reader of a value that a loop goes by, which the host reads.
_LOOP = "a loop"


def value_rows(plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    """Value, made by, read by, how: static buffers first, then host values, then what regions make."""
    readers = _readers(plan)
    written = _writers(plan)
    for buffer in plan.buffers.values():
        name = buffer.name
        if buffer.role == "state" and (readers[name] or written[name]):
            yield name, _names(written[name]), _names(readers[name]), "kept in a static buffer"
        elif buffer.role == "input" and readers[name]:
            yield name, _filled_by(buffer), _names(readers[name]), "copied into a static buffer"
    params = dict.fromkeys(param for sequence in plan.sequences.values() for param in sequence.params)
    yield from ((param, "caller", _names(readers[param]), "host value") for param in params)
    yield from _made(plan, readers)


def _filled_by(buffer: BufferPlan) -> str:
    match buffer.source:
        case FromParam(param):
            return param
        case FromSize(dim, bucket):
            return f"{'bucket' if bucket else 'size'} of {dim}"
        case None:
            return "caller"


def _readers(plan: Plan) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = defaultdict(list)
    for region in plan.regions.values():
        names = (*(wire.value for wire in region.reads), *(update.param for update in region.updates))
        for name in dict.fromkeys(names):
            readers[name].append(region.name)
    for name in sorted(plan.conditions):
        readers[name].append(_LOOP)
    return readers


def _writers(plan: Plan) -> dict[str, list[str]]:
    writers: dict[str, list[str]] = defaultdict(list)
    for region in plan.regions.values():
        for name in region.write_back:
            writers[name].append(region.name)
    return writers


def _made(plan: Plan, readers: dict[str, list[str]]) -> Iterator[tuple[str, str, str, str]]:
    spans = {span.value: span for span in reversed(plan.spans)}
    captured = {(graph.pool, graph.index): graph.region for graph in plan.graphs}
    for region in plan.regions.values():
        for value in (name for name in region.outputs if name not in region.write_back):
            read_by = [*readers[value], *(["caller"] if value in region.results else [])]
            span = spans.get(value)
            until = None if span is None or span.last is None else captured[span.pool, span.last]
            yield value, region.name, _names(read_by), "; ".join(_ways(plan, region, value, readers[value], until))


def _ways(plan: Plan, region: RegionPlan, value: str, readers: list[str], until: str | None) -> Iterator[str]:
    """How the value reaches captured readers, eager ones, and the caller."""
    buffer = plan.buffers.get(value)
    captured = [name for name in readers if name != _LOOP and not plan.regions[name].eager]
    if buffer is not None and buffer.static:
        yield "copied into one allocation for all buckets"
    elif region.eager and captured:
        yield "copied into a static buffer"
    elif set(readers) - {_LOOP} and not region.eager:
        yield "read in place" + ("" if until in {None, region.name, *readers} else f", alive until {until}")
    if _LOOP in readers:
        yield "read by the host"
    if value in region.results:
        yield "handed out without a copy" if value in region.borrowed else "copied out"


def _names(names: list[str]) -> str:
    return shortened(names, _READERS)
