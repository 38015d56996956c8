"""What else is wrong with a document that the schema refused: all mistakes in one pass, none of them twice.

A key whose value is wrong is taken away, a misspelt one gets its name, and the rules run on what is left. They say
only what cannot be a consequence of the first mistake: in doubt nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphspec import schema
from graphspec.build_spec import build
from graphspec.document import Document
from graphspec.errors import Diagnostic, KeyPath
from graphspec.nearest import nearest
from graphspec.rules.registry import RULES

#: Rounds of repair: taking a value away can leave its owner without a required key.
_ROUNDS = 4
#: What stands in for a key that must be there.
_REQUIRED: Mapping[str, Any] = {"model": {"factory": "package:name"}, "factory": "package:name", "call": "model",
                                "type": "int"}  # fmt: skip
#: What stands in for a thing that cannot be kept: it has to go on existing under its name.
_STAND_INS: Mapping[str, Any] = {"dims": 1, "params": {"type": "int"}, "buffers": {}, "regions": {"call": "model"}}
#: Findings elsewhere that may only follow from a section, a thing of it, or a key of a thing being taken away.
_CONSEQUENCES: Mapping[tuple[str, ...], frozenset[str]] = {
    ("dims",): frozenset({"GS210", "GS404"}),
    ("dims", "*"): frozenset({"GS217", "GS218", "GS404"}),
    ("params",): frozenset({"GS201", "GS211"}),
    ("params", "*"): frozenset({"GS219", "GS405", "GS503"}),
    ("buffers",): frozenset({"GS201", "GS202", "GS203", "GS204"}),
    ("buffers", "*", "role"): frozenset({"GS202", "GS203"}),
    ("regions",): frozenset({"GS201", "GS204", "GS205"}),
    ("regions", "*"): frozenset({"GS201", "GS202", "GS203", "GS204", "GS207", "GS223"}),
    ("regions", "*", "outputs"): frozenset({"GS201", "GS202", "GS203", "GS204"}),
    ("regions", "*", "eager"): frozenset({"GS207", "GS224"}),
    ("regions", "*", "inline"): frozenset({"GS222", "GS223"}),
}
#: How much of a path is in doubt after a repair: a buffer's keys are judged together, a region's one by one.
_DOUBT: Mapping[str, int] = {"regions": 3}


def further_findings(document: Document, refused: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The findings of the rules that stand whatever the ``refused`` places should have said."""
    data = copy.deepcopy(document.data)
    repaired: dict[KeyPath, KeyPath] = {}  # what was taken away, and the part of the document that is in doubt for it
    findings = list(refused)
    for _ in range(_ROUNDS):
        if not findings:
            break
        for each in sorted(findings, key=lambda found: -len(found.path)):
            path = _repair(data, each)
            repaired[path] = path if each.code == "GS101" else path[: _DOUBT.get(str(path[0]), 2)]
        findings = schema.check(replace(document, data=data))
    if findings:
        return []
    spec = build(replace(document, data=data))
    hidden = {code for path in repaired for code in _consequences(path)}
    misplaced = (str(each.path[-1]) for each in refused if each.code == "GS101")
    hidden = hidden.union(*(_CONSEQUENCES.get((key,), ()) for key in misplaced))
    found = (each for rule in RULES for each in rule(spec))
    return [each for each in found if _stands(each, repaired.values(), hidden)]


def _stands(finding: Diagnostic, doubtful: Collection[KeyPath], hidden: set[str]) -> bool:
    in_doubt = any(finding.path[: len(path)] == path for path in doubtful)
    return finding.severity == "error" and not in_doubt and finding.code not in hidden


def _consequences(path: KeyPath) -> frozenset[str]:
    section, rest = str(path[0]), path[1:]
    exact = (section, "*", *map(str, rest[1:2])) if rest else (section,)
    thing = (section, "*") if section in {"dims", "params"} else ()
    return _CONSEQUENCES.get(exact, _CONSEQUENCES.get(thing, frozenset()))


def _repair(data: dict[str, Any], finding: Diagnostic) -> KeyPath:
    """Change ``data`` so that this finding goes away; the place that was changed."""
    path = _outside_lists(finding.path)
    owner, key = _at(data, path[:-1]), str(path[-1])
    if not isinstance(owner, dict):
        return path
    if finding.code == "GS101" and _renamed(owner, key, finding.hint or ""):
        return path
    missing = key not in owner
    owner.pop(key, None)
    if key in _REQUIRED and finding.code != "GS101":
        owner[key] = copy.deepcopy(_REQUIRED[key])
    elif missing and len(path) > 1:  # its owner is what cannot be kept
        return _repair(data, replace(finding, code="", path=path[:-1]))
    elif len(path) == len(("section", "name")) and path[0] in _STAND_INS and finding.code != "GS110":
        owner[key] = copy.deepcopy(_STAND_INS[str(path[0])])
    return path


def _outside_lists(path: KeyPath) -> KeyPath:
    """The key that holds the list: items keep their positions, so a list is taken away whole."""
    for index, part in enumerate(path):
        if isinstance(part, int):
            return path[:index]
    return path


def _renamed(owner: dict[str, Any], key: str, hint: str) -> bool:
    """Give a misspelt key the name its finding suggests, unless that one is there too."""
    if "`" not in hint or not hint.startswith("did you mean"):
        return False
    meant = hint.split("`")[1]
    if meant in owner or key not in owner or nearest(key, [meant]) is None:
        return False
    owner[meant] = owner.pop(key)
    return True


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data
