"""One diagnostic code."""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """``title`` is one sentence, ``why`` says what would happen; ``wrong`` and ``right`` are examples, or empty."""

    code: str
    title: str
    why: str
    wrong: str = ""
    right: str = ""
