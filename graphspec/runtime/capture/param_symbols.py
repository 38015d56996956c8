"""Where the numbers that captured regions are given go: found by running the regions once more on symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphspec.backends.updates import Binding
from graphspec.errors import Diagnostic
from graphspec.plan import Bucket, Event
from graphspec.recording.calls import Recording
from graphspec.recording.source import ModuleNames
from graphspec.runtime.capture.calls import Calls, Values
from graphspec.runtime.capture.eager_copies import EagerCopies
from graphspec.runtime.context import Context
from graphspec.runtime.symbols import Passed, Runs, Stages, SymbolTracer, Target, plain, second_run
from graphspec.runtime.values.samples import probes


class ParamSymbols:
    """Traces the params of every bucket, and keeps what was passed where for the comparison with the capture."""

    def __init__(self, context: Context, calls: Calls, copies: EagerCopies, names: ModuleNames) -> None:
        self._context = context
        self._calls = calls
        self._copies = copies
        self._names = names
        self._largest = context.plan.largest
        self._passed: dict[tuple[str, Bucket], list[Passed]] = {}

    def trace(
        self,
        bucket: Bucket,
        events: Sequence[Event],
        recordings: Mapping[tuple[str, Bucket], Recording],
        rewind: Callable[[], object],
    ) -> list[Diagnostic]:
        """Findings for the regions whose dry run is among ``recordings`` and whose graph is fresh in this pass."""
        targets = [target for event in events if (target := self._target(event, recordings)).params]
        if not targets:
            return []
        values: list[Values] = []

        def start() -> None:
            rewind()
            values[:] = [self._calls.start(bucket, run=1)]

        def run(event: Event, given: Mapping[str, Any]) -> None:
            (at,) = values
            outputs = self._calls.call(event, Values({**at.env, **given}, at.params))
            at.env.update({name: plain(value) for name, value in outputs.items()})
            if event.graph is None:
                self._copies.refresh(event, at.env)

        params = self._calls.params(bucket, run=1)
        tracer = SymbolTracer(Stages(events, start, run), params, self._largest, self._names)
        findings: list[Diagnostic] = []
        for target, judged in tracer.findings(targets, self._probes(params)):
            findings += judged.findings
            self._passed.setdefault((target.step.region, target.step.bucket), []).extend(judged.passed)
        return list(dict.fromkeys(findings))

    def compare(
        self,
        event: Event,
        recordings: tuple[Recording, Recording],
        params: tuple[Mapping[str, Any], Mapping[str, Any]],
        bindings: list[Binding],
    ) -> list[Diagnostic]:
        """What dry run and capture, on other params, show of arguments that symbols could not follow."""
        region, taken = self._context.plan.regions[event.region].declared, self._calls.taken(event)
        passed = self._passed.get((event.region, event.bucket), ())
        return second_run(Runs(region, recordings, params, taken, self._probes(params[0]), passed), bindings)

    def _target(self, event: Event, recordings: Mapping[tuple[str, Bucket], Recording]) -> Target[Event]:
        plan = self._context.plan
        dry = recordings.get((event.region, event.bucket))
        taken = self._calls.taken(event) if event.new and dry is not None else frozenset()
        params = tuple(p for name, p in plan.params.items() if name in taken and p.type != "str")
        return Target(event, plan.regions[event.region].declared, params, dry if dry is not None else Recording())

    def _probes(self, params: Mapping[str, Any]) -> dict[str, list[Any]]:
        params_of = self._context.plan.params
        return {name: probes(params_of[name], value, self._largest) for name, value in params.items()}
