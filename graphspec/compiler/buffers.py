"""The one allocation of each static buffer, shared by all its buckets."""

from __future__ import annotations

import math

from graphspec.compiler.buckets import bucketed_dims
from graphspec.compiler.dims import shape_dims
from graphspec.plan import ITEM_BYTES, Bucket, BufferPlan, concrete
from graphspec.spec import Buffer, Constant, Free, Spec


def plan_buffers(spec: Spec, buckets: tuple[Bucket, ...]) -> dict[str, BufferPlan]:
    """Every buffer, in declared order, at the largest size of each of its dims.

    Each axis is as long as its largest bucket, also where no listed combination has them all at once: a state keeps
    row i in the same place in every bucket.
    """
    sizes = {name: dim.value for name, dim in spec.dims.items() if isinstance(dim, Constant)}
    for bucket in buckets:
        for dim, size in bucket.sizes:
            sizes[dim] = max(size, sizes.get(dim, 0))
    return {name: _buffer(buffer, tuple(bucketed_dims(spec)), sizes) for name, buffer in spec.buffers.items()}


def _buffer(buffer: Buffer, bucketed: tuple[str, ...], sizes: dict[str, int]) -> BufferPlan:
    named = shape_dims(buffer.shape or ())
    known = buffer.shape is not None and not any(isinstance(axis, Free) for axis in buffer.shape)
    largest = concrete(buffer.shape or (), sizes) if known else None
    item = ITEM_BYTES.get(buffer.dtype or "")
    return BufferPlan(
        name=buffer.name,
        role=buffer.role,
        dtype=buffer.dtype,
        shape=buffer.shape,
        dims=tuple(dim for dim in bucketed if dim in named),
        largest=largest,
        bytes=None if largest is None or item is None or buffer.attr is not None else math.prod(largest) * item,
        static=not buffer.is_made or buffer.static,
        source=buffer.source,
        declared=buffer,
    )
