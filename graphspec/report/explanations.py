"""Codes and keys explained, as text: the codes from `graphspec.codes`, the keys from the JSON Schema."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from graphspec.codes import CODES
from graphspec.schema import published
from graphspec.schema_messages import flow

_WIDTH = 100
_MEMBER = "NAME"  # stands for the names a user chooses: buffers.NAME.pad


def codes() -> tuple[str, ...]:
    """Every diagnostic code."""
    return tuple(CODES)


def of_code(code: str) -> str | None:
    """What a code means, with its examples; None for one that does not exist."""
    entry = CODES.get(code)
    if entry is None:
        return None
    parts = [f"{entry.code}: {entry.title}", textwrap.fill(entry.why, _WIDTH)]
    for title, example in (("wrong", entry.wrong), ("right", entry.right)):
        if example:
            parts.append(f"{title}:\n{textwrap.indent(example, '    ')}")
    return "\n\n".join(parts) + "\n"


def keys() -> tuple[str, ...]:
    """Every key, by its own name and by its place without the names a user chooses (``buffers.pad``)."""
    places = [place for place, _ in _places()]
    return tuple(dict.fromkeys([*places, *(place.rpartition(".")[2] for place in places)]))


def of_key(name: str) -> str | None:
    """What a key means, at each place it has; None for one that does not exist."""
    wanted = name.replace(f".{_MEMBER}", "")
    found = [(place, schema) for place, schema in _places() if wanted == place or wanted == place.rpartition(".")[2]]
    return "\n".join(_key(place, schema) for place, schema in found) or None


def _places() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from _below(published(), "", frozenset())


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


def _key(place: str, schema: Mapping[str, Any]) -> str:
    lines = [f"{place}: {schema.get('title', '')}", textwrap.indent(textwrap.fill(schema["description"], _WIDTH), "  ")]
    if "enum" in schema:
        lines.append(f"  one of: {', '.join(schema['enum'])}")
    elif "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        lines.append(f"  kind: {' or '.join(kinds)}")
    if "default" in schema:
        lines.append(f"  default: {flow(schema['default'])}")
    if "examples" in schema:
        lines.append(f"  example: {place.rpartition('.')[2]}: {flow(schema['examples'][0])}")
    return "\n".join(lines) + "\n"
