"""GS4xx: what the buckets of a whole spec lead to. These rules follow values from region to region."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphspec.compiler.dims import region_dims
from graphspec.compiler.variants import MOST_VARIANTS, count_variants
from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.rules.sizes import padded_dims
from graphspec.rules.unsaid import is_exact
from graphspec.rules.walk import output_place
from graphspec.spec import Buckets, Region, Spec, reads
from graphspec.units import counted, human_bytes

#: Streams of common NPU parts; every captured graph takes one. Beyond it the device's message speaks of storage.
STREAM_BUDGET = 2048
#: More combinations than any device could capture: planning them would only take long.
MOST_COMBINATIONS = 100_000
_LISTED = 24
_LATER = "drop some `choices`, make fewer inputs optional, or capture at first use: `capture: {when: first_use}`"


def uncuttable_results(spec: Spec) -> Iterator[Diagnostic]:
    """GS406: a result of a bucketed region without a shape: nothing says which of its axes to cut."""
    dims = region_dims(spec)
    for name, region in _results(spec):
        buffer = spec.buffers.get(name)
        padded = [dim for dim in dims[region.name] if not is_exact(spec, dim)]
        if not padded or (buffer is not None and buffer.shape is not None):
            continue
        if region.eager and region.rows == "real":
            continue  # it never saw a padded row
        message = f"the result '{name}' depends on the bucketed dim '{padded[0]}' and has no shape, so it cannot be cut"
        if buffer is not None:
            path: KeyPath = ("buffers", name)
            yield finding(spec.document, "GS406", message, path, key=True, hint=f"add `shape: [{padded[0]}, ...]`")
        else:
            path, key = output_place(spec, region, name)
            hint = f"declare it under buffers: `{name}: {{role: output, shape: [{padded[0]}, ...], dtype: ...}}`"
            yield finding(spec.document, "GS406", message, path, key=key, hint=hint)


def _results(spec: Spec) -> Iterator[tuple[str, Region]]:
    """What a run of each sequence returns, with the region that makes it; each once."""
    found: dict[str, Region] = {}
    for steps in spec.sequences.values():
        regions = [spec.regions[name] for name in steps]
        made = {name: region for region in regions for name in region.outputs}
        declared = {name for name in made if name in spec.buffers and spec.buffers[name].role == "output"}
        last = (name for name in (regions[-1].outputs if regions else ()))
        others = {name for name in last if name not in spec.buffers or not spec.buffers[name].is_made}
        found.update({name: made[name] for name in made if name in (declared or others)})
    yield from found.items()


def too_many(spec: Spec) -> Iterator[Diagnostic]:
    """GS407: more graphs than `capture.max_graphs`, or than an NPU has streams; found before any device is touched."""
    combinations = math.prod(len(dim.sizes) for dim in spec.dims.values() if isinstance(dim, Buckets))
    if spec.buckets is None and combinations > MOST_COMBINATIONS:
        message = f"the bucket sizes combine to {combinations:,} combinations, more than can be captured or planned"
        yield finding(spec.document, "GS407", message, ("dims",), key=True,
                      hint="list the combinations you need under `buckets`")  # fmt: skip
        return
    dims = {name: each for name, each in region_dims(spec).items() if _is_captured(spec, name)}
    variants = _variants(spec)
    each, limit = _graphs(spec, dims, {}), spec.capture.max_graphs
    total = each * variants
    if limit is not None and total > limit:
        message = f"{_product(dims, each, variants)}, and `capture.max_graphs` is {limit:,}"
        hint = _fewer(spec, dims, limit, variants)
        yield finding(spec.document, "GS407", message, ("capture", "max_graphs"), hint=hint)
    elif total > STREAM_BUDGET and spec.device.startswith(("npu", "auto")):
        message = (
            f"{_product(dims, each, variants)}, and an NPU has about {STREAM_BUDGET:,} streams, one for each graph"
        )
        yield finding(spec.document, "GS407", message, _largest_place(spec, dims), key=True,
                      hint=_fewer(spec, dims, STREAM_BUDGET, variants),
                      severity="error" if spec.device.startswith("npu") else "warning")  # fmt: skip
    elif variants > MOST_VARIANTS:
        message = f"the choices of specialized params and the optional inputs make {variants:,} variants of every graph"
        yield finding(spec.document, "GS407", message, ("regions",), key=True, hint=_LATER)


def _variants(spec: Spec) -> int:
    """How many sets of graphs are captured when the spec is opened."""
    if spec.capture.when != "open" or not (spec.params or any(each.optional for each in spec.buffers.values())):
        return 1
    return count_variants(spec)


def _is_captured(spec: Spec, name: str) -> bool:
    region = spec.regions[name]
    return not region.eager and (region.inline or any(name in steps for steps in spec.sequences.values()))


def _graphs(spec: Spec, dims: Mapping[str, tuple[str, ...]], kept: Mapping[str, int]) -> int:
    """The graphs of all regions, with only ``kept[dim]`` sizes of a dim."""
    if spec.buckets is not None:
        counts = {used: len({tuple(each.get(dim) for dim in used) for each in spec.buckets}) for used in dims.values()}
    else:
        sizes = {name: kept.get(name, len(dim.sizes)) for name, dim in spec.dims.items() if isinstance(dim, Buckets)}
        counts = {used: math.prod(sizes[dim] for dim in used) for used in set(dims.values())}
    return sum(counts[used] for used in dims.values())


def _product(dims: Mapping[str, tuple[str, ...]], total: int, variants: int) -> str:
    each = total // len(dims)
    with_variants = f" x {counted(variants, 'variant')}" if variants > 1 else ""
    graphs = counted(total * variants, "graph")
    if each * len(dims) == total and len(set(dims.values())) == 1:
        return f"{counted(len(dims), 'region')} x {counted(each, 'bucket')}{with_variants} make {graphs}"
    return f"{counted(len(dims), 'region')} with all their buckets{with_variants} make {graphs}"


def _widest(spec: Spec, dims: Mapping[str, tuple[str, ...]]) -> str | None:
    """The dim with most sizes among those that regions depend on."""
    used = {dim for each in dims.values() for dim in each}
    counts = {name: len(dim.sizes) for name, dim in spec.dims.items() if name in used and isinstance(dim, Buckets)}
    return max(counts, key=lambda name: counts[name], default=None)


def _largest_place(spec: Spec, dims: Mapping[str, tuple[str, ...]]) -> KeyPath:
    if spec.buckets is not None:
        return ("buckets",)
    widest = _widest(spec, dims)
    return ("regions",) if widest is None else ("dims", widest)


def _fewer(spec: Spec, dims: Mapping[str, tuple[str, ...]], limit: int, variants: int) -> str:
    """Which sizes to drop: those whose next larger size is nearest, so that padding grows least."""
    if variants > 1:
        return f"{_LATER}, or drop some sizes"
    if spec.buckets is not None:
        return "list fewer combinations under `buckets`"
    widest = _widest(spec, dims)
    dim = spec.dims[widest] if widest is not None else None
    if widest is None or not isinstance(dim, Buckets) or _graphs(spec, dims, {widest: 1}) > limit:
        return "capture fewer regions, or leave some of them eager"
    keep = len(dim.sizes) - 1
    while _graphs(spec, dims, {widest: keep}) > limit:
        keep -= 1
    dropped = dropped_sizes(dim.sizes, len(dim.sizes) - keep)
    shown = ", ".join(map(str, dropped[:_LISTED])) + (", ..." if len(dropped) > _LISTED else "")
    left = _graphs(spec, dims, {widest: keep})
    return f"drop {len(dropped)} of the {len(dim.sizes)} sizes of '{widest}': {shown}; {left:,} graphs are left"


def dropped_sizes(sizes: tuple[int, ...], count: int) -> list[int]:
    """The ``count`` sizes whose loss pads least: again and again the one nearest, in ratio, to its next larger."""
    kept, dropped = list(sizes), []
    for _ in range(count):
        index = min(range(len(kept) - 1), key=lambda at: kept[at + 1] / kept[at])
        dropped.append(kept.pop(index))
    return sorted(dropped)


def fallback_with_state(spec: Spec) -> Iterator[Diagnostic]:
    """GS408: `on_miss: eager` where a state has no room for a size no bucket holds, or where no size is bucketed."""
    dims = region_dims(spec)
    for region in spec.regions.values():
        if region.on_miss != "eager" or region.inline:
            continue
        path = ("regions", region.name, "on_miss")
        if not dims[region.name]:
            message = f"`on_miss` has no effect: region '{region.name}' depends on no bucketed dim"
            yield finding(spec.document, "GS408", message, path, hint="remove it", severity="warning")
        for name in dict.fromkeys((*reads(region), *region.outputs)):
            buffer = spec.buffers.get(name)
            if buffer is not None and buffer.role == "state" and (named := padded_dims(spec, buffer.shape)):
                message = f"the state '{name}' ends at the largest '{named[0]}': a larger run cannot fall back to eager"
                yield finding(spec.document, "GS408", message, path, hint="remove `on_miss: eager`")
                break


def buffers_over_budget(spec: Spec) -> Iterator[Diagnostic]:
    """GS409: static buffers that no graph could be added to within `capture.memory_budget`."""
    budget = spec.capture.memory_budget
    if budget is None:
        return
    from graphspec.compiler.buckets import bucket_list  # late: most specs have no budget, and need no plan here
    from graphspec.compiler.buffers import plan_buffers

    sizes = {name: each.bytes or 0 for name, each in plan_buffers(spec, bucket_list(spec)).items() if each.static}
    total = sum(sizes.values())
    if total > budget:
        largest = max(sizes, key=lambda name: sizes[name])
        message = f"the static buffers take {human_bytes(total)}, and `capture.memory_budget` is {human_bytes(budget)}"
        hint = f"'{largest}' takes {human_bytes(sizes[largest])}: drop its largest sizes, or raise the budget"
        yield finding(spec.document, "GS409", message, ("capture", "memory_budget"), hint=hint)
