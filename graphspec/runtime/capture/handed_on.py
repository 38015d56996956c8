"""Outputs that lie in memory another region made: a value passed through, or a view of it.

For the pool rule such an output is a value of the region that returns it, so the hold of its memory is extended to its
last reader. What the rule cannot see is its maker replayed again before that reader: the memory then holds a new value,
and eager would still have the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphspec.errors import Diagnostic
from graphspec.plan import Plan, Sequence
from graphspec.runtime.context import Context
from graphspec.runtime.values.trees import Tree


def overtaken(
    context: Context, region: str, trees: Mapping[str, Tree], origins: Mapping[int, str]
) -> Iterator[Diagnostic]:
    """Findings for outputs of ``region`` that some sequence reads after their memory was made anew.

    ``origins`` says which value a storage belongs to, of those made before this region.
    """
    plan = context.plan
    makers = {value: other.name for other in plan.regions.values() for value in other.outputs}
    states = {name for name, buffer in context.spec.buffers.items() if buffer.role == "state"}
    for name, tree in trees.items():
        found = {origins.get(leaf.untyped_storage()._cdata) for leaf in tree.leaves}
        for origin in sorted(each for each in found if each is not None and each not in states):
            maker = makers.get(origin, region)
            if maker == region:
                continue
            for sequence in plan.sequences.values():
                reader = _late_reader(plan, sequence, region, name, maker)
                if reader is not None:
                    yield Diagnostic(
                        "GS729",
                        f"region '{reader}' reads '{name}', which lies in the memory of '{origin}', after region "
                        f"'{maker}' may have made that anew",
                        hint=f"return {name}.clone() from region '{region}'",
                    )
                    break


def _late_reader(plan: Plan, sequence: Sequence, region: str, value: str, maker: str) -> str | None:
    """The first step that reads ``value`` although ``maker`` ran since ``region`` last returned it.

    Before the sequence begins, other sequences may have run: nothing is known to be fresh.
    """
    fresh = False
    for step in sequence.steps:
        if not fresh and any(wire.value == value for wire in plan.regions[step].reads):
            return step
        fresh = step == region or (fresh and step != maker)
    return None
