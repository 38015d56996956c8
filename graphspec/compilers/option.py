"""An option of a compiler, and a compiler, as `validate` knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["bool", "int", "float", "str", "mapping", "function"]

_SHOWN: Mapping[Kind, str] = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a text",
    "mapping": "a mapping",
    "function": "a function, as FILE.py:NAME",
}


@dataclass(frozen=True)
class Option:
    """One option. ``refused``: why graphspec does not hand it on; ``least``: the smallest value of a number."""

    name: str
    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    refused: str | None = None

    def wrong(self, value: Any) -> str | None:
        """What the value has to be instead; None where it fits."""
        if self.choices:
            return None if value in self.choices else "one of " + ", ".join(self.choices)
        if not self._fits(value):
            return _SHOWN[self.kind]
        if self.least is not None and value < self.least:
            return f"{_SHOWN[self.kind]} of at least {self.least}"
        return None

    def _fits(self, value: Any) -> bool:
        match self.kind:
            case "bool":
                return isinstance(value, bool)
            case "int":
                return isinstance(value, int) and not isinstance(value, bool)
            case "float":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "mapping":
                return isinstance(value, Mapping)
            case "function":
                return isinstance(value, str) and ":" in value
            case _:
                return isinstance(value, str)


@dataclass(frozen=True)
class Compiler:
    """One compiler. ``modes`` maps each mode to why it is refused, None where it is not.

    ``captures``: the devices on which it can capture by itself, `engine: compiled`.
    """

    name: str
    devices: tuple[str, ...]
    options: Mapping[str, Option]
    modes: Mapping[str, str | None] = field(default_factory=dict)
    captures: tuple[str, ...] = ()


def table(*options: Option) -> Mapping[str, Option]:
    """Options by name."""
    return {option.name: option for option in options}
