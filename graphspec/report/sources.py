"""The text of the files that findings point into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from graphspec.errors import Diagnostic


def read_sources(findings: Iterable[Diagnostic]) -> Mapping[str, str]:
    """File name to text, for each file that can be read; the others are shown without their lines."""
    texts: dict[str, str] = {}
    for file in {finding.file for finding in findings if finding.file is not None and finding.line is not None}:
        try:
            texts[file] = Path(file).read_text(encoding="utf-8-sig", errors="replace")
        except (OSError, ValueError):  # noqa: PERF203  a few files
            continue
    return texts
