"""What `run` works on: an opened runner, what its runs carry over, what they are given, and its random streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from graphspec.plan import Plan
from graphspec.runtime.padding.cases import Case, cases
from graphspec.runtime.trial.feed import Feed, Fixed
from graphspec.runtime.verify.bench import Bench, Fills, Values, cloned
from graphspec.runtime.verify.carried import Carried, written_by
from graphspec.runtime.verify.compare import Tolerance

if TYPE_CHECKING:
    from graphspec.runtime.replay.sequence import BoundSequence
    from graphspec.runtime.runner import Runner

#: Called with what is going on, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Subject:
    """What is checked and timed: a runner, what its runs carry over, what they are given, and its random streams."""

    runner: Runner
    carried: Carried
    feed: Feed
    generators: tuple[torch.Generator, ...] = ()

    def bench(self, sequence: BoundSequence, values: Values) -> Bench:
        """A sequence to be run again and again, its graphs on poisoned memory.

        A loop around inline regions may take another way with other inputs: what it writes with ``values`` counts too.
        """

        def replay(values: Values, fills: Fills | None) -> dict[str, Any]:
            self.runner.poison()
            return sequence.run(values, fills)

        carried = self.carried
        if self.runner.inline is not None:
            carried = carried.joined(*written_by(self.runner.model, [lambda: sequence.eager(cloned(values))]))
        return Bench(replay, sequence.eager, carried, self.generators)

    def tolerance(self, case: Case) -> Tolerance:
        """What the spec allows between a replay and eager, which runs at the real sizes."""
        return Tolerance.of(self.runner.plan.check, resized=case.padded)

    def cases(self, sequence: BoundSequence) -> tuple[Case, ...]:
        """The runs of a sequence that are worth checking; see `cases.cases`."""
        return cases(sequence.plan, self.feed.fixed.sizes, self.runner.plan.exact)

    def largest(self, sequence: BoundSequence) -> Case:
        """The run that is reported and timed: at the fixed sizes, the others as large as they can be."""
        return largest(self.runner.plan, self.feed.fixed, sequence)


def largest(plan: Plan, fixed: Fixed, sequence: BoundSequence) -> Case:
    """The first of a sequence's cases."""
    return cases(sequence.plan, fixed.sizes, plan.exact)[0]
