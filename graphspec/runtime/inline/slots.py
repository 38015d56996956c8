"""Static memory for a tensor of given strides: what a caller gives is copied into it, and a graph reads it there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Landing:
    """A static buffer ``name``, and the tensor that a region reads in it.

    ``strides`` is None where that is the buffer itself, which is contiguous; else the buffer is flat, and holds all
    elements between the first and the last of the tensor.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Landing:
        """For tensors of exactly these strides."""
        own = None if _contiguous(shape, strides) else tuple(strides)
        return cls(name, tuple(shape), own, dtype)

    @classmethod
    def dense(cls, name: str, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Landing:
        """For tensors of any strides: these, where they leave no hole and share no element, else contiguous ones."""
        packed = 0 not in strides and _span(shape, strides) == math.prod(shape)
        return cls.of(name, shape, strides, dtype) if packed else cls(name, tuple(shape), None, dtype)

    @property
    def lying(self) -> tuple[int, ...]:
        """The shape of the buffer."""
        return self.shape if self.strides is None else (_span(self.shape, self.strides),)

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """The tensor, in the buffer."""
        return buffer if self.strides is None else buffer.as_strided(self.shape, self.strides)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as `Landing.of` lets it lie: itself, or all elements between its first and its last in one row."""
    tensor = tensor.detach()
    if _contiguous(tensor.shape, tensor.stride()):
        return tensor
    return tensor.as_strided((_span(tensor.shape, tensor.stride()),), (1,))


def _contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the first and the last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
