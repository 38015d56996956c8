"""Findings as workflow commands of GitHub Actions, which show them at their lines of a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphspec.errors import Diagnostic


def render(findings: Sequence[Diagnostic], _sources: Mapping[str, str]) -> str:
    """One ``::error file=...,line=...,col=...,title=...::message`` a finding."""
    return "".join(_one(each) for each in findings)


def _one(finding: Diagnostic) -> str:
    places = (("file", finding.file), ("line", finding.line), ("col", finding.column), ("title", finding.code))
    properties = ",".join(f"{key}={_property(str(value))}" for key, value in places if value is not None)
    message = f"{finding.message}\nfix: {finding.hint}" if finding.hint is not None else finding.message
    return f"::{finding.severity} {properties}::{_data(message)}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
