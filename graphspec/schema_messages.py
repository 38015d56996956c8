"""What an error of the JSON Schema says to the person who wrote the file: the place, what was read, how to write it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from graphspec.document import Document
from graphspec.dtypes import likely
from graphspec.errors import Diagnostic, KeyPath
from graphspec.examples import flow, own
from graphspec.finding import dotted, finding
from graphspec.nearest import did_you_mean, nearest
from graphspec.schema_keys import homes
from graphspec.units import alternatives, counted, shortened

_KINDS: Mapping[str, str] = {
    "string": "a text",
    "array": "a list",
    "object": "a mapping",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
}
_BOOLEAN_WORDS = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false"})
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_KEYS_SHOWN = 14


def findings_of(error: Any, document: Document) -> Iterator[Diagnostic]:
    """The findings of one ``jsonschema.ValidationError``: one, except where several keys are unknown or missing."""
    path: KeyPath = tuple(error.absolute_path)
    about = error.validator or "false"
    if error.instance is None and about not in {"additionalProperties", "required", "false"}:
        place = dotted(path)
        yield finding(document, "GS107", f"`{place}` is blank", path, key=True,
                      hint=f"give it {_wanted(error, document)}, or remove the line")  # fmt: skip
        return
    yield from _HANDLERS.get(about, _other)(error, document, path)


def shown(value: Any) -> str:
    """A value as it was read, with its kind: a reader sees at once that `off` was text."""
    if value is None:
        return "blank"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text '{shortened(value)}'"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "a mapping" if value else "an empty mapping"


def _unknown_keys(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    keys = error.schema.get("properties", {})
    patterns = list(error.schema.get("patternProperties", {}))
    where = f"in `{dotted(path)}`" if path else "at the top level"
    for key in error.instance:
        if key in keys or _matches(key, patterns):
            continue
        if keys:
            listed = ", ".join(sorted(keys)[:_KEYS_SHOWN]) + (", ..." if len(keys) > _KEYS_SHOWN else "")
            hint = _belongs(key) or did_you_mean(key, keys, f"the keys here are {listed}")
            if key.endswith(")"):  # the rest of `(4, 8)`, which YAML reads as two entries
                hint = "a list needs square brackets, such as [4, 8]"
            message = f"unknown key `{shortened(key)}` {where}"
            yield finding(document, "GS101", message, (*path, key), key=True, hint=hint)
        else:
            hint = "use letters, digits and `_`, beginning with a letter or `_`"
            message = f"'{shortened(key)}' {where} is not a name"
            yield finding(document, "GS110", message, (*path, key), key=True, hint=hint)


def _belongs(key: str) -> str | None:
    """Where a key belongs that the language has in other places only."""
    found = homes(key)
    return f"`{key}` belongs {alternatives(found)}" if found else None


def _matches(key: str, patterns: list[str]) -> bool:
    return any(re.search(pattern, key) for pattern in patterns)


def _missing(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    where = f"`{dotted(path)}`" if path else "the spec"
    for key in error.validator_value:
        if key not in error.instance:
            close = nearest(key, (each for each in error.instance if each not in error.schema.get("properties", {})))
            if close is not None:
                continue  # the unknown key that resembles it is reported, with this key as its fix
            example = _example(error.schema.get("properties", {}).get(key, {}), document, path)
            hint = f"add `{key}: {example}`" if example else f"add `{key}`"
            yield finding(document, "GS102", f"{where} has no `{key}`", (*path, key), key=True, hint=hint)


def _dependent(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    for key, needed in error.validator_value.items():
        for each in needed:
            if key in error.instance and each not in error.instance:
                message = f"`{dotted((*path, key))}` needs `{each}` beside it"
                yield finding(document, "GS109", message, (*path, key), key=True, hint=f"add `{each}`")
                return


def _type(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    message = f"`{dotted(path)}` must be {_expected(error)}, not {shown(error.instance)}"
    yield finding(document, "GS103", message, path, hint=_how(error, document))


def _enum(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    value, allowed = error.instance, [str(each) for each in error.validator_value]
    message = f"`{dotted(path)}` is {shown(value)}; it must be one of {', '.join(allowed)}"
    hint = "write one of them"
    if isinstance(value, str) and error.schema["title"] == "Dtype":
        likeliest = [f"`{each}`" for each in likely(value, allowed)]
        hint = f"did you mean {alternatives(likeliest)}?" if likeliest else hint
    elif isinstance(value, str):
        hint = did_you_mean(value, allowed, hint)
    yield finding(document, "GS104", message, path, hint=hint)


def _pattern(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    value = error.instance
    message = f"`{dotted(path)}` is {shown(value)}, which is no {error.schema['title'].lower()}"
    yield finding(document, "GS105", message, path, hint=_how(error, document))


def _range(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    bound = "at least" if error.validator == "minimum" else "at most"
    message = f"`{dotted(path)}` is {error.instance}; it must be {bound} {error.validator_value}"
    way = "more" if error.validator == "minimum" else "less"
    yield finding(document, "GS106", message, path, hint=f"write {error.validator_value} or {way}, or remove it")


def _count(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    what = "key" if error.validator.endswith("Properties") else "item"
    if not error.instance:
        message, hint = f"`{dotted(path)}` is {shown(error.instance)}", "give it a value, or remove the key"
        if error.validator == "minLength":
            message = f"`{dotted(path)}` is an empty text"
    else:
        message = f"`{dotted(path)}` has {counted(len(error.instance), what)}; it takes {error.validator_value}"
        hint = _how(error, document) or f"give it {error.validator_value}"
    yield finding(document, "GS108", message, path, hint=hint)


def _one_of(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    """Several kinds of a value that has one. None of them is a missing or misspelt key, which is said as that."""
    kinds = [key for branch in error.validator_value for key in branch["required"] if key in error.instance]
    if len(kinds) > 1:
        message = f"`{dotted(path)}` has {', '.join(f'`{key}`' for key in kinds)}, and exactly one of them is allowed"
        yield finding(document, "GS109", message, path, hint="keep one")


def _excluded(_error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    message = f"`{dotted(path)}` cannot stand beside the other keys here"
    yield finding(document, "GS109", message, path, key=True, hint="keep one of the two ways to write it")


def _other(error: Any, document: Document, path: KeyPath) -> Iterator[Diagnostic]:
    yield finding(document, "GS103", f"`{dotted(path)}`: {error.message}", path, hint=_how(error, document))


_HANDLERS: Mapping[str, Callable[[Any, Document, KeyPath], Iterator[Diagnostic]]] = {
    "additionalProperties": _unknown_keys,
    "required": _missing,
    "dependentRequired": _dependent,
    "type": _type,
    "enum": _enum,
    "pattern": _pattern,
    "minimum": _range,
    "maximum": _range,
    "minItems": _count,
    "maxItems": _count,
    "minLength": _count,
    "minProperties": _count,
    "oneOf": _one_of,
    "false": _excluded,
}


def _expected(error: Any) -> str:
    kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    return " or ".join(_KINDS[kind] for kind in kinds)


def _wanted(error: Any, document: Document) -> str:
    """What the schema wants at this place, by example."""
    example = _example(error.schema, document, tuple(error.absolute_path))
    if example:
        return f"a value such as {example}"
    kinds = error.schema.get("type")
    if isinstance(kinds, str):
        return _KINDS[kinds]
    return "one of " + ", ".join(error.schema["enum"]) if "enum" in error.schema else "a value"


def _how(error: Any, document: Document) -> str | None:
    """How to write what was meant."""
    value, kinds = error.instance, error.schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    hint = None
    if isinstance(value, str):
        hint = _how_text(error, value, kinds)
    elif isinstance(value, list) and value and "list" in error.schema.get("properties", {}):
        hint = "write a list argument as {list: [...]}"
    elif isinstance(value, bool | int | float) and "const" in error.schema.get("properties", {}):
        hint = f"write a literal as {{const: {json.dumps(value)}}}"
    elif isinstance(value, int | float) and not isinstance(value, bool) and kinds == ["string"]:
        pattern = error.schema.get("pattern")
        if pattern is None or _matches(str(value), [pattern]):
            hint = f'quote it: "{value}"'
    if hint is None and "x-examples" in error.schema:
        path = tuple(error.absolute_path)
        examples = dict.fromkeys(flow(own(each, document.data, path)) for each in error.schema["x-examples"])
        hint = f"write, for example, {' or '.join(examples)}"
    return hint or _plainly(error.schema, kinds)


def _plainly(schema: Mapping[str, Any], kinds: list[str]) -> str | None:
    """How to write a value of these kinds, where there is no example."""
    keys = sorted(schema.get("properties", {}))
    if "object" in kinds and keys:
        return f"write it as {{key: value}}; its keys are {', '.join(keys[:_KEYS_SHOWN])}"
    return f"write {' or '.join(_KINDS[kind] for kind in kinds)}" if kinds else None


def _how_text(error: Any, value: str, kinds: list[str]) -> str | None:
    """What a text should have been."""
    if "boolean" in kinds and value.lower() in _BOOLEAN_WORDS:
        return f"YAML 1.2 reads {value} as text: write true or false, without quotes"
    listed = _as_list(value)
    if value.startswith("(") and not value.endswith(")"):
        return "a list needs square brackets, such as [4, 8]"
    if "array" in kinds and (listed or _NAME.fullmatch(value)):
        return f"write the list as {listed or f'[{value}]'}"
    if listed and error.absolute_path and isinstance(error.absolute_path[-1], int):
        return f"separate the items with commas: {listed}"
    if "." in value and "attr" in error.schema.get("properties", {}):
        return f"for an object of the model write {{attr: {value}}}"
    return None


def _as_list(value: str) -> str | None:
    """``4, 8``, ``(4, 8)`` and ``4 8`` as the list that was meant."""
    parts = value.strip("()[]<>").replace(",", " ").split()
    return f"[{', '.join(parts)}]" if len(parts) > 1 or value.startswith("(") else None


def _example(schema: Mapping[str, Any], document: Document, path: KeyPath) -> str:
    """The first example of a schema in the names of the spec, as YAML in one line."""
    if not isinstance(schema, Mapping) or "x-examples" not in schema:
        return ""
    return flow(own(schema["x-examples"][0], document.data, path))
