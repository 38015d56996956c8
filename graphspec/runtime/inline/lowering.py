"""A pass to an ordinary spec, and that to a plan: forwards in the order of their calls, backwards as gradients came.

What a forward saved is a value of its own that its backward reads, so spans, pools and the order of capture are those
of any other spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from graphspec.compiler import compile_spec
from graphspec.plan import Plan
from graphspec.runtime.inline.lessons import Lesson, Pass
from graphspec.runtime.inline.slots import Landing
from graphspec.spec import Buffer, Model, Name, Region, Spec

#: What an inline region hands to the caller, and what its backward finds and gives.
RESULT, SAVED, GRADIENTS = "result", "saved", "gradients"


@dataclass(frozen=True)
class TaughtCall:
    """One call of a pass as a region. ``gradients`` are the slots of its results that get one, by number."""

    lesson: Lesson
    name: str
    inputs: tuple[Landing, ...]
    gradients: dict[int, Landing]

    @property
    def backward(self) -> str:
        """The name of its backward."""
        return f"{self.name}, backward"

    def value(self, kind: str) -> str:
        """The name of one of its values."""
        return f"{self.name}: {kind}"


def parts_of(taught: Pass, names: Sequence[str]) -> list[TaughtCall]:
    """The calls of a pass; ``names`` are the regions, by the number of the module."""
    parts: list[TaughtCall] = []
    for lesson in taught.lessons:
        name, again = names[lesson.module], sum(other.module == lesson.module for other in taught.lessons[: len(parts)])
        name = f"{name} #{again + 1}" if again else name
        inputs = tuple(
            Landing.of(f"{name}: input {number}", form[0], form[1], form[2])
            for number, form in enumerate(lesson.signature.tensors)
        )
        gradients = {
            number: Landing.dense(
                f"{name}: gradient {number}", lesson.forms[number][0], strides, lesson.forms[number][1]
            )
            for number, strides in sorted(lesson.strides.items())
            if lesson.backward
        }
        parts.append(TaughtCall(lesson, name, inputs, gradients))
    return parts


def lowered(
    plan: Plan, taught: Pass, parts: Sequence[TaughtCall], regions: Sequence[str], calls: Sequence[str], pool: str
) -> Plan:
    """The plan of a pass, captured as ``plan`` says; ``regions`` of it and paths ``calls``, by number of the module."""
    made: dict[str, Region] = {}
    landings: list[Landing] = []
    for part in parts:
        declared, call = plan.regions[regions[part.lesson.module]].declared, calls[part.lesson.module]
        landings += [*part.inputs, *part.gradients.values()]
        made[part.name] = Region(
            part.name,
            call,
            tuple(Name(each.name) for each in part.inputs),
            outputs={part.value(RESULT): ""} | ({part.value(SAVED): ""} if part.lesson.backward else {}),
            warmup=declared.warmup,
            generators=declared.generators,
            hooks="allow",  # the caller has looked for them
        )
    by_lesson = {id(part.lesson): part for part in parts}
    for part in (by_lesson[id(lesson)] for lesson in taught.backwards):
        forward = made[part.name]
        reads = tuple(Name(name) for name in (part.value(SAVED), *(each.name for each in part.gradients.values())))
        made[part.backward] = Region(
            part.backward, forward.call, reads, outputs={part.value(GRADIENTS): ""}, warmup=forward.warmup,
            generators=forward.generators, hooks="allow",
        )  # fmt: skip
    spec = Spec(
        name=plan.name,
        model=Model(plan.model.factory, mode=plan.model.mode),
        regions=made,
        sequences={"inline": tuple(made)},
        device=plan.device,
        seed=plan.seed,
        buffers={each.name: Buffer(each.name, shape=each.lying, dtype=_dtype_name(each.dtype)) for each in landings},
        pools={pool: tuple(made)},  # of its own: what its forwards save is overwritten by no other pass
        capture=plan.capture,
        check=plan.check,
        npu=plan.npu,
    )
    return replace(compile_spec(spec), folder=plan.folder)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
