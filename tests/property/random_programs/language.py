"""A program as data: regions over named values, sequences of them, and steps that use what was opened."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Region:
    """One method of the model. ``reads`` become its arguments in order, ``outputs`` are what it returns.

    ``body`` is its source, in terms of its arguments. ``kind`` is the name of the body in `bodies`.
    """

    name: str
    kind: str
    body: str
    reads: tuple[str, ...]
    outputs: tuple[str, ...]
    eager: bool = False
    pool: str | None = None


@dataclass(frozen=True)
class Step:
    """One thing that a user does. ``kind``: run, reset, write, recapture, scale, read (a lent result), bad, bomb.

    ``rows`` of its inputs, drawn from ``seed``; ``absent``: the optional input is left out; ``params`` that are given.
    """

    kind: str
    sequence: str = ""
    rows: int = 0
    seed: int = 0
    absent: bool = False
    params: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Program:
    """``sizes`` of the rows, none: always `ROWS`. ``lent`` and ``static`` are results that are so; ``states`` by name.

    ``scripts``: several lists of steps, made one after the other over one opened spec.
    """

    seed: int
    sizes: tuple[int, ...]
    regions: tuple[Region, ...]
    sequences: dict[str, tuple[str, ...]]
    states: tuple[str, ...] = ()
    optional: bool = False
    param: bool = False
    fallback: bool = False
    lent: frozenset[str] = frozenset()
    static: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()
    scripts: tuple[tuple[Step, ...], ...] = field(default=())

    def region(self, name: str) -> Region:
        """A region by its name."""
        return next(region for region in self.regions if region.name == name)

    def maker(self, value: str) -> Region | None:
        """The region that makes a value; None for inputs and params."""
        return next((region for region in self.regions if value in region.outputs), None)

    @property
    def largest(self) -> int:
        """The rows of the largest bucket."""
        return max(self.sizes, default=ROWS)


#: The rows of a program whose rows are fixed.
ROWS = 3


def source(program: Program) -> str:
    """The model of a program."""
    text = MODEL
    for region in program.regions:
        text += f"\n    def {region.name}(self, {', '.join(region.reads)}):\n"
        text += textwrap.indent(region.body, " " * 8) + "\n"
    return text


MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.tensor([1.0, -0.5]))
        self.log, self.prev, self.bomb = [], None, False
"""


def spec_text(program: Program) -> str:
    """The spec of a program."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    rows = "rows" if program.sizes else str(ROWS)
    yield f"graphspec: 1\nname: program\nmodel: {{factory: model.py:Model}}\nseed: {program.seed % 1000}"
    if program.sizes:
        yield f"dims: {{rows: [{', '.join(map(str, program.sizes))}]}}"
    if program.param:
        yield "params:\n  k: {type: int, default: 1, choices: [1, 2, 3], specialize: true}"
    yield f"buffers:\n  x: {{shape: [{rows}, 2], dtype: float32}}"
    if program.optional:
        yield f"  m: {{shape: [{rows}, 2], dtype: float32, optional: true}}"
    for name in program.states:
        yield f"  {name}: {{role: state, shape: [{rows}, 2], dtype: float32, init: 1}}"
    for name in sorted(program.declared):
        more = ", copy: false" * (name in program.lent) + ", static: true" * (name in program.static)
        yield f"  {name}: {{role: output, shape: [{rows}, 2], dtype: float32{more}}}"
    pools: dict[str, list[str]] = {}
    for region in program.regions:
        if region.pool is not None:
            pools.setdefault(region.pool, []).append(region.name)
    if pools:
        yield "pools:"
        yield from (f"  {name}: [{', '.join(members)}]" for name, members in pools.items())
    yield "regions:"
    for region in program.regions:
        more = ", eager: true" if region.eager else ", warmup: 1" + ", on_miss: eager" * program.fallback
        outputs = f"[{', '.join(region.outputs)}]" if len(region.outputs) > 1 else region.outputs[0]
        call = f"call: model.{region.name}, inputs: [{', '.join(region.reads)}], outputs: {outputs}"
        yield f"  {region.name}: {{{call}{more}}}"
    yield "replay:"
    yield from (f"  {name}: [{', '.join(steps)}]" for name, steps in program.sequences.items())
