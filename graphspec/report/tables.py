"""Aligned columns of text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest


def table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """A heading line with the title over the first column, then the rows; empty without rows.

    A column in which every cell is empty is left out.
    """
    body = [(indent + first, *rest) for first, *rest in rows]
    if not body:
        return []
    cells = list(zip_longest(*[(title, *columns), *body], fillvalue=""))
    kept = [column for column in cells if any(column[1:])]
    widths = [max(map(len, column)) for column in kept]
    lines = zip(*kept, strict=True)
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def shortened(items: Iterable[str], most: int, separator: str = ", ") -> str:
    """``items`` joined; from more than ``most`` the middle is left out, and their number said."""
    listed = list(items)
    if len(listed) <= most:
        return separator.join(listed)
    return f"{separator.join(listed[: most - 1])}, ... {listed[-1]} ({len(listed)} in all)"
