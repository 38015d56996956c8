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


def seconds(count: float) -> str:
    """``12 ms``, ``1.24 s``."""
    return microseconds(count * 1e6)


def microseconds(count: float | None) -> str:
    """``87 us``, ``1.24 ms``, ``3.5 s``: three digits at most."""
    if count is None:
        return ""
    for unit in ("us", "ms"):
        if count < 999.5:  # noqa: PLR2004  what would be rounded to 1000 takes the next unit
            return f"{count:.3g} {unit}"
        count /= 1_000
    return f"{count:,.3g} s" if count < 999.5 else f"{count:,.0f} s"  # noqa: PLR2004


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
