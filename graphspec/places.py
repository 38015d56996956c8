"""Where the steps of a sequence stand in the document: a loop is a list in a list, and a sequence counts through."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import KeyPath
from graphspec.spec import Loop, Spec
from graphspec.turns import Block, block


def step_places(spec: Spec, sequence: str) -> list[KeyPath]:
    """The place of every step of a sequence."""
    return [place for at, place in _places(spec, sequence) if isinstance(at, int)]


def loop_places(spec: Spec, sequence: str) -> dict[Loop, KeyPath]:
    """The place of what every loop of a sequence goes by."""
    return {at: (*place, "while") for at, place in _places(spec, sequence) if isinstance(at, Loop)}


def _places(spec: Spec, sequence: str) -> Iterator[tuple[int | Loop, KeyPath]]:
    document = spec.document
    bare = tuple(spec.sequences) == ("replay",) if document is None else isinstance(document.data.get("replay"), list)
    program = block(len(spec.sequences[sequence]), spec.loops.get(sequence, ()))
    yield from _below(program, ("replay",) if bare else ("replay", sequence))


def _below(program: Block, start: KeyPath) -> Iterator[tuple[int | Loop, KeyPath]]:
    for index, item in enumerate(program):
        if isinstance(item, int):
            yield item, (*start, index)
        else:
            yield item.loop, (*start, index)
            yield from _below(item.body, (*start, index, "do"))
