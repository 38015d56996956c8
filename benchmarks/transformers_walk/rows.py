"""What a walk finds of each model type, and its table."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What one model type gave: ``verdict`` is match, refused, mismatch, failed, timeout or not evaluated."""

    type: str
    verdict: str
    code: str = ""
    detail: str = ""
    operators: int = 0
    seconds: float = 0.0


def table(rows: list[Row], what: str) -> str:
    """The counts, and the types under each verdict, as Markdown."""
    import torch
    import transformers

    counts = Counter(row.verdict for row in rows)
    evaluated = sum(count for verdict, count in counts.items() if verdict != "not evaluated")
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    lines = [
        f"{versions}, {time.strftime('%Y-%m-%d')}, {what}: {evaluated} model types evaluated.",
        "",
        "| verdict | types | |",
        "|---|---|---|",
    ]
    for verdict, code in sorted({(row.verdict, row.code) for row in rows}, key=lambda pair: (pair[0] != "match", pair)):
        found = [row.type for row in rows if (row.verdict, row.code) == (verdict, code)]
        lines.append(f"| {verdict} {code} | {len(found)} | {', '.join(sorted(found))} |")
    return "\n".join(lines)
