"""Every error a user can see, and the finding that all of them are made of.

Nothing here imports torch: these values cross every stage.
The exit code of a command is the exit code of the error that ended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]

#: A place inside a spec: mapping keys and sequence indices, outermost first.
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Diagnostic:
    """One finding: what is wrong, where, and what to do instead.

    ``file``, ``line`` and ``column`` (both from 1) name the place, in the spec or in the model's source;
    ``path`` is the place inside the spec, as keys.
    """

    code: str
    message: str
    severity: Severity = "error"
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: KeyPath = ()
    hint: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        head = f"{place}: " if place else ""
        tail = f"\n  fix: {self.hint}" if self.hint else ""
        return f"{head}{self.severity}[{self.code}]: {self.message}{tail}"


class GraphSpecError(Exception):
    """Base of every error graphspec raises for a reason the user can act on."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.hint}" if self.hint else self.message


class FindingsError(GraphSpecError):
    """Something was refused; ``diagnostics`` holds every finding, sorted by position.

    ``sources`` is the text that was read, by file: what came through a pipe cannot be read again to show its lines.
    """

    exit_code = 1

    def __init__(self, diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None) -> None:
        self.diagnostics = tuple(diagnostics)
        self.sources = dict(sources or {})
        super().__init__("\n".join(str(finding) for finding in self.diagnostics))


class SpecError(FindingsError):
    """The spec file itself cannot be read, or breaks a rule."""


class HazardError(FindingsError):
    """A region does what a captured graph cannot repeat."""


class WeightsError(GraphSpecError):
    """A weights file does not fit the model. Nothing was loaded."""

    exit_code = 1


class CheckError(GraphSpecError):
    """Replay and eager disagree."""

    exit_code = 1


class InputError(GraphSpecError, ValueError):
    """A run was given a wrong name, shape, dtype, layout or value. Nothing was run."""

    exit_code = 2


class ModelError(GraphSpecError):
    """The user's factory or callable failed; ``__cause__`` is the user's own exception."""


class CaptureError(GraphSpecError):
    """A region could not be captured."""


class MismatchError(HazardError, ModelError, CaptureError):
    """The model is not what the spec says of it: a path, a shape, a dtype."""


class ReplayError(GraphSpecError):
    """A replay was refused, or failed."""


class GuardError(ReplayError):
    """Something a graph reads by address was moved, replaced or flipped since its capture."""


class OrderError(ReplayError):
    """A value would be read after its memory was reused."""


class DeviceError(GraphSpecError):
    """The device is missing, cannot be used, or failed."""
