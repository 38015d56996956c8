"""Every key of the language with its place, from the published JSON Schema."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from graphspec.published import published

#: The sections whose members have names of the user's choice.
_NAMED: Final = frozenset({"dims", "params", "buffers", "regions"})
_SHOWN = 3


@functools.cache
def places() -> Mapping[str, Mapping[str, Any]]:
    """Key to schema, by its place without the names a user chooses (``buffers.pad``): the first of several."""
    found: dict[str, Mapping[str, Any]] = {}
    for place, schema in _below(published(), "", frozenset()):
        found.setdefault(place, schema)
    return found


def homes(key: str) -> list[str]:
    """Where a key belongs, as messages say it: at the top level, in `buffers.NAME`; at most three places."""
    owners = [place.rpartition(".")[0] for place in places() if place.rpartition(".")[2] == key]
    return [_home(owner) for owner in sorted(owners, key=lambda owner: owner.count("."))][:_SHOWN]


def _home(owner: str) -> str:
    section, dot, rest = owner.partition(".")
    name = f"{section}.NAME" if section in _NAMED else section
    return f"in `{name}{dot}{rest}`" if owner else "at the top level"


def _below(schema: Any, place: str, inside: frozenset[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every key below a schema, depth first. ``inside`` holds the definitions being walked: one holds itself."""
    schema, names = _resolved(schema)
    if not isinstance(schema, Mapping) or names & inside:
        return
    inside |= names
    for key, each in schema.get("properties", {}).items():
        target, _ = _resolved(each)
        if not isinstance(target, Mapping):
            continue
        here = f"{place}.{key}" if place else key
        yield here, target
        yield from _below(each, here, inside)
    for pattern, each in schema.get("patternProperties", {}).items():
        if pattern != "^x-":
            yield from _below(each, place, inside)
    if "items" in schema:
        yield from _below(schema["items"], place, inside)


def _resolved(schema: Any) -> tuple[Any, frozenset[str]]:
    """The schema behind ``$ref``, the annotations beside it winning; and the names of the definitions passed."""
    names: set[str] = set()
    while isinstance(schema, Mapping) and "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        names.add(name)
        schema = {**published()["$defs"][name], **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema, frozenset(names)
