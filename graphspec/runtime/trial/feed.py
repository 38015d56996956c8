"""What each step of a `run` is given: fresh samples, what the command line fixed, and params that really change."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from graphspec import spec as language
from graphspec.errors import InputError
from graphspec.plan import Plan, Sequence, concrete, occurs
from graphspec.runtime.padding.cases import Case, cases
from graphspec.runtime.replay.request import SIZES
from graphspec.runtime.values.inputs import InputCheck, ParamCheck, copies_of
from graphspec.runtime.values.samples import alternative_param

#: How many graphs a specialized param may add during a check.
_SPECIAL_VALUES = 3
_LEFT_OUT = 0.5


@dataclass(frozen=True)
class Fixed:
    """Inputs, params and sizes that are the same at every step; ``sizes`` has those that inputs and params show."""

    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


class Sampler(Protocol):
    """The part of a runner that makes inputs. ``exemplary`` are the params whose values are to be left as they are."""

    @property
    def exemplary(self) -> frozenset[str]:
        """Those that fit other values."""

    def sample(self, sequence: str, sizes: Mapping[str, int] | None, seed: int) -> dict[str, Any]:
        """Inputs and params of a sequence, as the spec says."""


def fix(
    plan: Plan,
    inputs: Mapping[str, torch.Tensor],
    params: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Fixed:
    """Check given values against the spec, before anything is captured, and find the sizes they show.

    Raises InputError naming the value, what was expected and what came.
    """
    shown = {dim: (size, f"--dim {dim}") for dim, size in sizes.items()}
    checked = {
        name: InputCheck(plan.buffers[name].declared, plan.constants)(value, shown) for name, value in inputs.items()
    }
    values = {
        name: ParamCheck(plan.params[name], plan.largest, plan.constants, copies_of(plan, name))(value, shown)
        for name, value in params.items()
    }
    fixed = Fixed(checked, values, {dim: size for dim, (size, _) in shown.items()})
    for sequence in plan.sequences.values():
        _refuse_misfit(plan, sequence, fixed)
    return fixed


def _refuse_misfit(plan: Plan, sequence: Sequence, fixed: Fixed) -> None:
    """Refuse sizes that no bucket of a sequence holds, unless its regions go on without graphs."""
    regions = [plan.regions[step] for step in sequence.steps]
    if all(region.declared.on_miss == "eager" for region in regions if not region.eager):
        return
    (first, *_) = cases(sequence, fixed.sizes, plan.exact)
    if first.bucket is None:
        buckets = "; ".join(map(str, sequence.buckets))
        raise InputError(f"no bucket of sequence '{sequence.name}' holds {first}: they are {buckets}")


class Feed:
    """The inputs and params of every step."""

    def __init__(self, runner: Sampler, plan: Plan, fixed: Fixed) -> None:
        self.fixed = fixed
        self._runner = runner
        self._plan = plan
        self._constants = plan.constants
        self._largest = plan.largest

    def __call__(self, sequence: Sequence, case: Case, step: int) -> dict[str, Any]:
        """Sampled anew from the spec's seed and the step; fixed ones as they are.

        A param that nobody fixed keeps its default at step 0 and then changes: one that a graph froze would go
        unnoticed. From step 1 on, inputs that may be left out sometimes are.
        """
        sizes = dict(case.sizes)
        made = values = self._runner.sample(sequence.name, sizes, self._plan.seed + step)
        drawn = random.Random(f"{self._plan.seed}/{sequence.name}/{step}")  # noqa: S311  no secrets
        if step and drawn.random() < _LEFT_OUT:
            values = {name: value for name, value in values.items() if not self._may_be_absent(name)}
        for name in sequence.params:
            if step and name in values and name not in self._runner.exemplary:
                param = self._plan.params[name]
                shape = concrete(param.shape, {**self._constants, **sizes})
                values[name] = _changed(values[name], param, shape, self._largest, drawn)
        given = {**self.fixed.inputs, **self.fixed.params}
        values = self._occurring(sequence, values, made, drawn) | self._stated(sequence, sizes)
        return {**values, **{name: given[name] for name in (*sequence.inputs, *sequence.params) if name in given}}

    def _occurring(
        self, sequence: Sequence, values: dict[str, Any], made: Mapping[str, Any], drawn: random.Random
    ) -> dict[str, Any]:
        """The values, or where their combination does not occur, those of one that does."""
        plan = self._plan
        optional = [name for name in sequence.inputs if plan.buffers[name].declared.optional]
        special = {name: values[name] for name in sequence.params if plan.params[name].specialize}
        if occurs(plan.combinations, special, [name for name in optional if name not in values], optional):
            return values
        wanted = drawn.choice(plan.combinations)
        kept = {name: value for name, value in values.items() if name not in optional or wanted.get(name, True)}
        kept |= {name: made[name] for name in optional if wanted.get(name) and name in made}
        return kept | {name: value for name, value in wanted.items() if name in special}

    def _stated(self, sequence: Sequence, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The sizes of dims that nothing the run takes shows."""
        shapes = [self._plan.buffers[name].shape or () for name in sequence.inputs]
        shapes += [self._plan.params[name].shape for name in sequence.params]
        shown = {axis.dim for shape in shapes for axis in shape if isinstance(axis, language.DimSize)}
        stated = {dim: sizes[dim] for dim in sequence.dims if dim not in shown and dim in sizes}
        return {SIZES: stated} if stated else {}

    def _may_be_absent(self, name: str) -> bool:
        """Whether a run without this input is one too. A held one keeps its size, so it must have only one."""
        layout = self._plan.buffers.get(name)
        buffer = layout.declared if layout is not None else None
        if buffer is None or not (buffer.optional or buffer.hold):
            return False
        sized = (axis.dim for axis in buffer.shape or () if isinstance(axis, language.DimSize))
        return buffer.optional or all(dim in self._constants for dim in sized)


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
    if param.type == "int":
        return drawn.randint(int(low), int(high))
    part = drawn.random()  # not `uniform`, whose high - low may be infinite
    return float(min(max(low * (1 - part) + high * part, low), high))
