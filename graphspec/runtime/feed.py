"""What each step of a `run` is given: fresh samples, what the command line fixed, and params that really change."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from graphspec import spec as language
from graphspec.plan import Plan, Sequence, concrete
from graphspec.runtime.cases import Case
from graphspec.runtime.inputs import InputCheck, ParamCheck
from graphspec.runtime.model import largest_sizes
from graphspec.runtime.samples import alternative_param

#: How many graphs a specialized param may add during a check.
_SPECIAL_VALUES = 3


@dataclass(frozen=True)
class Fixed:
    """Inputs, params and sizes that are the same at every step. ``sizes`` also has those that inputs and params show."""

    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


class Sampler(Protocol):
    """The part of a runner that makes inputs."""

    def sample(self, sequence: str, sizes: Mapping[str, int] | None, seed: int) -> dict[str, Any]:
        """Inputs and params of a sequence, as the spec says."""


def fix(
    spec: language.Spec,
    plan: Plan,
    inputs: Mapping[str, torch.Tensor],
    params: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Fixed:
    """Check given values against the spec, before anything is captured, and find the sizes they show.

    Raises InputError naming the value, what was expected and what came.
    """
    shown = {dim: (size, f"--dim {dim}") for dim, size in sizes.items()}
    checked = {name: InputCheck(spec.buffers[name], plan.constants)(value, shown) for name, value in inputs.items()}
    values = {
        name: ParamCheck(spec.params[name], largest_sizes(spec), plan.constants)(value, shown)
        for name, value in params.items()
    }
    return Fixed(checked, values, {dim: size for dim, (size, _) in shown.items()})


class Feed:
    """The inputs and params of every step."""

    def __init__(self, runner: Sampler, spec: language.Spec, plan: Plan, fixed: Fixed) -> None:
        self.fixed = fixed
        self._runner = runner
        self._spec = spec
        self._constants = plan.constants
        self._largest = largest_sizes(spec)

    def __call__(self, sequence: Sequence, case: Case, step: int) -> dict[str, Any]:
        """Sampled anew from the spec's seed and the step; fixed ones as they are.

        A param that nobody fixed keeps its default at step 0 and then changes: one that a graph froze would go
        unnoticed.
        """
        sizes = dict(case.sizes)
        values = self._runner.sample(sequence.name, sizes, self._spec.seed + step)
        drawn = random.Random(f"{self._spec.seed}/{sequence.name}/{step}")  # noqa: S311  no secrets
        for name in sequence.params:
            if step and name in values:
                param = self._spec.params[name]
                shape = concrete(param.shape, {**self._constants, **sizes})
                values[name] = _changed(values[name], param, shape, self._largest, drawn)
        given = {**self.fixed.inputs, **self.fixed.params}
        return {**values, **{name: given[name] for name in (*sequence.inputs, *sequence.params) if name in given}}


def _changed(
    default: Any, param: language.Param, shape: tuple[int, ...], largest: Mapping[str, int], drawn: random.Random
) -> Any:
    """Another value the spec allows, element by element; a specialized param has its choices and nothing else."""
    if shape:
        return [_changed(item, param, shape[1:], largest, drawn) for item in default]
    if param.choices:
        return drawn.choice(param.choices[:_SPECIAL_VALUES] if param.specialize else param.choices)
    if param.specialize or param.type == "str":
        return default
    low, high = (largest[end] if isinstance(end, str) else end for end in (param.min, param.max))
    if low is None or high is None:
        return drawn.choice((default, alternative_param(param, default, largest)))
    return drawn.randint(int(low), int(high)) if param.type == "int" else drawn.uniform(low, high)


def cloned(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with memory of their own: a run may write to its inputs."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
