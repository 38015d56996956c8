"""A compiled library as one operator of the dispatcher, whose schema says what it reads and what it writes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

import torch
from torch._ops import OpOverload

from graphspec.backends.cpu.program import Program, Step

SCHEMA: Final = "compiled(int library, Tensor[] reads, Tensor(a!)[] writes) -> ()"


class Library:
    """A library that is loaded. ``number`` is what the operator knows it by, as long as it is held."""

    _numbers = itertools.count(1)
    _loaded: ClassVar[WeakValueDictionary[int, Library]] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        # torch._C._aoti has no stub; the class is what torch.export's own packages are run by.
        self._runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
        self.path = path
        self.number = next(self._numbers)
        self._loaded[self.number] = self

    def run(self, arguments: Sequence[torch.Tensor]) -> None:
        """Run on tensors of exactly the forms it was compiled for."""
        self._runner.run(arguments)

    @classmethod
    def numbered(cls, number: int) -> Library:
        """The library that the operator is given the number of."""
        return cls._loaded[number]


class LibraryReplayer:
    """Replays a program that is one call of a library, with nothing in between."""

    kind = "library"

    def __init__(self, library: Library, arguments: list[torch.Tensor]) -> None:
        self._library = library
        self._arguments = arguments

    @classmethod
    def of(cls, program: Program) -> LibraryReplayer | None:
        """The replayer of a program that is nothing else."""
        match program.steps:
            case (Step(op=op, args=(number, reads, writes)),) if op is operator():
                arguments = [program.tensors[place.index] for place in (*reads, *writes)]
                return cls(Library.numbered(number), arguments)
            case _:
                return None

    def run(self) -> None:
        """One call of the library."""
        self._library.run(self._arguments)


@functools.cache
def operator() -> OpOverload:
    """``graphspec::compiled``, registered once a process."""
    torch.library.define(f"graphspec::{SCHEMA.partition('(')[0]}", SCHEMA.removeprefix("compiled"))
    torch.library.impl("graphspec::compiled", "cpu", _run)
    torch.library.register_fake("graphspec::compiled", lambda *_: None)
    found: OpOverload = torch.ops.graphspec.compiled.default
    return found


def _run(library: int, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> None:
    Library.numbered(library).run([*reads, *writes])
