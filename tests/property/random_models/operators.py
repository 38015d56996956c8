"""The statements to draw from, read from statements.txt beside this file, which also says how they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_TEXT = (Path(__file__).parent / "statements.txt").read_text(encoding="utf-8")
_GROUP = re.compile(r"^\[([a-z-]+) ([0-9.]+)\]$", re.MULTILINE)


def _groups() -> dict[str, tuple[float, tuple[str, ...]]]:
    _, *parts = _GROUP.split(_TEXT)
    bodies = [[line for line in body.splitlines() if line and not line.startswith("#")] for body in parts[2::3]]
    weights = map(float, parts[1::3])
    return {name: (weight, tuple(body)) for name, weight, body in zip(parts[::3], weights, bodies, strict=True)}


#: Every group of statements by name, and how often one of it is drawn beside others.
STATEMENTS: Mapping[str, tuple[str, ...]] = {name: lines for name, (_, lines) in _groups().items()}
WEIGHTS: Mapping[str, float] = {name: weight for name, (weight, _) in _groups().items()}

#: Groups that change no tensor there is.
PURE = frozenset(
    {"unary", "binary", "scalar", "reduce", "matmul", "index", "join", "views", "casts", "create", "foreach"}
)
#: Groups that any region may draw from.
ALWAYS = (*sorted(PURE), "in-place", "attributes")
