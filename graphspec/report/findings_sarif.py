"""Findings as SARIF 2.1.0, the format of code scanning services."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from graphspec.codes import CODES
from graphspec.errors import Diagnostic

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(findings: Sequence[Diagnostic], _sources: Mapping[str, str]) -> str:
    """One run, with the rule of each code that was found. Columns count Unicode code points."""
    codes = sorted({each.code for each in findings})
    driver = {"name": "graphspec", "rules": [_rule(code) for code in codes]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, codes.index(each.code)) for each in findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(code: str) -> dict[str, Any]:
    entry = CODES.get(code)
    if entry is None:
        return {"id": code}
    return {"id": code, "shortDescription": {"text": entry.title}, "fullDescription": {"text": entry.why}}


def _result(finding: Diagnostic, rule: int) -> dict[str, Any]:
    text = finding.message if finding.hint is None else f"{finding.message}\nfix: {finding.hint}"
    result = {"ruleId": finding.code, "ruleIndex": rule, "level": finding.severity, "message": {"text": text}}
    if finding.file is not None:
        result["locations"] = [{"physicalLocation": _location(finding)}]
    return result


def _location(finding: Diagnostic) -> dict[str, Any]:
    path = Path(finding.file or "")
    uri = path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))  # names may be any bytes
    location: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if finding.line is not None:
        location["region"] = {"startLine": finding.line}
        if finding.column is not None:
            location["region"]["startColumn"] = finding.column
    return location
