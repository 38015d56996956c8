"""The regions of a bucket that are given numbers, run once more on symbols.

A symbol is graphspec's, and models may look at what they are given: where a region fails on symbols, or calls other
operators than on plain numbers, its params are tried one by one, and those that still do not work are left to the
comparison of two values, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from graphspec import spec as language
from graphspec.runtime.hazards import inside_capture
from graphspec.runtime.proof import same_operators
from graphspec.runtime.recording import Recording
from graphspec.runtime.source import ModuleNames
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
        self, stages: Stages[Step], values: Mapping[str, Any], largest: Mapping[str, int], names: ModuleNames
    ) -> None:
        self._stages = stages
        self._values = values
        self._largest = largest
        self._names = names

    def traces(self, targets: Sequence[Target[Step]]) -> list[tuple[Target[Step], Trace]]:
        """A trace of each target with all its params as symbols; or several, one a param, as far as they work."""
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

    def _trace(self, target: Target[Step]) -> Trace | None:
        name = target.region.name
        trace = Trace(name, self._names)
        given = {
            param.name: symbols(param, self._values[param.name], self._largest, trace) for param in target.params
        }
        try:
            with inside_capture(name), trace.recorder, trace.functions:
                self._stages.run(target.step, given)
        except Exception:  # noqa: BLE001 - whatever a model does not like about a symbol is no fault of the model
            return None
        return trace if same_operators(target.recording, trace.recorder.recording) else None
