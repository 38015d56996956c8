"""Inputs and params of a run: the same for the same seed, alike in every bucket."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch

from random_models.language import concrete

#: Integer inputs are indices too: they hold 0 to 2.
INDICES = 3


def make_input(buffer: Mapping[str, Any], sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
    """A tensor for an input or a state at given sizes."""
    shape, dtype = concrete(buffer["shape"], sizes), getattr(torch, buffer["dtype"])
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, INDICES, shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)


def make_param(param: Mapping[str, Any], sizes: Mapping[str, int], rng: random.Random) -> Any:
    """A Python value within the range of a param."""
    if "choices" in param:
        return rng.choice(param["choices"])
    shape = concrete(param.get("shape", ()), sizes)
    return _nested(param, shape, rng)


def _nested(param: Mapping[str, Any], shape: tuple[int, ...], rng: random.Random) -> Any:
    if shape:
        return [_nested(param, shape[1:], rng) for _ in range(shape[0])]
    if param["type"] == "int":
        return rng.randint(param.get("min", 0), param.get("max", 3))
    return round(rng.uniform(param.get("min", -2.0), param.get("max", 2.0)), 3)
