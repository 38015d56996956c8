"""A finding at a place of a spec: the one way that checks of the front half make a `Diagnostic`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphspec.errors import Diagnostic, KeyPath, Severity
from graphspec.units import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphspec.document import Document


def finding(
    document: Document | None,
    code: str,
    message: str,
    path: KeyPath,
    *,
    key: bool = False,
    hint: str | None = None,
    severity: Severity = "error",
) -> Diagnostic:
    """A `Diagnostic` at ``path``, or at its key. Without a document (a spec built by hand) it has no position."""
    if document is None:
        return Diagnostic(code, message, severity, path=path, hint=hint)
    line, column = document.position(path, key=key)
    return Diagnostic(code, message, severity, str(document.path), line, column, path, hint)


def placed(document: Document | None, found: Diagnostic, *, key: bool = False) -> Diagnostic:
    """A finding that knows its path in the spec only, with the line and column of that path too."""
    if document is None or found.file is not None or not found.path:
        return found
    line, column = document.position(found.path, key=key)
    return replace(found, file=str(document.path), line=line, column=column)


def in_order(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sorted by position, each once: the mistake of an anchor is found again at each of its aliases."""
    ordered = sorted(findings, key=lambda each: (each.file or "", each.line or 0, each.column or 0, each.code))
    seen: set[tuple[object, ...]] = set()
    kept = []
    for each in ordered:
        place = (each.code, each.file, each.line, each.column, each.path if each.line is None else each.path[-1:])
        if place not in seen:
            seen.add(place)
            kept.append(each)
    return kept


def dotted(path: KeyPath) -> str:
    """``path`` as messages show it: ``regions.decode.updates[0].op``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{shortened(part)}" if text else shortened(part)
    return text
