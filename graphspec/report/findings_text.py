"""Findings for a person: place, code and message, the line with a caret, and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from graphspec.errors import Diagnostic
from graphspec.units import counted

_BREAK = re.compile(r"\r\n|\r|\n")
_TOKEN = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s,\[\]{}:]+|.")
_WIDTH = 140
#: What begins a command of a terminal, which a line of a file must not give.
_NO_COMMANDS = {0x1B: "\ufffd", 0x9B: "\ufffd"}
_COLOURS: Mapping[str, str] = {"error": "31", "warning": "33", "bold": "1", "faint": "2"}


def render(findings: Sequence[Diagnostic], sources: Mapping[str, str], *, colour: bool = False) -> str:
    """Every finding in the order given. ``sources`` maps a file to its text; without it the line is left out."""
    lines = {file: _BREAK.split(text) for file, text in sources.items()}
    return "".join(_one(each, lines.get(each.file or "", []), colour=colour) for each in findings)


def summary(findings: Sequence[Diagnostic], specs: int) -> str:
    """The last line: ``2 specs: 3 errors, 1 warning``."""
    counts = [
        counted(count, kind)
        for kind in ("error", "warning")
        if (count := sum(each.severity == kind for each in findings))
    ]
    return f"{counted(specs, 'spec')}: {', '.join(counts) or 'no findings'}\n"


def _one(finding: Diagnostic, lines: Sequence[str], *, colour: bool) -> str:
    place = ":".join(str(part) for part in (finding.file, finding.line, finding.column) if part is not None)
    severity = _painted(f"{finding.severity}[{finding.code}]", finding.severity, colour=colour)
    head = f"{_painted(place, 'bold', colour=colour)}: {severity}" if place else severity
    text = f"{head}: {_visible(finding.message)}\n"
    if finding.line is not None and 0 < finding.line <= len(lines):
        text += _snippet(lines[finding.line - 1], finding.line, finding.column, finding.severity, colour=colour)
    if finding.hint is not None:
        text += f"  fix: {_visible(finding.hint)}\n"
    return text


def _visible(text: str) -> str:
    """``text`` with what shows nothing, or commands a terminal, as escapes; further lines of it are indented."""
    if text.isprintable():
        return text
    lines = ("".join(each if each.isprintable() else _escaped(each) for each in line) for line in text.split("\n"))
    return "\n    ".join(lines)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _snippet(line: str, number: int, column: int | None, severity: str, *, colour: bool) -> str:
    gutter = _painted(f"{number:5} | ", "faint", colour=colour)
    blank = _painted("      | ", "faint", colour=colour)
    start = column - 1 if column is not None else 0
    if len(line) > _WIDTH and start > _WIDTH // 2:  # keep the place in sight in a very long line
        cut = start - _WIDTH // 2
        line, start = "..." + line[cut:], start - cut + 3
    text = f"{gutter}{line[:_WIDTH].rstrip().translate(_NO_COMMANDS)}\n"
    if column is None:
        return text
    token = _TOKEN.match(line, start)
    length = max(1, min(len(token[0]) if token else 1, _WIDTH - start))
    indent = "".join("\t" if each == "\t" else " " for each in line[:start])
    return f"{text}{blank}{indent}{_painted('^' * length, severity, colour=colour)}\n"


def _painted(text: str, colour_name: str, *, colour: bool) -> str:
    return f"\x1b[{_COLOURS[colour_name]}m{text}\x1b[0m" if colour else text
