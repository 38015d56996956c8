"""Which axes of a tensor stand for a bucketed dim: what is cut off a padded result, and pasted into a padded copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from graphspec import spec as language
from graphspec.errors import OrderError
from graphspec.plan import Bucket


@dataclass(frozen=True)
class Axes:
    """``scaled`` maps an axis to the (dim, factor) it stands for. ``unknown``: nobody declared it, nothing shows it."""

    scaled: Mapping[int, tuple[str, int]]
    unknown: bool = False

    @classmethod
    def declared(cls, shape: language.Shape) -> Axes:
        """The axes of a declared shape."""
        return cls({i: (axis.dim, axis.factor) for i, axis in enumerate(shape) if isinstance(axis, language.DimSize)})

    @classmethod
    def seen(cls, shapes: Sequence[tuple[Bucket, torch.Size]]) -> Axes:
        """The axes of an undeclared value, from its shape in each bucket it was captured at.

        An axis is a dim's if it was a fixed multiple of that dim in every bucket, and of no other dim. Buckets that
        are alike in a dim say nothing about it: then the axes are unknown.
        """
        dims = [dim for dim, _ in shapes[0][0].sizes]
        if not dims:
            return cls({})
        varying = [dim for dim in dims if len({bucket[dim] for bucket, _ in shapes}) > 1]
        scaled: dict[int, tuple[str, int]] = {}
        for axis in range(len(shapes[0][1])):
            sizes = [shape[axis] for _, shape in shapes]
            if len(set(sizes)) == 1:
                continue
            fits = [
                dim
                for dim in varying
                if len({size / bucket[dim] for size, (bucket, _) in zip(sizes, shapes, strict=True)}) == 1
            ]
            if len(fits) != 1:
                return cls({}, unknown=True)
            factor, rest = divmod(sizes[0], shapes[0][0][fits[0]])
            if rest:
                return cls({}, unknown=True)
            scaled[axis] = (fits[0], factor)
        return cls(scaled, unknown=len(varying) < len(dims))


def cut(tensor: torch.Tensor, axes: Axes, sizes: Mapping[str, int], name: str) -> torch.Tensor:
    """The real part of a padded tensor, as a view.

    Raises OrderError if nobody said which axes are padded.
    """
    if axes.unknown:
        message = f"'{name}' cannot be cut back to the real size: nothing says which of its axes are padded"
        raise OrderError(message, hint=f"declare its shape under buffers: {name}: {{role: output, shape: [...]}}")
    for axis, (dim, factor) in axes.scaled.items():
        if dim in sizes:
            tensor = tensor.narrow(axis, 0, factor * sizes[dim])
    return tensor


def paste(static: torch.Tensor, value: torch.Tensor, name: str, bucket: Bucket, sizes: Mapping[str, int]) -> None:
    """Copy a value of real size into static memory of padded size; the rest becomes zero.

    An axis may be smaller only as a bucketed dim is smaller in this run: by ``sizes`` for ``bucket``.
    Raises OrderError if the value does not fit, or has another dtype.
    """
    if static.shape == value.shape and static.dtype == value.dtype:
        static.copy_(value)
        return
    fits = value.dim() == static.dim() and all(
        have == want or any(have * size == want * sizes.get(dim, size) for dim, size in bucket.sizes)
        for have, want in zip(value.shape, static.shape, strict=True)
    )
    if not fits or static.dtype != value.dtype:
        message = (
            f"'{name}' is {list(value.shape)} {value.dtype}, and the graphs that read it were captured with "
            f"{list(static.shape)} {static.dtype}"
        )
        raise OrderError(message, hint="an eager region must return the same shapes and dtypes at the same sizes")
    static.zero_()
    static[tuple(slice(0, size) for size in value.shape)].copy_(value)
