"""Where the numbers that captured regions are given go: found by running the regions once more on symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphspec.errors import Diagnostic
from graphspec.plan import Bucket
from graphspec.runtime.capture.calls import Calls, Values
from graphspec.runtime.capture.eager_copies import EagerCopies
from graphspec.recording.calls import Recording
from graphspec.recording.source import ModuleNames
from graphspec.runtime.capture.stages import Event, Stage
from graphspec.runtime.capture.updates import Binding
from graphspec.runtime.context import Context
from graphspec.runtime.model import largest_sizes
from graphspec.runtime.symbols import Passed, Runs, Stages, SymbolTracer, Target, plain, second_run
from graphspec.runtime.values.samples import probes


class ParamSymbols:
    """Traces the params of every bucket, and keeps what was passed where for the comparison with the capture."""

    def __init__(self, context: Context, calls: Calls, copies: EagerCopies, names: ModuleNames) -> None:
        self._context = context
        self._calls = calls
        self._copies = copies
        self._names = names
        self._largest = largest_sizes(context.spec)
        self._passed: dict[tuple[str, Bucket], list[Passed]] = {}

    def trace(
        self,
        bucket: Bucket,
        stages: Sequence[Stage],
        recordings: Mapping[tuple[str, Bucket], Recording],
        rewind: Callable[[], object],
    ) -> list[Diagnostic]:
        """Findings for the regions whose dry run is among ``recordings`` and whose graph is fresh in this pass."""
        targets = [target for stage in stages if (target := self._target(stage, recordings)).params]
        if not targets:
            return []
        values: list[Values] = []

        def start() -> None:
            rewind()
            values[:] = [self._calls.start(bucket, run=1)]

        def run(stage: Stage, given: Mapping[str, Any]) -> None:
            (at,) = values
            outputs = self._calls.call(stage.event, Values({**at.env, **given}, at.params))
            at.env.update({name: plain(value) for name, value in outputs.items()})
            if stage.event.graph is None:
                self._copies.refresh(stage.event, at.env)

        params = self._calls.params(bucket, run=1)
        tracer = SymbolTracer(Stages(stages, start, run), params, self._largest, self._names)
        findings: list[Diagnostic] = []
        for target, judged in tracer.findings(targets, self._probes(params)):
            findings += judged.findings
            self._passed.setdefault((target.step.event.region, target.step.event.bucket), []).extend(judged.passed)
        return list(dict.fromkeys(findings))

    def compare(
        self,
        event: Event,
        recordings: tuple[Recording, Recording],
        params: tuple[Mapping[str, Any], Mapping[str, Any]],
        bindings: list[Binding],
    ) -> list[Diagnostic]:
        """What dry run and capture, on other params, show of arguments that symbols could not follow."""
        region, taken = self._context.spec.regions[event.region], self._calls.taken(event)
        passed = self._passed.get((event.region, event.bucket), ())
        return second_run(Runs(region, recordings, params, taken, self._probes(params[0]), passed), bindings)

    def _target(self, stage: Stage, recordings: Mapping[tuple[str, Bucket], Recording]) -> Target[Stage]:
        event, spec = stage.event, self._context.spec
        dry = recordings.get((event.region, event.bucket))
        taken = self._calls.taken(event) if stage.fresh and dry is not None else frozenset()
        params = tuple(p for name, p in spec.params.items() if name in taken and p.type != "str")
        return Target(stage, spec.regions[event.region], params, dry if dry is not None else Recording())

    def _probes(self, params: Mapping[str, Any]) -> dict[str, list[Any]]:
        spec = self._context.spec
        return {name: probes(spec.params[name], value, self._largest) for name, value in params.items()}
