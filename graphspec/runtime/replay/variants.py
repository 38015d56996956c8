"""The captured graphs of an opened spec, one set for each variant, and what is checked before they are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphspec.backends.updates import specialized
from graphspec.errors import HazardError
from graphspec.finding import placed
from graphspec.plan import Variant
from graphspec.runtime.capture.graphs import capture_graphs
from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.holdings.storages import outside_inference
from graphspec.runtime.opened.context import CapturedRegion, Context, GraphSet, Progress, variant_of
from graphspec.runtime.replay.guarding import guard_for
from graphspec.runtime.values.memory import Memory

#: How many sets of graphs are kept for values of specialized params and absent optional inputs.
VARIANTS = 16


class Variants:
    """Sets of graphs, captured when they are first asked for. ``forget`` is called when graphs have gone."""

    def __init__(self, context: Context, memory: Memory, progress: Progress | None = None) -> None:
        self._context = context
        self._memory = memory
        self._progress = progress
        self._sets: dict[Variant, GraphSet] = {}
        self._guards: dict[Variant, Guard] = {}
        self.forget: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[GraphSet]:
        return iter(self._sets.values())

    def graphs(self, variant: Variant) -> GraphSet:
        """The graphs of a variant; captured now if they are not there. The oldest of many are dropped."""
        graphs = self._sets.get(variant)
        if graphs is None:
            graphs = self._captured(variant)
            if len(self._sets) >= VARIANTS:
                self._drop(next(iter(self._sets)))
            self._guards[variant] = guard_for(self._context, graphs)
            self._sets[variant] = graphs
        return graphs

    def check(self, variant: Variant) -> None:
        """Raise GuardError if anything the graphs of a variant read by address was moved since their capture."""
        self._guards[variant].check()

    def guards(self) -> list[Guard]:
        """What is checked before the replays of each variant."""
        return list(self._guards.values())

    def first(self) -> Variant:
        """The variant of a run that gives every input and leaves every param at its default."""
        context = self._context
        params = context.default_params(context.plan.buckets[0], {})
        used = {name for sequence in context.plan.sequences.values() for name in sequence.params}
        special = specialized(context.plan, context.backend.can_update) & used
        return variant_of((), {name: params[name] for name in context.plan.params if name in special})

    def recapture(self) -> None:
        """Capture every variant anew, over the tensors the model has now; states that it owns are found anew too."""
        variants = list(self._sets)
        self.clear()
        self._context.buffers.adopt_anew()
        for variant in variants:
            self.graphs(variant)

    def clear(self) -> None:
        """Give the memory of all graphs back."""
        for variant in list(self._sets):
            self._drop(variant)

    def all_regions(self) -> Iterator[CapturedRegion]:
        """Every captured graph, in capture order."""
        return (captured for graphs in self for captured in graphs.regions.values())

    def _captured(self, variant: Variant) -> GraphSet:
        try:
            with outside_inference():
                return capture_graphs(self._context, variant, self._progress)
        except HazardError as error:
            found = [placed(self._context.plan.document, each) for each in error.diagnostics]
            raise type(error)(found) from error.__cause__

    def _drop(self, variant: Variant) -> None:
        graphs = self._sets.pop(variant)
        del self._guards[variant]
        for forget in self.forget:
            forget()
        self._memory.leave(captured.homes for captured in graphs.regions.values())
        graphs.release(self._context.backend)
