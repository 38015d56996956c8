"""Which sets of graphs a spec leads to: one for each value of its specialized params, and each absence of an input."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from graphspec.compiler.values import params_of
from graphspec.numbers import default_of, is_within
from graphspec.spec import Param, Region, Spec, reads

if TYPE_CHECKING:
    from graphspec.plan import Variant

#: More sets of graphs than any device could hold: they are counted, and never listed.
MOST_VARIANTS = 4096


def plan_variants(spec: Spec) -> tuple[Variant, ...]:
    """Every variant that is known beforehand, the one with all defaults and inputs first; only that one of too many."""
    from graphspec.plan import Variant  # late: `validate` of most specs needs no plan

    values = {name: values_of(spec.params[name]) for name in sorted(specialized(spec))}
    first = Variant(special=tuple((name, each[0]) for name, each in values.items()))
    if _product(spec) > MOST_VARIANTS:
        return (first,)
    listed = product(*values.values(), _absences(spec))
    made = (Variant(absent, tuple(zip(values, chosen, strict=True))) for *chosen, absent in listed)
    return tuple(dict.fromkeys([first, *(each for each in made if _occurs(spec, each))]))


def _occurs(spec: Spec, variant: Variant) -> bool:
    """Whether a run of some sequence may be of this variant."""
    from graphspec.plan import occurs

    every = (_optional(spec, steps) for steps in spec.sequences.values())
    return not spec.variants or any(
        occurs(spec.variants, dict(variant.special), variant.absent, optional)
        for optional in every
        if variant.absent <= optional
    )


def unlisted(spec: Spec) -> tuple[str, ...]:
    """The specialized params of which only some values are known beforehand."""
    return tuple(name for name in sorted(specialized(spec)) if not _is_listed(spec.params[name]))


def count_variants(spec: Spec) -> int:
    """How many variants are known beforehand; of too many, how many there would be if each occurred."""
    count = _product(spec)
    return len(plan_variants(spec)) if spec.variants and count <= MOST_VARIANTS else count


def _product(spec: Spec) -> int:
    values = math.prod(len(values_of(spec.params[name])) for name in specialized(spec))
    sets = [optional for steps in spec.sequences.values() if (optional := _optional(spec, steps))]
    largest = max(map(len, sets), default=0)
    if values << largest > MOST_VARIANTS:
        return values << largest
    return values * len(_absences(spec))


def specialized(spec: Spec) -> set[str]:
    """The params of the sequences that have a set of graphs for each value.

    CUDA updates no argument of an operator, so what asks for `strategy: specialize` is among them there.
    """
    regions = [spec.regions[name] for steps in spec.sequences.values() for name in dict.fromkeys(steps)]
    used = {name for region in regions for name in params_of(spec, region)}
    found = {name for name in used if spec.params[name].specialize}
    if spec.device.startswith("cuda"):
        found |= {each.param for region in regions for each in region.updates if each.strategy == "specialize"}
    return {name for name in found if not spec.params[name].shape}


def _is_listed(param: Param) -> bool:
    return param.choices is not None or param.type == "bool"


def values_of(param: Param) -> list[Any]:
    """The values that are known beforehand, the default first, told apart as `Variant` tells them."""
    listed = param.choices if param.choices is not None else (False, True) if param.type == "bool" else ()
    low, high = (None if isinstance(bound, str) else bound for bound in (param.min, param.max))
    allowed = [default_of(param), *(value for value in listed if is_within(value, low, high))]
    if param.type == "float":  # as a run takes what it is given
        allowed = [float(value) for value in allowed if value is not None]
    return list({repr(value): value for value in allowed}.values()) or [None]


def _optional(spec: Spec, steps: tuple[str, ...]) -> frozenset[str]:
    """The inputs that a run of these steps may leave out."""
    regions: list[Region] = [spec.regions[name] for name in dict.fromkeys(steps)]
    names = {name for region in regions for name in reads(region)}
    return frozenset(each.name for each in spec.buffers.values() if each.optional and each.name in names)


def _absences(spec: Spec) -> list[frozenset[str]]:
    """The sets of inputs that some run may leave out, each once: fewer first, then by name."""
    sets = {
        frozenset(absent)
        for steps in spec.sequences.values()
        for optional in [_optional(spec, steps)]
        for count in range(len(optional) + 1)
        for absent in combinations(sorted(optional), count)
    }
    return sorted(sets or {frozenset[str]()}, key=lambda each: (len(each), sorted(each)))
