"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def human_bytes(count: int) -> str:
    """``count`` bytes in the largest binary unit that keeps it at 1 or more: ``64 B``, ``31.2 KiB``, ``2 GiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004  the step of every binary unit
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"  # noqa: PLR2004  no exponent
        size /= 1024
    return f"{size:,.1f} GiB".replace(".0 ", " ")


def counted(count: int, noun: str) -> str:
    """``1 graph``, ``8 graphs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def alternatives(items: Sequence[str]) -> str:
    """``a, b or c``."""
    return f"{', '.join(items[:-1])} or {items[-1]}" if len(items) > 1 else "".join(items)


#: More of one name tells a reader nothing.
_SHOWN = 60


def shortened(name: str) -> str:
    """A name of a spec as messages show it: the beginning of a very long one."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
