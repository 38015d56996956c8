"""Findings for a program: one JSON object, whose keys are frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from graphspec.errors import Diagnostic

#: The version of this format.
VERSION = 1


def render(findings: Sequence[Diagnostic], _sources: Mapping[str, str]) -> str:
    """``{"version": 1, "diagnostics": [...]}``; ``path`` is the list of keys and indices inside the spec."""
    return json.dumps({"version": VERSION, "diagnostics": [_one(each) for each in findings]}, indent=2) + "\n"


def _one(finding: Diagnostic) -> dict[str, object]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "message": finding.message,
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "path": list(finding.path),
        "hint": finding.hint,
    }
