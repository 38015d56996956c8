"""What padded rows hold while it is proven that they reach nothing: different contents, finite and valid."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphspec import spec as language
from graphspec.runtime.values.trees import walk

#: Large, of both signs, and far from overflow even when a kernel squares it.
_LARGE = {torch.float16: 64.0, torch.bfloat16: 1e3}
_DEFAULT_LARGE = 1e4


def fills(
    buffers: Mapping[str, language.Buffer], shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, torch.Tensor]:
    """A content for each buffer, at these shapes; buffers whose padding is a mark (see `varies`) are left out."""
    made = {}
    for position, (name, shape) in enumerate(shapes.items()):
        generator = torch.Generator().manual_seed(seed * 7919 + position)
        if varies(buffers[name]):
            made[name] = _drawn(buffers[name], shape, generator)
    return made


def varies(buffer: language.Buffer) -> bool:
    """Whether padded rows of this buffer may hold something else than its `pad`.

    A `pad` that the buffer's own sample never draws marks the padded rows (a length of zero, minus infinity in a mask,
    slot -1): the model reads it to leave them out, so it stays. So do bools, which are masks.
    """
    dtype = getattr(torch, str(buffer.dtype))
    pad = 0 if buffer.pad is None else buffer.pad
    if dtype == torch.bool or isinstance(pad, str):
        return False
    if not (dtype.is_floating_point or dtype.is_complex):
        low, high = _range(buffer.sample)
        return low <= pad < high and high - low > 1
    match buffer.sample:
        case language.Sample("uniform", (low, high)) | language.Sample("uniform", [low, high]):
            return bool(low <= pad <= high)
        case language.Sample("value", value):
            return pad in set(walk(value))
        case _:
            return pad == 0


def _drawn(buffer: language.Buffer, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    dtype = getattr(torch, str(buffer.dtype))
    if dtype.is_floating_point or dtype.is_complex:
        size = torch.rand(shape, generator=generator, dtype=torch.float64) / 2 + 0.5
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return (size * sign * _LARGE.get(dtype, _DEFAULT_LARGE)).to(dtype)
    low, high = _range(buffer.sample)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def _range(sample: language.Sample | None) -> tuple[int, int]:
    """The integers [low, high) a sample draws from; empty where it does not say."""
    if sample is None or sample.kind not in ("randint", "uniform") or sample.value is None:
        return 0, 0
    low, high = sample.value
    return int(low), int(high)
