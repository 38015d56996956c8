"""The regions of a bucket that are given numbers, run once more on symbols.

A symbol is graphspec's, and models may look at what they are given: where a region fails on symbols, or calls other
operators than on plain numbers, its params are tried one by one. Those that still do not work are tried on a handful of
plain values, and every difference but the param itself is a finding; of symbols the user hears nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from graphspec import spec as language
from graphspec.errors import Diagnostic, GraphSpecError
from graphspec.recording.calls import Recorder, Recording
from graphspec.recording.comparison import differences, same_operators
from graphspec.recording.source import ModuleNames
from graphspec.runtime.hazards import inside_capture
from graphspec.runtime.symbols.declared import picked
from graphspec.runtime.symbols.judge import Judged, judge
from graphspec.runtime.symbols.places import executed
from graphspec.runtime.symbols.second import changed_by_the_way
from graphspec.runtime.symbols.trace import Trace
from graphspec.runtime.symbols.tree import symbols

Step = TypeVar("Step")


@dataclass(frozen=True)
class Target(Generic[Step]):
    """A region to trace: the step that calls it, the params to make symbols of, and its recording on plain numbers."""

    step: Step
    region: language.Region
    params: tuple[language.Param, ...]
    recording: Recording


@dataclass(frozen=True)
class Stages(Generic[Step]):
    """How a bucket is run: ``rewind`` puts everything back to its start, ``run`` makes one step.

    ``run`` takes the values of params that differ from the plain ones.
    """

    steps: Sequence[Step]
    rewind: Callable[[], None]
    run: Callable[[Step, Mapping[str, Any]], None]


class SymbolTracer(Generic[Step]):
    """Traces targets of one bucket. ``values`` are the plain values of all params, ``largest`` the sizes of dims."""

    def __init__(
        self, stages: Stages[Step], values: Mapping[str, Any], largest: Mapping[str, int], names: ModuleNames | None
    ) -> None:
        self._stages = stages
        self._values = values
        self._largest = largest
        self._names = names

    def findings(
        self, targets: Sequence[Target[Step]], others: Mapping[str, Sequence[Any]]
    ) -> list[tuple[Target[Step], Judged]]:
        """What is found in each target. ``others`` has further values of each param, within its range."""
        traces = self._traces(targets)
        found = [(target, judge(target.region, trace, self._values, others)) for target, trace in traces]
        for target in targets:
            traced = [trace.params - trace.lost for other, trace in traces if other.step is target.step]
            left = [param.name for param in target.params if not any(param.name in names for names in traced)]
            found += [(target, Judged(self._differences(target, name, others[name]), [])) for name in left]
        return found

    def _traces(self, targets: Sequence[Target[Step]]) -> list[tuple[Target[Step], Trace]]:
        """A trace of each target with all its params as symbols; or several, one a param, as far as they work."""
        found = self._all(targets)
        for target, trace in found:
            self._confirm(target, trace)
        return found

    def _differences(self, target: Target[Step], param: str, values: Sequence[Any]) -> list[Diagnostic]:
        """What a region does otherwise for the first of these values of a param for which it does."""
        refreshed = picked(target.region, target.recording)
        for value in values:
            recorder = Recorder(target.region.name, self._names, whole=target.region.updated_operators)
            try:
                self._advance(target)
                with inside_capture(target.region.name), recorder:
                    self._stages.run(target.step, {param: value})
            except GraphSpecError:
                continue  # the model refuses the value, in eager too
            params = dict(self._values), {**self._values, param: value}
            found = differences(target.region.name, target.recording, recorder.recording, refreshed, params)
            found = found or list(changed_by_the_way(target.region.name, recorder.recording, refreshed, params[1]))
            if found:
                return found
        return []

    def _advance(self, target: Target[Step]) -> None:
        """From the start up to the target."""
        self._stages.rewind()
        for step in self._stages.steps:
            if step is target.step:
                return
            self._stages.run(step, {})

    def _all(self, targets: Sequence[Target[Step]]) -> list[tuple[Target[Step], Trace]]:
        found: list[tuple[Target[Step], Trace]] = []
        rest = list(targets)
        while rest:
            made = self._pass(rest)
            found += zip(rest, made, strict=False)
            failed = rest[len(made) : len(made) + 1]
            rest = rest[len(made) + 1 :]
            for target in failed:
                found += self._one_by_one(target)
        return found

    def _one_by_one(self, target: Target[Step]) -> list[tuple[Target[Step], Trace]]:
        if len(target.params) == 1:
            return []
        alone = [Target(target.step, target.region, (param,), target.recording) for param in target.params]
        return [(one, trace) for one in alone for trace in self._pass([one])]

    def _pass(self, targets: Sequence[Target[Step]]) -> list[Trace]:
        """Run all steps up to the last target; ends early at a target on which symbols do not work."""
        self._stages.rewind()
        wanted = list(targets)
        made: list[Trace] = []
        for step in self._stages.steps:
            if not wanted:
                break
            if step is not wanted[0].step:
                self._stages.run(step, {})
                continue
            trace = self._trace(wanted.pop(0))
            if trace is None:
                break
            made.append(trace)
        return made

    def _confirm(self, target: Target[Step], trace: Trace) -> None:
        """Drop the reads of a trace at instructions that a run on plain numbers does not come by."""
        places = [read.place for read in trace.reads]
        codes = {place[0] for place in places if place is not None}
        if not codes:
            return
        self._advance(target)
        with inside_capture(target.region.name), executed(codes) as seen:
            self._stages.run(target.step, {})
        dropped = [read for read in trace.reads if read.place is not None and read.place not in seen]
        trace.reads = [read for read in trace.reads if read not in dropped]
        trace.lost.update(*(read.node.params for read in dropped))

    def _trace(self, target: Target[Step]) -> Trace | None:
        name = target.region.name
        trace = Trace(
            name, frozenset(param.name for param in target.params), self._names, target.region.updated_operators
        )
        given = {param.name: symbols(param, self._values[param.name], self._largest, trace) for param in target.params}
        try:
            with inside_capture(name), trace.recorder, trace.functions:
                self._stages.run(target.step, given)
        except Exception:  # noqa: BLE001 - whatever a model does not like about a symbol is no fault of the model
            return None
        return trace if same_operators(target.recording, trace.recorder.recording) else None
