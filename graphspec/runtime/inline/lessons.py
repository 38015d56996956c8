"""What eager calls teach before a capture: who is called with what, in which order, and whose gradients come.

A lesson is one call; a pass is the calls from one to the first that belongs to the next: after a backward, or where a
module is called again whose first call of the pass leaves no gradient to wait for. A pass that begins as an earlier one
did is captured, if gradients came for that one where any were wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from graphspec.runtime.inline.arguments import Arguments
from graphspec.runtime.inline.signature import Signature
from graphspec.runtime.inline.slots import flat
from graphspec.runtime.values.trees import Tree, flatten

#: Which module, by its number, and the signature of its call.
Call = tuple[int, Signature]
#: How many unfinished passes are remembered.
MOST = 8


@dataclass(eq=False)
class Lesson:
    """One eager call. ``taken`` are its arguments as a tree, ``samples`` copies of its tensors as they lie in memory.

    ``strides`` has, for each tensor of its result that got a gradient, the strides of that. Not ``fit``: it cannot be
    captured.
    """

    module: int
    signature: Signature
    backward: bool
    taken: Tree
    samples: Sequence[torch.Tensor]
    objects: Sequence[Any]
    forms: list[tuple[tuple[int, ...], torch.dtype]] = field(default_factory=list)
    strides: dict[int, tuple[int, ...]] = field(default_factory=dict)
    fit: bool = True

    @property
    def call(self) -> Call:
        """What it was a call of."""
        return self.module, self.signature


@dataclass(eq=False)
class Pass:
    """Lessons in order, and those whose gradients came, in the order in which they did. ``times`` it was seen."""

    times: int = 1
    lessons: list[Lesson] = field(default_factory=list)
    backwards: list[Lesson] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Whether gradients are wanted and none have come."""
        return not self.backwards and any(lesson.backward for lesson in self.lessons)

    def learned(self, lesson: Lesson, number: int, gradient: torch.Tensor) -> None:
        """The gradient of result ``number`` of a lesson has come."""
        if lesson not in self.backwards:
            self.backwards.append(lesson)
        lesson.strides[number] = gradient.stride()

    def settled(self) -> Pass:
        """What of it can be captured: not calls whose results got no gradient when others did."""
        lessons = [each for each in self.lessons if each.fit and (not each.backward or each in self.backwards)]
        return Pass(self.times, lessons, [each for each in self.backwards if each.fit])


class School:
    """Follows the calls of all modules. ``known`` has, by its first call, the last pass that began with it."""

    def __init__(self) -> None:
        self.known: dict[Call, Pass] = {}
        self._now = Pass()

    def due(self, call: Call, times: int) -> Pass | None:
        """The pass that is to be captured now, since it begins again and was seen so often; it is forgotten."""
        found = self.known.get(call) if self._ends(call) else None
        if found is None or found.times < times or found.waits:
            return None
        settled = found.settled()
        if not settled.lessons:
            return None
        self.forget()
        return settled

    def learn(self, call: Call, given: Arguments, *, backward: bool) -> Lesson:
        """Begin the lesson of a call that is about to be made eagerly."""
        if self._ends(call):
            before = self.known.pop(call, None)
            self._now = self.known[call] = Pass(1 if before is None else before.times + 1)
            while len(self.known) > MOST:
                del self.known[next(iter(self.known))]
        with torch.no_grad():
            samples = [flat(leaf).clone() for leaf in given.leaves]
        taken = flatten((given.args, dict(given.kwargs)), opaque=True)
        lesson = Lesson(*call, backward, taken, samples, given.objects)
        self._now.lessons.append(lesson)
        return lesson

    def returned(self, lesson: Lesson, result: Any) -> None:
        """The end of a lesson: its results are watched for their gradients."""
        tree = flatten(result, opaque=True)
        lesson.forms = [(tuple(leaf.shape), leaf.dtype) for leaf in tree.leaves]
        # What it was given or holds, and gives back as it is, has no place in a graph of autograd of its own.
        lesson.fit = not any(leaf.requires_grad and leaf.grad_fn is None for leaf in tree.leaves)
        if not lesson.backward:
            return
        wanted = [(number, leaf) for number, leaf in enumerate(tree.leaves) if leaf.grad_fn is not None]
        lesson.backward = bool(wanted)
        for number, leaf in wanted:
            leaf.register_hook(partial(self._now.learned, lesson, number))

    def forget(self) -> None:
        """Forget everything: what was learned is captured, or is no longer so."""
        self.known.clear()
        self._now = Pass()

    def _ends(self, call: Call) -> bool:
        """Whether a call belongs to the next pass."""
        now = self._now
        if not now.lessons or now.backwards:
            return True
        return any(lesson.module == call[0] and not lesson.backward for lesson in now.lessons)
