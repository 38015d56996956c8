"""Outputs that lie in memory which is not the region's own: a value or an input passed through, or a view of it.

For the pool rule such an output is a value of the region that returns it, so the hold of its memory is extended to its
last reader. What the rule cannot see is its maker replayed again before that reader, or the next run's input in the
place of this one's: the memory then holds a new value, and eager would still have the old one.
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
    roles = {name: buffer.role for name, buffer in context.plan.buffers.items()}
    known = {**context.buffers.input_storages, **origins}
    for name, tree in trees.items():
        found = {known.get(leaf.untyped_storage()._cdata) for leaf in tree.leaves}
        for origin in sorted(each for each in found if each is not None and roles.get(each) != "state"):
            maker = None if roles.get(origin) == "input" else makers.get(origin, region)
            if maker == region:
                continue
            yield from _finding(context, region, name, (origin, maker))


def _finding(context: Context, region: str, value: str, origin: tuple[str, str | None]) -> Iterator[Diagnostic]:
    name, maker = origin
    readers = [_late_reader(context.plan, each, region, value, maker) for each in context.plan.sequences.values()]
    reader = next((each for each in readers if each is not None), None)
    layout = context.plan.buffers.get(value)
    buffer = layout.declared if layout is not None else None
    hint = f"return {value}.clone() from region '{region}'"
    anew = (
        f"region '{maker}' may have made that anew" if maker is not None else "another run may have brought a new one"
    )
    if reader is not None:
        message = f"region '{reader}' reads '{value}', which lies in the memory of '{name}', after {anew}"
        yield Diagnostic("GS729", message, hint=hint)
    elif maker is None and buffer is not None and buffer.role == "output" and not buffer.copy and not buffer.static:
        message = (
            f"the result '{value}' is lent (copy: false), and lies in the input '{name}', which the next run overwrites"
        )
        yield Diagnostic("GS729", message, hint=f"{hint}, or remove `copy: false`")


def _late_reader(plan: Plan, sequence: Sequence, region: str, value: str, maker: str | None) -> str | None:
    """The first step that reads ``value`` although ``maker`` ran since ``region`` last returned it; None: the caller.

    Before the sequence begins, other sequences may have run: nothing is known to be fresh.
    """
    fresh = False
    for step in sequence.steps:
        if not fresh and any(wire.value == value for wire in plan.regions[step].reads):
            return step
        fresh = step == region or (fresh and step != maker)
    return None
