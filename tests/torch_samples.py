"""The sample inputs that torch has for its own tests, for the scripts that try every operator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

SEED = 1234


def samples_of(operator: Any, dtype: torch.dtype, count: int, *, requires_grad: bool = False) -> list[Any]:
    """The first of what ``operator.sample_inputs`` gives, which spends half its time on looking up the stack."""
    return list(islice(_seeded(operator.sample_inputs_func(operator, "cpu", dtype, requires_grad)), count))


def _seeded(given: Any) -> Iterator[Any]:
    """Each sample from the same seed, so that it does not depend on what was drawn for others."""
    given = iter(given)
    while True:
        torch.default_generator.manual_seed(SEED)
        random.seed(SEED)
        np.random.seed(SEED)  # noqa: NPY002  the generator that the samples use
        try:
            yield next(given)
        except StopIteration:
            return
