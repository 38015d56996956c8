"""Codes and keys explained, as text: the codes from `graphspec.codes`, the keys from the JSON Schema."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from graphspec import schema_keys
from graphspec.codes import CODES
from graphspec.compilers import COMPILERS, Option
from graphspec.examples import flow
from graphspec.report.tables import table

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
    places = list(schema_keys.places())
    return tuple(dict.fromkeys([*places, *(place.rpartition(".")[2] for place in places)]))


def of_key(name: str) -> str | None:
    """What a key means, at each place it has; None for one that does not exist."""
    wanted = name.replace(f".{_MEMBER}", "")
    found = [
        (place, schema)
        for place, schema in schema_keys.places().items()
        if wanted == place or wanted == place.rpartition(".")[2]
    ]
    return "\n".join(_key(place, schema) for place, schema in found) or None


def of_compiler(name: str) -> str | None:
    """The modes and options of a compiler, and why some are refused; None for what is no compiler."""
    compiler = COMPILERS.get(name)
    if compiler is None:
        return None
    modes = ((mode, why or "") for mode, why in compiler.modes.items())
    given = ((each.name, _values(each), each.meaning) for each in compiler.options.values() if each.refused is None)
    refused = ((each.name, each.refused) for each in compiler.options.values() if each.refused is not None)
    sections = (
        [f"compile: {{backend: {name}}}, on {' and '.join(compiler.devices)}"],
        table("modes", ("refused because",), modes),
        table("options", ("values", ""), given),
        table("refused options", ("because",), refused),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _values(option: Option) -> str:
    return " | ".join(option.choices) or option.kind


def overview() -> str:
    """Every code and every key there is, one line each."""
    sections = (
        table("codes", ("",), ((code, entry.title) for code, entry in CODES.items())),
        table("keys", ("",), ((place, schema.get("title", "")) for place, schema in schema_keys.places().items())),
    )
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


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
