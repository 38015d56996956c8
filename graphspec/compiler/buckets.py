"""Which combinations of sizes are captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING

from graphspec.spec import Buckets, Spec

if TYPE_CHECKING:
    from graphspec.plan import Bucket


def bucketed_dims(spec: Spec) -> dict[str, Buckets]:
    """The dims with several sizes, in declared order."""
    return {name: dim for name, dim in spec.dims.items() if isinstance(dim, Buckets)}


def bucket_list(spec: Spec) -> tuple[Bucket, ...]:
    """The product of all bucketed dims, or the listed combinations; largest first, ties in declared order."""
    from graphspec.plan import Bucket  # late: `validate` of most specs needs no plan

    dims = bucketed_dims(spec)
    combinations: Iterable[Mapping[str, int]]
    if spec.buckets is None:
        combinations = (dict(zip(dims, sizes, strict=True)) for sizes in product(*(dim.sizes for dim in dims.values())))
    else:
        combinations = spec.buckets
    listed = (Bucket(tuple((dim, sizes[dim]) for dim in dims if dim in sizes)) for sizes in combinations)
    return tuple(sorted(dict.fromkeys(listed), key=lambda bucket: -bucket.elements))


def projections(buckets: Iterable[Bucket], dims: Iterable[str]) -> tuple[Bucket, ...]:
    """The distinct buckets something that depends only on ``dims`` can see, fewest elements first."""
    seen = dict.fromkeys(bucket.project(dims) for bucket in buckets)
    return tuple(sorted(seen, key=lambda bucket: bucket.elements))
