"""What is kept of one call of an eager part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphspec.recording.source import Site


@dataclass(frozen=True)
class PartSeen:
    """One call of a part: its name in the spec, where the model makes it, and the host values that it was given.

    ``host`` has each value that is no tensor, by its place among all leaves of the arguments.
    """

    name: str
    place: Site
    host: Mapping[int, Any]
