"""Versions of dicts: what every write changes, so that one comparison says that nothing was written.

Python 3.11 and older have them, and some newer ones still do; where they do not move with every write, there are none.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def _reader() -> Any:
    try:
        from torch._C._dynamo.guards import dict_version
    except ImportError:
        return None
    return dict_version if _moves(dict_version) else None


def version(mapping: dict[Any, Any]) -> int | None:
    """The version of a dict; None where there are none."""
    read = _reader()
    return None if read is None else read(mapping)


def _moves(read: Any) -> bool:
    """Whether every kind of write is seen, and reading is not taken for one."""

    class Probe:
        """One with attributes."""

    owner = Probe()
    mapping = vars(owner)
    writes = (
        lambda: setattr(owner, "some", 1),
        lambda: setattr(owner, "some", 2),
        lambda: mapping.update(more=1),
        lambda: mapping.pop("more"),
        lambda: delattr(owner, "some"),
        mapping.clear,
    )
    owner.first = 1  # type: ignore[attr-defined]
    for write in writes:
        before = read(mapping)
        if list(mapping.values()) and read(mapping) != before:
            return False
        write()
        if read(mapping) == before:
            return False
    return True
