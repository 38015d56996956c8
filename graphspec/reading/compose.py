"""YAML text to one node tree, resolved by the core schema of YAML 1.2; what cannot be read is one finding.

libyaml does the reading where PyYAML was built with it, PyYAML's own parser elsewhere: both give the same nodes, and
the messages are graphspec's, made from the place of the error.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from graphspec.errors import Diagnostic, SpecError
from graphspec.reading import characters

TAG = "tag:yaml.org,2002:"
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), TAG + "null"),
    **dict.fromkeys(("true", "True", "TRUE", "false", "False", "FALSE"), TAG + "bool"),
    **dict.fromkeys((f"{sign}.{word}" for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")), TAG + "float"),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), TAG + "float"),
}
_FIRST = frozenset("+-.0123456789")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
VARIABLE = r"\$\{[^{}\n]*\}"
_OPENINGS = "[{'\""


def core_tag(value: str) -> str:
    """The tag of an unquoted scalar in the core schema of YAML 1.2: `yes`, dates and `1_000` are text."""
    if value and value[0] in _FIRST:
        if _INTEGER.fullmatch(value):
            return TAG + "int"
        if _FLOAT.fullmatch(value):
            return TAG + "float"
    return _WORDS.get(value, TAG + "str")


def core_loader(base: Any) -> Any:
    """``base``, a loader class of PyYAML, with the implicit tags of the core schema."""

    class CoreLoader(base):  # type: ignore[misc]  # either of two classes
        def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
            if kind is yaml.ScalarNode:
                return core_tag(value) if implicit[0] else TAG + "str"
            return TAG + ("seq" if kind is yaml.SequenceNode else "map")

    return CoreLoader


_LOADER = core_loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def compose(text: str, file: str, loader_class: Any = _LOADER) -> yaml.Node:
    """The root node of the only document in ``text``. Raises `SpecError` with one finding."""
    _refuse_forbidden(text, file)
    try:
        # Not a YAML "load": the nodes are composed, and graphspec constructs the data itself.
        loader = loader_class(text)
        if not loader.check_node():
            raise _refused("GS003", "the file holds no spec: it is empty", file, (1, 1), "graphspec init writes one")
        root: yaml.Node = loader.get_node()
        if not loader.check_event(yaml.StreamEndEvent):
            mark = loader.peek_event().start_mark
            message = "a second document begins here; a spec file holds one"
            raise _refused("GS010", message, file, (mark.line + 1, mark.column + 1), "split the file at the `---` line")
    except yaml.MarkedYAMLError as error:
        raise SpecError([_syntax(error, text, file)]) from None
    except RecursionError:
        raise _refused("GS011", "the file is nested too deeply to be read", file, (1, 1), "flatten it") from None
    return root


def _refused(code: str, message: str, file: str, place: tuple[int, int], hint: str) -> SpecError:
    return SpecError([Diagnostic(code, message, file=file, line=place[0], column=place[1], hint=hint)])


def _refuse_forbidden(text: str, file: str) -> None:
    at = characters.forbidden(text)
    if at is not None:
        before = characters.lines_of(text[:at])
        message = f"{characters.name_of(text[at])} is not allowed in a spec"
        place = (len(before), len(before[-1]) + 1)
        raise _refused("GS005", message, file, place, characters.remedy(text[at]))


def _syntax(error: yaml.MarkedYAMLError, text: str, file: str) -> Diagnostic:
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


def variable_finding(text: str, file: str, line: int, column: int) -> Diagnostic:
    """The refusal of ``${NAME}``."""
    message = f"`{text}` is not supported: a spec has no environment variables"
    hint = "write the value, or declare a dim or a param and use its name"
    return Diagnostic("GS012", message, file=file, line=line, column=column, hint=hint)


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
