"""`NAME=VALUE` on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from graphspec.errors import InputError, SpecError
from graphspec.files import problem
from graphspec.nearest import nearest
from graphspec.reading.compose import compose
from graphspec.reading.construct import Constructor

_EMPTY_TEXT = "NAME='\"\"'"
#: What findings about a whole file are about a value.
_OF_A_VALUE = {"GS010": "a second document begins in it", "GS011": "it is nested too deeply to be read"}

_Command = TypeVar("_Command", bound=Callable[..., Any])


def split(pairs: Iterable[str], option: str, known: Iterable[str], kind: str) -> dict[str, str]:
    """Each ``NAME=VALUE`` by name. Raises InputError: no pair, a name given twice, or one that is not ``known``."""
    names = tuple(known)
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InputError(f"{option} takes NAME=VALUE, and '{pair}' came")
        if name in found:
            raise InputError(f"{option} {name} is given twice")
        if name not in names:
            close = nearest(name, names)
            have = f"it has {', '.join(names)}" if names else f"it has no {kind}"
            raise InputError(
                f"{option}: the spec has no {kind} '{name}'", hint=f"did you mean '{close}'?" if close else have
            )
        found[name] = value
    return found


def yaml_value(text: str, option: str) -> Any:
    """A value written as in a spec (YAML 1.2: ``no`` is text, ``1e5`` a number). Raises InputError."""
    constructor = Constructor(option)
    try:
        value = constructor.value(compose(text, option))
        finding = constructor.findings[0] if constructor.findings else None
    except SpecError as error:
        finding = error.diagnostics[0]
    if finding is not None:
        if finding.code == "GS003":
            raise InputError(f"{option}: no value came after the '='", hint=f"an empty text is written {_EMPTY_TEXT}")
        said = _OF_A_VALUE.get(finding.code, finding.message)
        raise InputError(f"{option}: '{text}' cannot be read as YAML: {said}")
    return value


def size(text: str, option: str) -> int:
    """A size of a dim. Raises InputError."""
    if not text.strip().isdecimal():
        raise InputError(f"{option} takes a whole number, and '{text}' came")
    return int(text)


def file(text: str, option: str) -> Path:
    """A path, relative to the working directory. Raises InputError where nothing can be read."""
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises where there is no such user
    if (wrong := problem(path)) is not None:
        raise InputError(f"{option}: {wrong.about(path)}")
    return path


def repeatable(option: str, metavar: str, text: str) -> Callable[[_Command], _Command]:
    """A click option that may be given many times."""
    return click.option(option, f"{option.lstrip('-')}_pairs", metavar=metavar, multiple=True, help=text)


def by_name(pairs: Mapping[str, str], option: str, convert: Any) -> dict[str, Any]:
    """Every value converted."""
    return {name: convert(value, f"{option} {name}") for name, value in pairs.items()}
