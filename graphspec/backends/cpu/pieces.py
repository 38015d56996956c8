"""A graph in pieces: what is issued from C++, and between two pieces a part that stays eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphspec.backends.cpu.issue import Issue
from graphspec.recording.eager import is_eager


class Pieces:
    """Runs pieces and eager parts in turn."""

    kind = "pieces"

    def __init__(self, steps: Sequence[Callable[[], None]]) -> None:
        self._steps = tuple(steps)

    def run(self) -> None:
        """Issue every call once, in order."""
        for step in self._steps:
            step()


def pieces(issues: Sequence[Issue]) -> list[range]:
    """The issues before, between and after eager parts, each a piece or one part; none of them empty."""
    found: list[range] = []
    start = 0
    for number, issue in enumerate(issues):
        if is_eager(issue.op):
            found += [range(start, number), range(number, number + 1)]
            start = number + 1
    found.append(range(start, len(issues)))
    return [piece for piece in found if piece]
