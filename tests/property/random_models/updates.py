"""Which operator arguments are a param, found by running a region with two of its values."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from random_models.worlds import GLOBALS


def updates_for(
    start: Mapping[str, Any], lines: list[str], name: str, values: tuple[Any, Any]
) -> list[dict[str, Any]] | None:
    """The key `updates` of a region that starts with these local values; None if an argument only follows the param."""
    seen = [_seen(start, lines, name, value) for value in values]
    if seen[0] is None or seen[1] is None or len(seen[0]) != len(seen[1]):
        return None
    found: dict[tuple[str, str], list[int]] = {}
    for one, other in zip(*seen, strict=True):
        if one[:3] != other[:3]:
            return None
        op, argument, occurrence, value = one
        if value == other[3] or not isinstance(value, bool | int | float):
            continue
        if (value, other[3]) != values:
            return None
        found.setdefault((op, argument), []).append(occurrence)
    return [{"op": op, "arg": argument, "from": name, "at": at} for (op, argument), at in found.items()] or None


def _seen(start: Mapping[str, Any], lines: list[str], name: str, value: Any) -> list[tuple[str, str, int, Any]] | None:
    """Each argument of each call that is no tensor: operator, argument, which call of the operator, value."""
    local = {**copy.deepcopy(dict(start)), name: value}
    mode = _Log()
    try:
        with torch.no_grad(), warnings.catch_warnings(), mode:
            warnings.simplefilter("ignore")
            exec("\n".join(lines), GLOBALS, local)  # noqa: S102
    except Exception:  # noqa: BLE001  a value for which the region does not run is no value to show anything with
        return None
    return mode.seen


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, int, Any]] = []
        self._calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | (kwargs or {})
        for key, value in named.items():
            if isinstance(value, bool | int | float | str):
                self.seen.append((name, key, self._calls[name], value))
        self._calls[name] += 1
        return func(*args, **(kwargs or {}))
