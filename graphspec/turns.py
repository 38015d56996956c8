"""The steps of a sequence as the program they are: what follows what, and what has certainly run before.

A sequence lists its steps once each; loops repeat ranges of them, zero, one or more times. Whoever asks what may follow
what, or what is made for certain, asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphspec.spec import Loop

#: Steps by their places, and loops of them, in order.
Block = tuple["int | Turns", ...]


@dataclass(frozen=True)
class Turns:
    """A loop, and what each of its turns runs."""

    loop: Loop
    body: Block


def block(count: int, loops: Sequence[Loop]) -> Block:
    """``count`` steps with these loops, an outer loop before its inner ones."""
    return _block(range(count), list(loops))


def _block(places: range, loops: Sequence[Loop]) -> Block:
    found: list[int | Turns] = []
    at, rest = places.start, list(loops)
    while rest:
        loop, inner = rest[0], [each for each in rest[1:] if each.first < rest[0].stop]
        found += range(at, loop.first)
        found.append(Turns(loop, _block(loop.steps, inner)))
        at, rest = loop.stop, rest[1 + len(inner) :]
    return (*found, *range(at, places.stop))


def drive(program: Block, step: Callable[[int], None], holds: Callable[[Loop], bool]) -> int:
    """Run a program: ``step`` for every step, ``holds`` before each turn of a loop. The number of turns."""
    turns = 0
    for item in program:
        if isinstance(item, int):
            step(item)
            continue
        loop, own = item.loop, 0
        while own != loop.limit and holds(loop):
            turns += drive(item.body, step, holds) + 1
            own += 1
    return turns


def walk(steps: Sequence[str], program: Block) -> Iterator[tuple[int | Loop, Mapping[str, int]]]:
    """Every step and every loop before its steps, with the regions that have certainly run before it in the same run.

    Each of those with its latest certain place. The mapping is good until the next one is asked for.
    """
    yield from _walk(steps, program, {})


def _walk(steps: Sequence[str], program: Block, ran: dict[str, int]) -> Iterator[tuple[int | Loop, Mapping[str, int]]]:
    for item in program:
        if isinstance(item, int):
            yield item, ran
            ran[steps[item]] = item
        else:
            yield item.loop, ran
            yield from _walk(steps, item.body, dict(ran))  # a loop may run no turn


def unrolled(program: Block) -> Iterator[int]:
    """The steps with two turns of every loop: whatever may follow each other in a run does so here."""
    for item in program:
        if isinstance(item, int):
            yield item
        else:
            yield from (*unrolled(item.body), *unrolled(item.body))
