"""Examples in the names of the spec they are shown for: what is copied from a fix must not be the next mistake."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from graphspec.errors import KeyPath

#: What the names in the examples of the JSON Schema stand for: a section, and which of its names.
_STAND_FOR: Final[Mapping[str, tuple[str, int]]] = {
    "batch": ("dims", 0), "cache": ("dims", 1),
    "tokens": ("inputs", 0), "ids": ("inputs", 0), "a": ("inputs", 0), "b": ("inputs", 1),
    "logits": ("outputs", 0),
    "kv_lens": ("params", 0), "scale": ("params", 0), "lr": ("params", 0),
    "embed": ("regions", 0), "decode": ("regions", 1),
}  # fmt: skip
#: What an axis is where a spec has no dim for it.
_SIZES: Final = (8, 64)


def own(example: Any, data: Any, path: KeyPath = ()) -> Any:
    """``example`` for the place ``path`` of a document with this ``data``: its own names in place of invented ones.

    A section that declares nothing keeps the invented names, except for dims: there a size is as good.
    """
    if isinstance(example, dict):
        return {key: own(each, data, path) for key, each in example.items()}
    if isinstance(example, list):
        return _without_repetition([own(each, data, path) for each in example])
    if not isinstance(example, str):
        return example
    if "outputs" in path and example == "tokens":  # the example of any value's name
        example = "logits"
    factor, star, name = example.rpartition("*")
    section, index = _STAND_FOR.get(name, ("", 0))
    if not section:
        return example
    names = names_of(data, section)
    if name in names:
        return example
    if section == "dims" and index >= len(names):
        return _SIZES[index]
    return f"{factor}{star}{names[min(index, len(names) - 1)]}" if names else example


def _without_repetition(items: list[Any]) -> list[Any]:
    """Names that stand for one are listed once; sizes may be equal."""
    return [each for at, each in enumerate(items) if not isinstance(each, str) or each not in items[:at]]


def names_of(data: Any, section: str) -> list[str]:
    """What a document declares: under a section, or as the inputs or outputs of a run. Likely ones come first."""
    if section == "inputs":
        return _with_role(data, "input")
    if section == "outputs":
        made = (made for region in _section(data, "regions").values() for made in _outputs(region))
        return list(dict.fromkeys([*_with_role(data, "output"), *made]))
    declared = _section(data, section)
    if section == "dims":  # those with several sizes first: they are why an axis has a name
        return sorted(declared, key=lambda name: isinstance(declared[name], int))
    return list(declared)


def _section(data: Any, section: str) -> Mapping[str, Any]:
    found = data.get(section) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _with_role(data: Any, role: str) -> list[str]:
    buffers = _section(data, "buffers").items()
    return [name for name, each in buffers if isinstance(each, dict) and each.get("role", "input") == role]


def _outputs(region: Any) -> list[str]:
    outputs = region.get("outputs") if isinstance(region, dict) else None
    listed = [outputs] if isinstance(outputs, str) else outputs if isinstance(outputs, list | dict) else ()
    return [name for name in listed if isinstance(name, str)]


def flow(value: Any) -> str:
    """A value as YAML in one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)
