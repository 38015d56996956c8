"""The interpreter: a program as plain Python runs it. Nothing of graphspec, no copies, no clock but a counter.

Beside the values it keeps the books by which refusals are judged: in which memory a graph may put each value, and when
something last used that memory for something else.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from random_programs.language import Program, Region, Step

#: Bodies that write into what they are given.
WRITING = frozenset({"writes", "in place", "state", "turns", "reshapes"})

#: A piece of memory: a pool, an input, a state, a static output; None for memory that nobody uses again.
Home = tuple[str, str] | None


@dataclass
class Made:
    """When a name was last made, for how many rows, by a region that ran as it is or as a graph, and where it lies."""

    tick: int
    rows: int
    homes: set[tuple[str, str]]


@dataclass
class Plain:
    """One life of a program. ``values`` are the objects that names stand for, ``states`` whole tensors."""

    program: Program
    model: Any
    values: dict[str, Any] = field(default_factory=dict)
    states: dict[str, torch.Tensor] = field(default_factory=dict)
    params: dict[str, int] = field(default_factory=lambda: {"k": 1})
    made: dict[str, Made] = field(default_factory=dict)
    touched: dict[tuple[str, str], int] = field(default_factory=dict)
    now: int = 0

    def __post_init__(self) -> None:
        self.reset()

    def saved(self) -> Plain:
        """A copy of all of it, in which what shared memory shares memory."""
        return copy.deepcopy(self, {id(self.program): self.program})

    def reset(self) -> None:
        """States begin anew; who has kept the old ones has them."""
        for name in self.program.states:
            self.states[name] = torch.ones(self.program.largest, 2)
            self._touch(("state", name))

    def write(self, name: str, value: torch.Tensor) -> None:
        """A state is written from outside."""
        self.states[name] = value.clone()
        self._touch(("state", name))

    def run(self, step: Step, inputs: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
        """The results of one run. What the model raises comes as it is; what was done until then stays done."""
        program = self.program
        params = {**self.params, **dict(step.params)}
        given: dict[str, Any] = {name: None if each is None else each.clone() for name, each in inputs.items()}
        homes = {_key(each): {("input", name)} for name, each in given.items() if each is not None}
        for name in inputs:
            self._touch(("input", name))
        misses = step.rows > program.largest
        results: dict[str, Any] = {}
        alive: list[Any] = []
        for name in program.sequences[step.sequence]:
            region = program.region(name)
            self._region(region, step, {**given, **params}, homes, results, alive, eager=region.eager or misses)
        self.params = params
        return results

    def _region(
        self, region: Region, step: Step, given: Mapping[str, Any], homes: dict[int, set[Any]],
        results: dict[str, Any], alive: list[Any], *, eager: bool,
    ) -> None:  # fmt: skip
        """``alive`` keeps what was there, so that storages keep their identity through a run."""
        arguments = [self._value(name, given, step.rows) for name in region.reads]
        alive.extend((*arguments, *self.values.values(), *self.states.values()))
        for name, made in self.made.items():
            homes.setdefault(_key(self.values[name]), made.homes)
        for name, state in self.states.items():
            homes[_key(state)] = {("state", name)}
        returned = getattr(self.model, region.name)(*arguments)
        if not eager:
            self._touch(("pool", str(region.pool)))
        if region.kind in WRITING:
            for home in {home for each in arguments for home in homes.get(_key(each), ())}:
                self._touch(home)
        returned = returned if isinstance(returned, tuple) else (returned,)
        for name, value in zip(region.outputs, returned, strict=True):
            if name in self.states:
                whole = self.states[name].clone()
                whole[: step.rows] = value
                self.states[name] = whole
                self._touch(("state", name))
                continue
            self.values[name] = value
            found = set(homes.get(_key(value), set() if eager else {("pool", str(region.pool))}))
            if name in self.program.static:
                found.add(("static", name))
                self._touch(("static", name))
            self.made[name] = Made(self.now, step.rows, found)
            results[name] = value.clone()

    def _value(self, name: str, given: Mapping[str, Any], rows: int) -> Any:
        if name in given:
            return given[name]
        return self.states[name][:rows] if name in self.states else self.values[name]

    def _touch(self, home: tuple[str, str]) -> None:
        self.now += 1
        self.touched[home] = self.now

    # -- the books

    def reasons(self, step: Step) -> list[str]:
        """Why a run may be refused that is about to be made: what it reads of earlier runs is not there for it."""
        found: list[str] = []
        made: set[str] = {"x", "m", "k", *self.program.states}
        for name in self.program.sequences[step.sequence]:
            region = self.program.region(name)
            for value in region.reads:
                if value in made:
                    continue
                if value not in self.made:
                    found.append(f"{value} was never made")
                elif self.made[value].rows != step.rows:
                    found.append(f"{value} has {self.made[value].rows} rows")
                elif self.lost(self.made[value]):
                    found.append(f"{value} may be overwritten")
            made.update(region.outputs)
        return found

    def lost(self, made: Made) -> bool:
        """Whether something has used the memory of a value since it was made."""
        return any(self.touched.get(home, 0) > made.tick for home in made.homes)


def _key(value: Any) -> int:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else id(value)
