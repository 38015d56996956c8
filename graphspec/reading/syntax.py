"""What YAML cannot read, as one finding: the slip that explains it, else the character where reading stopped."""

from __future__ import annotations

import contextlib
import re

import yaml

from graphspec.errors import Diagnostic
from graphspec.reading import characters
from graphspec.reading.variables import VARIABLE, variable_finding

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENINGS = "[{'\""
_CLOSING = {"[": "]", "{": "}"}


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
    if not _character(lines, *places[0]):
        return _cut_off(error.problem or "", text, lines, file, places)
    return _stopped(error.problem or "", lines, file, places)


def _anchor(problem: str, lines: list[str], file: str, line: int, column: int) -> Diagnostic:
    name = re.match(r"[*&]?([^\s,\[\]{}:]*)", lines[line][column:] if line < len(lines) else "")
    word = name[1] if name else ""
    if not word:
        message, hint = (
            f"`{'*' if 'alias' in problem else '&'}` has no name after it",
            "write the name, or quote the value",
        )
    elif "alias" in problem:
        message, hint = f"the alias *{word} has no anchor", f"write &{word} at the value it stands for, above this line"
    else:
        message, hint = f"the anchor &{word} is defined twice", "give the second one another name"
    return Diagnostic("GS007", message, file=file, line=line + 1, column=column + 1, hint=hint)


def _cut_off(problem: str, text: str, lines: list[str], file: str, places: list[tuple[int, int]]) -> Diagnostic:
    """The file, or a line of it, ends too early: reported at what was opened and never closed, if there is any."""
    opening = _character(lines, *places[-1])
    place = places[-1] if opening and opening in _OPENINGS else _unclosed(text)
    if place is None:
        line, column = _end(lines, *places[0])
        message, hint = f"the file cannot be read as YAML: it ends too early ({problem})", "complete the last value"
    else:
        (line, column), opening = place, _character(lines, *place)
        message = f"{characters.name_of(opening)} opened here is not closed before the end of the file or line"
        hint = f"add the missing {_CLOSING.get(opening, opening)}"
    return Diagnostic("GS004", message, file=file, line=line + 1, column=column + 1, hint=hint)


def _unclosed(text: str) -> tuple[int, int] | None:
    """The place of the last bracket that is open where ``text`` ends."""
    open_: list[yaml.Mark] = []
    with contextlib.suppress(yaml.YAMLError):
        for token in yaml.scan(text, Loader=_LOADER):
            if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
                open_.append(token.start_mark)
            elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken) and open_:
                open_.pop()
    return (open_[-1].line, open_[-1].column) if open_ else None


def _end(lines: list[str], line: int, column: int) -> tuple[int, int]:
    """A place where reading stopped, inside the file: behind its last text, where it stopped after that."""
    if line < len(lines) and lines[line].strip():
        return line, min(column, len(lines[line]))
    last = max((at for at, row in enumerate(lines[: line + 1]) if row.strip()), default=0)
    return last, len(lines[last].rstrip())


def _stopped(problem: str, lines: list[str], file: str, places: list[tuple[int, int]]) -> Diagnostic:
    """The character where reading stopped. A bracket that another line ended is reported where it was opened."""
    line, column = places[0]
    character, opening = _character(lines, line, column), _character(lines, *places[-1])
    if len(places) > 1 and opening and opening in _OPENINGS and character == ":":
        message = f"{characters.name_of(opening)} opened here is not closed before line {line + 1}"
        line, column = places[-1]
        hint = f"add the missing {_CLOSING.get(opening, opening)}"
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
