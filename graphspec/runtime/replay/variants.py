"""The captured graphs of an opened spec, one set for each variant, and what is checked before they are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphspec.errors import HazardError
from graphspec.finding import placed
from graphspec.plan import Variant
from graphspec.runtime.building.build import refuse_other_devices
from graphspec.runtime.capture.graphs import Asked, capture_graphs
from graphspec.runtime.holdings.guard import Guard
from graphspec.runtime.holdings.storages import outside_inference
from graphspec.runtime.opened.collections import no_full_collections
from graphspec.runtime.opened.context import CapturedRegion, Context, GraphSet, Progress, variant_of
from graphspec.runtime.replay.guarding import guard_for
from graphspec.runtime.replay.stats import Stats
from graphspec.runtime.values.memory import Memory

#: How many sets of graphs are kept for values that are not known beforehand.
VARIANTS = 16


class Variants:
    """Sets of graphs: those of `Plan.opened` from the start, others when a run asks for them, in a bounded cache.

    ``asked`` is what graphs are asked as they are captured; ``forget`` is called when graphs have gone.
    """

    def __init__(
        self, context: Context, memory: Memory, stats: Stats, progress: Progress | None = None,
        asked: Asked | None = None,
    ) -> None:  # fmt: skip
        self._context = context
        self._memory = memory
        self._stats = stats
        self._most = max(VARIANTS, len(context.plan.variants) + (VARIANTS if context.plan.unlisted else 0))
        self._progress = progress
        self.asked = asked
        self._sets: dict[Variant, GraphSet] = {}
        self._guards: dict[Variant, Guard] = {}
        self._released: list[Variant] = []
        self.forget: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[GraphSet]:
        return iter(self._sets.values())

    def graphs(self, variant: Variant) -> GraphSet:
        """The graphs of a variant; captured now if they are not there. The oldest of too many are dropped."""
        graphs = self._sets.get(variant)
        if graphs is not None:
            return graphs
        with no_full_collections():
            graphs = self._captured(variant)
            self._make_room(len(graphs.regions))
            self._guards[variant] = guard_for(self._context, graphs)
            self._sets[variant] = graphs
        return graphs

    def check(self, variant: Variant) -> None:
        """Raise GuardError if anything the graphs of a variant read by address was moved since their capture."""
        self._guards[variant].check()

    def guard(self, variant: Variant) -> Guard | None:
        """What `check` asks, for as long as these graphs are there (``forget``)."""
        return self._guards[variant]

    def guards(self) -> list[Guard]:
        """What is checked before the replays of each variant."""
        return list(self._guards.values())

    def opened(self) -> list[Variant]:
        """The variants that are captured before the first run, that of every default and input first."""
        first = self._context.first_variant()
        usual = dict(first.special)
        known = [
            variant_of(each.absent, {**usual, **{name: value for name, value in each.special if name in usual}})
            for each in self._context.plan.opened
        ]
        return list(dict.fromkeys([first, *known]))

    def recapture(self) -> None:
        """Capture every variant anew, over the tensors the model has now; states that it owns are found anew too."""
        self.release()
        self.capture()

    def release(self) -> None:
        """Give the memory of all graphs back, until `capture`."""
        self._released = list(dict.fromkeys([*self._released, *self._sets]))
        self.clear()

    def capture(self) -> None:
        """Capture what is there when a spec is opened, and what was released, over the tensors that the model has now.

        Of what was released, states that the model owns are found anew.
        """
        if self._released:
            self._context.buffers.adopt_anew(self._context.model)
            refuse_other_devices(self._context.model, self._context.device)
        for variant in self._released or self.opened():
            self.graphs(variant)
        self._released = []

    def clear(self) -> None:
        """Give the memory of all graphs back."""
        for variant in list(self._sets):
            self._drop(variant)

    def leave(self) -> None:
        """Other runners are about to use the pools: what outlives a run is moved out of them."""
        self._memory.leave(captured.homes for _, captured in self.all_regions())

    def all_regions(self) -> Iterator[tuple[Variant, CapturedRegion]]:
        """Every captured graph with its variant, in capture order."""
        return ((graphs.variant, captured) for graphs in self for captured in graphs.regions.values())

    def _make_room(self, coming: int) -> None:
        """Drop the oldest sets, as long as there are too many with one more of ``coming`` graphs."""
        most = self._context.plan.capture.max_graphs
        while self._sets:
            held = sum(len(graphs.regions) for graphs in self)
            if len(self._sets) < self._most and (most is None or held + coming <= most):
                return
            oldest = next(iter(self._sets))
            self._drop(oldest)
            self._stats.evictions += 1
            if self._stats.evictions == 1:
                self._context.warnings.append(
                    f"the graphs of {str(oldest) or 'the first variant'} made room for those of another: no more than "
                    f"{len(self._sets) + 1} sets are held; a run that needs them again captures them anew"
                )

    def _captured(self, variant: Variant) -> GraphSet:
        try:
            with outside_inference():
                return capture_graphs(self._context, variant, self._progress, self.asked)
        except HazardError as error:
            found = [placed(self._context.plan.document, each) for each in error.diagnostics]
            raise type(error)(found) from error.__cause__

    def _drop(self, variant: Variant) -> None:
        graphs = self._sets.pop(variant)
        del self._guards[variant]
        for forget in self.forget:
            forget()
        try:
            self._memory.leave(captured.homes for captured in graphs.regions.values())
        finally:
            graphs.release(self._context.backend)
