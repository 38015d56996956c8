"""Makes a failing draw smaller: drops what it can while it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from random_models.language import Draw, RegionDraw, names_in


def shrink(draw: Draw, fails: Callable[[Draw], bool], budget: int = 400) -> Draw:
    """The smallest draw found that still fails, after at most ``budget`` tries."""
    left = budget
    progress = True
    while progress and left > 0:
        progress = False
        for smaller in _smaller(draw):
            left -= 1
            if left < 0:
                break
            if fails(smaller):
                draw, progress = smaller, True
                break
    return _without_unused(draw)


def _smaller(draw: Draw) -> Iterator[Draw]:
    """Draws with one thing less, the largest things first."""
    if len(draw.regions) > 1:
        yield from (_without_region(draw, region.name) for region in draw.regions)
    yield from _fewer_runs(draw)
    for number, region in enumerate(draw.regions):
        for smaller in _smaller_region(region):
            yield _without_unused(replace(draw, regions=(*draw.regions[:number], smaller, *draw.regions[number + 1 :])))
    yield from _plainer(draw)
    for number in range(1, len(draw.init)):
        yield replace(draw, init=draw.init[:number] + draw.init[number + 1 :])


def _fewer_runs(draw: Draw) -> Iterator[Draw]:
    if len(draw.runs) > 1:
        for number in reversed(range(len(draw.runs))):
            yield replace(draw, runs=draw.runs[:number] + draw.runs[number + 1 :])
    if len(draw.sequences) > 1:
        first = next(iter(draw.sequences))
        runs = tuple(run for run in draw.runs if run.sequence == first)
        yield replace(draw, sequences={first: draw.sequences[first]}, runs=runs)
    for number, run in enumerate(draw.runs):
        if run.before:
            yield replace(draw, runs=(*draw.runs[:number], replace(run, before=""), *draw.runs[number + 1 :]))


def _plainer(draw: Draw) -> Iterator[Draw]:
    """With fewer keys in the spec."""
    if draw.pools:
        yield replace(draw, pools={})
    for name, buffer in draw.buffers.items():
        for key in ("static", "copy", "optional", "hold", "layout"):
            if key in buffer:
                less = {each: value for each, value in buffer.items() if each != key}
                yield replace(draw, buffers={**draw.buffers, name: less})
    for dim, written in draw.dims.items():
        sizes = written["sizes"] if isinstance(written, dict) else written
        for size in sizes[:-1]:
            yield replace(draw, dims={**draw.dims, dim: [each for each in sizes if each != size]})


def _smaller_region(region: RegionDraw) -> Iterator[RegionDraw]:
    for number in range(len(region.lines)):
        yield replace(region, lines=region.lines[:number] + region.lines[number + 1 :])
    for argument in region.arguments:
        if len(region.arguments) > 1:
            yield replace(region, arguments=tuple(each for each in region.arguments if each is not argument))
    if isinstance(region.outputs, list):
        parts = re.findall(r"\([^()]*\)|[^,()\s][^,()]*", region.returns[1:-1])
        for number, name in enumerate(region.outputs):
            kept = [part for at, part in enumerate(parts) if at != number]
            names = [each for each in region.outputs if each != name]
            if len(parts) == len(region.outputs) and len(kept) == 1:
                yield replace(region, returns=kept[0], outputs=names[0])
            elif len(parts) == len(region.outputs):
                yield replace(region, returns=f"({', '.join(kept)})", outputs=names)
    for key in ("warmup", "updates", "eager"):
        if region.keys.get(key):
            yield replace(
                region, keys={**{each: v for each, v in region.keys.items() if each != key}, **_NONE.get(key, {})}
            )


_NONE = {"warmup": {"warmup": 0}}


def _without_region(draw: Draw, name: str) -> Draw:
    regions = tuple(region for region in draw.regions if region.name != name)
    sequences = {key: tuple(step for step in steps if step != name) for key, steps in draw.sequences.items()}
    sequences = {key: steps for key, steps in sequences.items() if steps}
    pools = {key: tuple(each for each in members if each != name) for key, members in draw.pools.items()}
    runs = tuple(run for run in draw.runs if run.sequence in sequences)
    less = replace(draw, regions=regions, sequences=sequences, pools={k: m for k, m in pools.items() if m}, runs=runs)
    return _without_unused(less)


def _without_unused(draw: Draw) -> Draw:
    """Without buffers and params that nothing uses."""
    used = {name for region in draw.regions for each in region.arguments for name in names_in(each.value)}
    for region in draw.regions:
        used.update([region.outputs] if isinstance(region.outputs, str) else region.outputs)
    buffers = {name: buffer for name, buffer in draw.buffers.items() if name in used}
    used |= {str(buffer.get("from")) for buffer in buffers.values()}
    return replace(draw, buffers=buffers, params={name: each for name, each in draw.params.items() if name in used})
