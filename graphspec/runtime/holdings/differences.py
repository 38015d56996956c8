"""What differs, in words."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphspec.runtime.holdings.objects import same
from graphspec.runtime.holdings.places import MISSING
from graphspec.runtime.holdings.storages import Layout

_RUNTIME = str(Path(__file__).parents[1])
_LONGEST_SHOWN = 40


def changed(name: str, before: Any, now: Any) -> Iterator[str]:
    """How a value in its place differs from the one that was there."""
    if now is MISSING:
        yield f"{name} was deleted"
    elif not same(_unwatched(before), _unwatched(now)):
        yield f"{name} was {shown(before)} and is {shown(now, other=shown(before))}"


def moved(before: tuple[Any, ...], now: tuple[Any, ...]) -> str | None:
    """What differs between two layouts of one tensor, most telling first; None if nothing does."""
    if before == now:
        return None
    if isinstance(before, Layout) and isinstance(now, Layout):
        for what in ("dtype", "shape", "strides"):
            old, new = getattr(before, what), getattr(now, what)
            if old != new:
                return f"its {what} changed from {old} to {new}"
    return "its memory moved"


def shown(value: Any, other: str = "") -> str:
    """A value in a message, or what it is; another one of the kind where ``other`` reads the same."""
    text = repr(value) if isinstance(value, (int, float, complex, bool, str, type(None), tuple)) else ""
    shown = text if text and len(text) <= _LONGEST_SHOWN else f"a {type(value).__name__}"
    return f"another {type(value).__name__}" if shown == other else shown


def _unwatched(value: Any) -> Any:
    """A function without the wrapper of a watch: another thread may be capturing another spec just now."""
    own = isinstance(value, types.FunctionType) and value.__code__.co_filename.startswith(_RUNTIME)
    return getattr(value, "__wrapped__", value) if own else value
