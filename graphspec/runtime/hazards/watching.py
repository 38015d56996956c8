"""What modes and patches tell a watch, and ask of it; ``watch.py`` answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from graphspec.hazards import Hazard
from graphspec.recording.source import Site
from graphspec.runtime.hazards.conditions import FunctionCall
from graphspec.runtime.hazards.streams import Streams


class Watching(Protocol):
    """One dry run under watch."""

    streams: Streams
    trains: bool
    restores_streams: bool

    def report(self, hazard: Hazard, operator: str, at: Site | None = None) -> None:
        """Adds a finding, at the line of the model that is running or at ``at``."""

    def is_host(self, tensor: Any) -> bool:
        """Whether a tensor is a number of the host."""

    def function(self, call: FunctionCall) -> AbstractContextManager[Any]:
        """Around a torch function; what it gives takes the result."""

    def operator(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Judges an operator of the dispatcher, and runs it."""

    def python_call(self, hazard: Hazard, name: str) -> AbstractContextManager[None]:
        """Around a Python call that is a hazard."""
