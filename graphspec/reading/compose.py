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
            raise _refused(
                "GS003", "the file holds no spec: it is empty", file, (1, 1), "start with the one in README.md"
            )
        root: yaml.Node = loader.get_node()
        if not loader.check_event(yaml.StreamEndEvent):
            mark = loader.peek_event().start_mark
            message = "a second document begins here; a spec file holds one"
            raise _refused("GS010", message, file, (mark.line + 1, mark.column + 1), "split the file at the `---` line")
    except yaml.MarkedYAMLError as error:
        from graphspec.reading.syntax import syntax_finding  # only for a file with a mistake

        raise SpecError([syntax_finding(error, text, file)]) from None
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
