"""What each named sequence takes and gives."""

from __future__ import annotations

from collections.abc import Mapping

from graphspec.compiler.buckets import bucketed_dims, projections
from graphspec.compiler.values import is_given, params_of, unnamed_inputs
from graphspec.plan import Bucket, Sequence
from graphspec.spec import Region, Spec, reads


def plan_sequences(spec: Spec, dims: Mapping[str, tuple[str, ...]], buckets: tuple[Bucket, ...]) -> dict[str, Sequence]:
    """Every sequence, in declared order."""
    everywhere = unnamed_inputs(spec)
    return {name: _sequence(spec, name, steps, dims, buckets, everywhere) for name, steps in spec.sequences.items()}


def _sequence(
    spec: Spec,
    name: str,
    steps: tuple[str, ...],
    dims: Mapping[str, tuple[str, ...]],
    buckets: tuple[Bucket, ...],
    everywhere: set[str],
) -> Sequence:
    regions = [spec.regions[step] for step in dict.fromkeys(steps)]
    used = {dim for region in regions for dim in dims[region.name]}
    ordered = tuple(dim for dim in bucketed_dims(spec) if dim in used)
    read = {value for region in regions for value in reads(region)} | everywhere
    params = {param for region in regions for param in params_of(spec, region)}
    return Sequence(
        name=name,
        steps=steps,
        dims=ordered,
        inputs=tuple(buffer.name for buffer in spec.buffers.values() if buffer.name in read and is_given(buffer)),
        params=tuple(param for param in spec.params if param in params),
        results=_results(spec, steps, regions),
        buckets=projections(buckets, ordered),
        loops=spec.loops.get(name, ()),
        max_pad=min((region.max_pad for region in regions if region.max_pad is not None), default=None),
    )


def _results(spec: Spec, steps: tuple[str, ...], regions: list[Region]) -> tuple[str, ...]:
    """The declared outputs the sequence makes, in declared order; with none, all its last region returns.

    What is declared to be an intermediate is never one of them.
    """
    made = {value for region in regions for value in region.outputs}
    declared = tuple(buffer.name for buffer in spec.buffers.values() if buffer.role == "output" and buffer.name in made)
    last = spec.regions[steps[-1]].outputs if steps else ()
    return declared or tuple(name for name in last if name not in spec.buffers or not spec.buffers[name].is_made)
