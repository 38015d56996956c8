"""The JSON Schema of the language, as it is published with the package."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "graphspec-v1.schema.json"


def schema_text() -> str:
    """The JSON Schema as shipped: inside an installed package, or beside it in a checkout."""
    from importlib.resources import files

    shipped = files("graphspec") / "schemas" / FILE
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    return (Path(__file__).parents[1] / "schemas" / FILE).read_text(encoding="utf-8")


@functools.cache
def published() -> Mapping[str, Any]:
    """The JSON Schema as data."""
    loaded: dict[str, Any] = json.loads(schema_text())
    return loaded
