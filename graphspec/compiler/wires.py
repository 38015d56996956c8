"""Where each region finds what it reads, and what becomes of what it makes."""

from __future__ import annotations

from collections.abc import Mapping

from graphspec.compiler.values import is_held, is_static, is_written_back, made_values
from graphspec.plan import RegionPlan, Sequence, Wire
from graphspec.spec import Spec, reads


def plan_regions(
    spec: Spec, dims: Mapping[str, tuple[str, ...]], sequences: Mapping[str, Sequence]
) -> dict[str, RegionPlan]:
    """Every region, independent of the bucket, in declared order."""
    made = made_values(spec)
    pools = _pool_names(spec)
    returned = {name for sequence in sequences.values() for name in sequence.results}
    return {
        region.name: RegionPlan(
            name=region.name,
            eager=region.eager,
            pool=None if region.eager else pools[region.name],
            dims=dims[region.name],
            reads=tuple(_wire(spec, made, value) for value in reads(region)),
            outputs=tuple(region.outputs),
            results=tuple(name for name in region.outputs if name in returned),
            write_back=tuple(name for name in region.outputs if is_written_back(spec, name)),
            updates=region.updates,
            borrowed=tuple(name for name in region.outputs if name in returned and is_held(spec, name)),
            compiler=None if region.compile is None else region.compile.backend,
            declared=region,
        )
        for region in spec.regions.values()
    }


def _wire(spec: Spec, made: Mapping[str, str], value: str) -> Wire:
    producer = made.get(value)
    if value in spec.params:
        return Wire(value, "param")
    if producer is None or is_static(spec, value):
        return Wire(value, "buffer", producer)
    return Wire(value, "eager" if spec.regions[producer].eager else "graph", producer)


def _pool_names(spec: Spec) -> dict[str, str]:
    """The pool of every region: the group that lists it, or one of its own that bears its name."""
    grouped = {region: pool for pool, members in spec.pools.items() for region in members}
    return {name: grouped.get(name) or _own_pool(spec, name) for name in spec.regions}


def _own_pool(spec: Spec, region: str) -> str:
    """The region's name, unless a group of other regions is called that already."""
    return f"{region} (own)" if region in spec.pools else region
