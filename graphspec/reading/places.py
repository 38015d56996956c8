"""What a key is at its place: one of the language, one of a literal, or one that the language ignores.

This is all that reading knows about the language: without it, data for the model could not hold a key `x-...`.
"""

from __future__ import annotations

from collections.abc import Sequence

Place = Sequence[str | int]

#: How many more parts of a path lead from an argument of a call to one inside it.
_NESTED = {"list": 2, "dict": 2, "with": 2}


def is_literal(place: Place) -> bool:
    """Whether what stands here is data for the model or a library, in which every key is theirs."""
    match place:
        case ["model", "args", _, *_] | ["npu", "super_kernel", *_] | ["regions", _, "compile", "options", *_]:
            return True
        case ["regions", _, "inputs", _, *inside] | ["regions", _, "around", "inputs", _, *inside]:
            return _in_const(inside)
        case _:
            return False


def _in_const(inside: Place) -> bool:
    """Whether a path below an argument leads into its literal."""
    at = 0
    while at < len(inside) and inside[at] in _NESTED:
        at += _NESTED[str(inside[at])]
    return at < len(inside) and inside[at] == "const"


def takes_any_key(place: Place) -> bool:
    """Whether a mapping here may have any text as a key: in a literal, and in a dict that is an argument."""
    return is_literal(place) or bool(place and place[0] == "regions" and place[-1] == "dict")


def is_ignored(place: Place) -> bool:
    """Whether this is below a key `x-` of the language. Inside a literal such a key is data like another."""
    return any(
        isinstance(part, str) and part.startswith("x-") and not is_literal(place[:at]) for at, part in enumerate(place)
    )
