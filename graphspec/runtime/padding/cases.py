"""Which sizes a run goes through, so that every bucket is seen full and, where it can be, padded."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from graphspec.plan import Bucket, Sequence, choose


@dataclass(frozen=True)
class Case:
    """Real sizes of one run and the bucket it takes; None where no bucket holds them."""

    sizes: tuple[tuple[str, int], ...]
    bucket: Bucket | None

    @property
    def padded(self) -> bool:
        """Whether the bucket adds rows."""
        return self.bucket is not None and self.sizes != self.bucket.sizes

    def __str__(self) -> str:
        sizes = ", ".join(f"{dim}={size}" for dim, size in self.sizes)
        return f"{sizes} in {self.bucket}" if self.padded else sizes


def cases(sequence: Sequence, fixed: Mapping[str, int], exact: Collection[str]) -> tuple[Case, ...]:
    """The runs of a sequence, from the largest bucket to the smallest: each at its own sizes, then padded.

    ``fixed`` sizes stay as they are; dims in ``exact`` are never padded. Where the fixed sizes fit no bucket there is
    one case without a bucket.
    """
    found = [
        case
        for bucket in reversed(sequence.buckets)
        for case in (_full(sequence, bucket, fixed, exact), _padded(sequence, bucket, fixed, exact))
        if case is not None
    ]
    if found:
        return tuple(dict.fromkeys(found))
    largest = {dim: max(bucket[dim] for bucket in sequence.buckets) for dim in sequence.dims}
    return (Case(tuple((dim, fixed.get(dim, largest[dim])) for dim in sequence.dims), None),)


def _full(sequence: Sequence, bucket: Bucket, fixed: Mapping[str, int], exact: Collection[str]) -> Case | None:
    sizes = tuple((dim, fixed.get(dim, size)) for dim, size in bucket.sizes)
    return _taken(sequence, bucket, sizes, exact)


def _padded(sequence: Sequence, bucket: Bucket, fixed: Mapping[str, int], exact: Collection[str]) -> Case | None:
    """The run with the most padding that still takes this bucket, if there is one."""
    choices = [list(_candidates(sequence, dim, size, fixed, exact)) for dim, size in bucket.sizes]
    dims = [dim for dim, _ in bucket.sizes]
    combined = [tuple(zip(dims, sizes, strict=True)) for sizes in itertools.product(*choices)]
    smaller = [sizes for sizes in combined if sizes != bucket.sizes]
    smaller.sort(key=lambda sizes: (sum(pair in bucket.sizes for pair in sizes), Bucket(sizes).elements))
    taken = (_taken(sequence, bucket, sizes, exact) for sizes in smaller)
    return next((case for case in taken if case is not None), None)


def _candidates(
    sequence: Sequence, dim: str, size: int, fixed: Mapping[str, int], exact: Collection[str]
) -> Iterator[int]:
    """Sizes of one dim to try: the smallest above the next smaller bucket, the largest below this one, and its own."""
    if dim in fixed or dim in exact:
        yield fixed.get(dim, size)
        return
    below = max((bucket[dim] for bucket in sequence.buckets if bucket[dim] < size), default=0)
    yield from dict.fromkeys((below + 1, max(size - 1, 1), size))


def _taken(
    sequence: Sequence, bucket: Bucket, sizes: tuple[tuple[str, int], ...], exact: Collection[str]
) -> Case | None:
    return Case(sizes, bucket) if choose(sequence, dict(sizes), exact) == bucket else None
