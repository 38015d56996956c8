"""The text of the files that findings point into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from graphspec.errors import Diagnostic
from graphspec.files import problem


def read_sources(findings: Iterable[Diagnostic], known: Mapping[str, str]) -> Mapping[str, str]:
    """File name to text: as it is ``known``, else as it is in an ordinary file. Others are shown without lines."""
    texts = dict(known)
    for file in {finding.file for finding in findings if finding.file is not None and finding.line is not None}:
        if file in texts or problem(Path(file)) is not None:
            continue
        try:
            texts[file] = Path(file).read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            continue
    return texts
