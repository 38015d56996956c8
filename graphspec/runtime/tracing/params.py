"""Where the params of captured regions go: the second run, and a run on symbols, as before a capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphspec.backends.updates import bind_updates
from graphspec.errors import CaptureError, Diagnostic, HazardError
from graphspec.plan import Bucket
from graphspec.runtime.capture.proof import differences, fresh_memory
from graphspec.runtime.hazards import TraceEnded
from graphspec.runtime.symbols import Passed, Runs, Stages, SymbolTracer, Target, plain, second_run
from graphspec.runtime.tracing import findings
from graphspec.runtime.tracing.passes import Tracer
from graphspec.runtime.tracing.trace import PassResult, RegionTrace
from graphspec.runtime.tracing.values import Values
from graphspec.runtime.values.samples import probes


def judge_params(tracer: Tracer, bucket: Bucket, first: PassResult, again: PassResult) -> Iterator[Diagnostic]:
    """Updates against what was called, and values of the host that a graph would freeze.

    ``first`` ran on the default params, ``again`` on others.
    """
    passed: dict[str, list[Passed]] = {}
    refused = set()
    for name, found in _on_symbols(tracer, bucket, first, passed):
        refused.add(name)
        yield findings.in_region(tracer.context.plan, name, found)
    for name, trace in first.regions.items():
        other = again.regions.get(name)
        if not tracer.context.plan.regions[name].eager and not trace.ended and other is not None and not other.ended:
            known = None if name in refused else passed.get(name, [])
            for found in _second_run(tracer, name, (trace, other), (first, again), known):
                yield findings.in_region(tracer.context.plan, name, found)


def _second_run(
    tracer: Tracer,
    name: str,
    traces: tuple[RegionTrace, RegionTrace],
    results: tuple[PassResult, PassResult],
    passed: list[Passed] | None,
) -> list[Diagnostic]:
    """What a second run shows; of a region that symbols have judged already (no ``passed``), its updates only."""
    region = tracer.context.plan.regions[name].declared
    first, second = (trace.recording for trace in traces)
    params = (results[0].params, results[1].params)
    try:
        bindings = bind_updates(region, second, params[1], params[0], tracer.context.backend)
    except HazardError as error:
        return list(error.diagnostics)
    if passed is None:
        return []
    refreshed = {(binding.slot.call, binding.slot.position) for binding in bindings}
    found = differences(name, first, second, refreshed, params)
    taken = frozenset(_taken(tracer, name))
    found += second_run(Runs(region, (first, second), params, taken, _probes(tracer, params[0]), passed), bindings)
    return found or list(fresh_memory(name, first, second, (dict(traces[0].origins), dict(traces[1].origins))))


def _on_symbols(
    tracer: Tracer, bucket: Bucket, first: PassResult, passed: dict[str, list[Passed]]
) -> Iterator[tuple[str, Diagnostic]]:
    targets = [
        Target(name, tracer.context.plan.regions[name].declared, params, trace.recording)
        for name, trace in first.regions.items()
        if not tracer.context.plan.regions[name].eager
        and not trace.ended
        and (params := tuple(p for n in _taken(tracer, name) if (p := tracer.context.plan.params[n]).type != "str"))
    ]
    if not targets:
        return
    runs: list[Values] = []

    def rewind() -> None:
        tracer.host.restore()
        runs[:] = [Values(tracer.context, bucket, first.params, lambda _: None)]

    def run(name: str, given: Mapping[str, Any]) -> None:
        try:
            outputs = runs[0].call(name, given) if name in first.regions and not first.regions[name].ended else {}
        except TraceEnded as ended:
            raise CaptureError(f"region '{name}' needs a value") from ended
        runs[0].environment.update({output: plain(value) for output, value in outputs.items()})
        runs[0].use_declared(name, outputs)

    with tracer.world.entered(), tracer.placement.followed():
        steps = Stages(tracer.order(), rewind, run)
        symbols = SymbolTracer(steps, first.params, tracer.context.plan.largest, tracer.names)
        judged = symbols.findings(targets, _probes(tracer, first.params))
    tracer.host.restore()
    for target, each in judged:
        passed.setdefault(target.step, []).extend(each.passed)
        yield from ((target.step, found) for found in each.findings)


def _taken(tracer: Tracer, name: str) -> list[str]:
    """The params that a region is given and that may change between replays of its graph."""
    wires = tracer.context.plan.regions[name].reads
    return [wire.value for wire in wires if wire.source == "param" and wire.value not in tracer.specialized]


def _probes(tracer: Tracer, params: Mapping[str, Any]) -> dict[str, list[Any]]:
    plan = tracer.context.plan
    return {name: probes(plan.params[name], value, plan.largest) for name, value in params.items()}
