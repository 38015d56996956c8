"""Where the numbers that captured regions are given go: found by running the regions once more on symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphspec.errors import CaptureError, Diagnostic
from graphspec.plan import Bucket, Event
from graphspec.runtime.hazards import TraceEnded
from graphspec.runtime.holdings.storages import quiet
from graphspec.runtime.opened.context import Context
from graphspec.runtime.rehearsal.calls import PassValues
from graphspec.runtime.rehearsal.observation import Rehearsal, Skipped
from graphspec.runtime.rehearsal.rehearser import Rehearser
from graphspec.runtime.symbols import Passed, Stages, SymbolTracer, Target, plain
from graphspec.runtime.values.samples import probes


class ParamSymbols:
    """Traces the params of every bucket, and keeps what was passed where for the comparison with a second run."""

    def __init__(self, context: Context, rehearser: Rehearser) -> None:
        self._context = context
        self._rehearser = rehearser
        self._passed: dict[tuple[str, Bucket], list[Passed]] = {}

    def trace(self, events: Sequence[Event], run: Rehearsal) -> list[tuple[str, Diagnostic]]:
        """Findings, with their region, for the regions that ``run`` has judged and that returned."""
        returned = [each for each in run.observations() if each.ended is None]
        targets = []
        for event in events:
            seen = next((each for each in returned if each.region == event.region), None)
            if event.new and seen is not None and (params := self._numbers(event.region)):
                declared = self._context.plan.regions[event.region].declared
                targets.append(Target(event, declared, params, seen.recording))
        if not targets:
            return []
        failed = {each.region for each in run.seen if isinstance(each, Skipped) or each.ended is not None}
        callable_ = [e for e in events if e.region in self._context.regions and e.region not in failed]
        world = self._rehearser.world
        with world.entered():
            tracer = SymbolTracer(
                self._stages(callable_, run), run.params, self._context.plan.largest, self._rehearser.names
            )
            judged = tracer.findings(targets, self.probes(run.params))
        self._rehearser.calls.rewind()
        found = []
        for target, each in judged:
            self._passed.setdefault((target.step.region, target.step.bucket), []).extend(each.passed)
            found += [(target.step.region, finding) for finding in each.findings]
        return list(dict.fromkeys(found))

    def passed(self, event: Event) -> Sequence[Passed]:
        """What a trace of a region left to be seen in a second run."""
        return self._passed.get((event.region, event.bucket), ())

    def probes(self, params: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Further values of each param within its range."""
        plan = self._context.plan
        return {name: probes(plan.params[name], value, plan.largest) for name, value in params.items()}

    def _stages(self, events: Sequence[Event], run: Rehearsal) -> Stages[Event]:
        rehearser = self._rehearser
        values: list[PassValues] = []

        def start() -> None:
            rehearser.calls.rewind()
            values[:] = [rehearser.calls.start(run.bucket, number=1)]

        def call(event: Event, given: Mapping[str, Any]) -> None:
            (at,) = values
            try:
                with quiet():  # the trace is of the region's own operators
                    rehearser.calls.give(event, at)
                outputs = rehearser.calls.call(event, at, given)
            except TraceEnded as ended:
                raise CaptureError(f"region '{event.region}' needs a value") from ended
            at.env.update({name: plain(value) for name, value in outputs.items()})

        return Stages(events, start, call)

    def _numbers(self, region: str) -> tuple[Any, ...]:
        """The params that a region is given and that symbols can follow."""
        taken = self._rehearser.calls.taken(region)
        return tuple(p for name, p in self._context.plan.params.items() if name in taken and p.type != "str")
