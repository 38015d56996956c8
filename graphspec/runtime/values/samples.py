"""Inputs nobody gave: made as the spec's `sample` says, reproducibly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphspec import spec as language
from graphspec.errors import InputError
from graphspec.numbers import default_of
from graphspec.runtime.values.files import read_tensor
from graphspec.runtime.values.inputs import exact_cast
from graphspec.runtime.values.trees import mapped

#: From here on another value is looked for nearer to zero: the dtype of a copy may hold nothing above.
_LARGE = 127


def sample(buffer: language.Buffer, shape: tuple[int, ...], generator: torch.Generator, folder: Path) -> torch.Tensor:
    """A CPU tensor of ``shape`` for an input buffer. Floats default to normal, everything else to zero."""
    dtype: torch.dtype = getattr(torch, str(buffer.dtype))
    how = buffer.sample
    if how is None:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, generator=generator, dtype=_drawn(dtype)).to(dtype)
        return torch.zeros(shape, dtype=dtype)
    match how.kind:
        case "normal":
            mean, std = how.value or (0.0, 1.0)
            return (torch.randn(shape, generator=generator, dtype=_drawn(dtype)) * std + mean).to(dtype)
        case "uniform":
            low, high = how.value or (0.0, 1.0)
            drawn = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
            return drawn.to(dtype)
        case "randint":
            low, high = how.value
            return torch.randint(low, high, shape, generator=generator).to(dtype)
        case "value":
            return _expanded(torch.tensor(how.value, dtype=dtype), shape, buffer.name)
        case "make":
            raise AssertionError("the function is the caller's to call")
        case "file":
            return _expanded(_of_dtype(read_tensor(folder / how.value, buffer.name), buffer), shape, buffer.name)


def checked_sample(buffer: language.Buffer, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """What the function of one input gave, under the rule for what a caller gives: a tensor of this shape and dtype."""
    if not isinstance(value, torch.Tensor) or value.shape != shape:
        came = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise InputError(f"the sample of '{buffer.name}' is a tensor of shape {list(shape)}, and {came} came")
    return _of_dtype(value, buffer)


def _of_dtype(value: torch.Tensor, buffer: language.Buffer) -> torch.Tensor:
    """What a sample file holds, under the rule for what a caller gives: the dtype is exact, unless `cast`."""
    dtype: torch.dtype = getattr(torch, str(buffer.dtype))
    if value.dtype == dtype:
        return value
    cast = exact_cast(value, dtype) if buffer.cast else None
    if cast is None:
        why = "casting would change values" if buffer.cast else f"and the file holds {value.dtype}"
        message = f"the sample of '{buffer.name}' takes {dtype}, {why}"
        hint = f"save it as {dtype}" + (
            "" if buffer.cast else ", or declare cast: true for casts that keep every value"
        )
        raise InputError(message, hint=hint)
    return cast


def _expanded(value: torch.Tensor, shape: tuple[int, ...], name: str) -> torch.Tensor:
    """One value for all, or the leading part of a value that is large enough."""
    if value.dim() == 0:
        return value.expand(shape).clone()
    if value.dim() != len(shape) or any(have < want for have, want in zip(value.shape, shape, strict=True)):
        message = f"buffer '{name}': the sample has the shape {list(value.shape)}, and {list(shape)} is wanted"
        raise InputError(message)
    return value[tuple(slice(0, size) for size in shape)].clone()


def _drawn(dtype: torch.dtype) -> torch.dtype:
    """The dtype to draw in: random kernels do not exist for every small float."""
    return dtype if dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128) else torch.float32


def default_param(param: language.Param, shape: tuple[int, ...]) -> Any:
    """The value a param has when none was given.

    See `default_of`; a scalar fills the shape. A spec that passed the rules has such a value.
    """
    value = default_of(param)
    if value is None:
        raise InputError(f"param '{param.name}' must be given: its bounds and choices allow no default")
    if param.type == "float":
        value = mapped(value, float)
    return value if isinstance(value, list) else filled(shape, value)


def alternative_param(param: language.Param, value: Any, largest: Mapping[str, int]) -> Any:
    """Another value within the range of a param, item by item; the same where there is no other."""
    if isinstance(value, list):
        return mapped(value, lambda item: alternative_param(param, item, largest))
    if param.choices:
        return next((choice for choice in param.choices if choice != value), value)
    if param.type == "bool":
        return not value
    if param.type == "str":
        return f"{value}'"
    low = largest[param.min] if isinstance(param.min, str) else param.min
    high = largest[param.max] if isinstance(param.max, str) else param.max
    if not math.isfinite(value):
        value = default_of(replace(param, default=None, choices=None, min=low, max=high)) or 0.0
        return float(value)
    step = 1 if param.type == "int" else 0.4375 + abs(value) / 2  # exact in binary, and no power of an earlier value
    further, nearer = (value + step, value - step) if value >= 0 else (value - step, value + step)
    tried = (nearer, further) if abs(value) >= _LARGE else (value + step, value - step)
    for other in (*tried, high, low):
        if other is not None and other != value and (low is None or other >= low) and (high is None or other <= high):
            return int(other) if param.type == "int" else float(other)
    return value


def probes(param: language.Param, value: Any, largest: Mapping[str, int]) -> list[Any]:
    """Many values within the range of a param: its ends, and near and far from ``value``; all items move together."""
    if param.type == "bool":
        return [alternative_param(param, value, largest)]
    if param.type == "str":
        return list(param.choices or ())
    ends = [largest[end] if isinstance(end, str) else end for end in (param.min, param.max)]
    low, high = (float("-inf") if ends[0] is None else ends[0]), (float("inf") if ends[1] is None else ends[1])
    moves = [sign * step for step in (*range(1, 9), 16, 64, 256, 1024) for sign in (1, -1)]
    kind = int if param.type == "int" else float
    tried = list(param.choices or ()) or [
        mapped(value, lambda part, move=move: kind(min(max(part + move, low), high)))  # type: ignore[misc]
        for move in moves
    ]
    return [one for number, one in enumerate(tried) if one != value and one not in tried[:number]]


def filled(shape: tuple[int, ...], value: Any) -> Any:
    """A nested list of ``shape`` with ``value`` everywhere; the value itself for the empty shape."""
    return [filled(shape[1:], value) for _ in range(shape[0])] if shape else value
