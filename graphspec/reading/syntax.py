"""What YAML cannot read, as one finding: the slip that explains it, else the character where reading stopped."""

from __future__ import annotations

import re

import yaml

from graphspec.errors import Diagnostic
from graphspec.reading import characters
from graphspec.reading.compose import VARIABLE, variable_finding

_OPENINGS = "[{'\""


def syntax_finding(error: yaml.MarkedYAMLError, text: str, file: str) -> Diagnostic:
    """The finding for what YAML could not read: the slip that explains it, else the character it stopped at."""
    lines = characters.lines_of(text)
    mark = error.problem_mark or error.context_mark
    places = [(m.line, m.column) for m in (mark, error.context_mark) if m is not None]
    for line, _ in places:
        row = lines[line] if line < len(lines) else ""
        odd = characters.odd_in_line(row)
        if odd is not None:
            message = f"{characters.name_of(row[odd])} is not allowed here"
            return Diagnostic("GS005", message, file=file, line=line + 1, column=odd + 1,
                              hint=characters.remedy(row[odd]))  # fmt: skip
        variable = re.search(VARIABLE, row.partition(" #")[0])
        if variable:
            return variable_finding(variable[0], file, line + 1, variable.start() + 1)
    problem = " ".join(filter(None, (error.context, error.problem)))
    if "alias" in problem or "anchor" in problem:
        return _anchor(problem, lines, file, *places[0])
    if "nesting" in problem:
        return Diagnostic("GS011", "the file is nested too deeply to be read", file=file, line=places[0][0] + 1,
                          column=places[0][1] + 1, hint="flatten it")  # fmt: skip
    return _stopped(error.problem or "", lines, file, places)


def _anchor(problem: str, lines: list[str], file: str, line: int, column: int) -> Diagnostic:
    name = re.match(r"[*&]?([^\s,\[\]{}:]*)", lines[line][column:] if line < len(lines) else "")
    word = name[1] if name else ""
    if "alias" in problem:
        message, hint = f"the alias *{word} has no anchor", f"write &{word} at the value it stands for, above this line"
    else:
        message, hint = f"the anchor &{word} is defined twice", "give the second one another name"
    return Diagnostic("GS007", message, file=file, line=line + 1, column=column + 1, hint=hint)


def _stopped(problem: str, lines: list[str], file: str, places: list[tuple[int, int]]) -> Diagnostic:
    """Where reading stopped. An opening that is never closed is reported at the opening, not where the file ends."""
    line, column = places[0]
    row = lines[line] if line < len(lines) else ""
    character = row[column] if column < len(row) else ""
    opening = _character(lines, *places[-1])
    if len(places) > 1 and opening and opening in _OPENINGS and (not character or character == ":"):
        until = f"before line {line + 1}" if character else "before the end of the file or line"
        message = f"{characters.name_of(opening)} opened here is not closed {until}"
        line, column = places[-1]
        hint = {"[": "add the missing ]", "{": "add the missing }"}.get(opening, f"add the missing {opening}")
    elif not character:
        message, hint = f"the file cannot be read as YAML: it ends too early ({problem})", "complete the last value"
    else:
        message = f"{characters.name_of(character)} is not expected here: {_because(problem)}"
        if opening and opening in "[{":
            message += f", for the {opening} of line {places[-1][0] + 1}, column {places[-1][1] + 1}"
        hint = _fix(problem, character)
    return Diagnostic("GS004", message, file=file, line=line + 1, column=column + 1, hint=hint)


def _character(lines: list[str], line: int, column: int) -> str:
    row = lines[line] if line < len(lines) else ""
    return row[column] if column < len(row) else ""


def _because(problem: str) -> str:
    """The parser's reason, in words that both parsers share."""
    for word, reason in (
        ("mapping values", "a value cannot hold `: ` unless it is quoted"),
        ("cannot start any token", "no value begins with it"),
        ("expected key", "a `key: value` line of this block was expected"),
        ("<block end>", "a `key: value` line of this block was expected"),
        ("'-' indicator", "a list item was expected"),
        ("',' or", "a comma or the closing bracket was expected"),
        ("escape", "it is no escape of a double-quoted text"),
    ):
        if word in problem:
            return reason
    return problem


def _fix(problem: str, character: str) -> str:
    if "mapping values" in problem:
        return "quote the value, or check the indentation of this line"
    if "cannot start any token" in problem:
        return "quote the value"
    if "',' or" in problem:
        return "separate the items with commas, and close the bracket"
    if "escape" in problem:
        return "double the backslash, or use single quotes"
    return "check the indentation of this line and the one above" if character not in "]}" else "remove it"
