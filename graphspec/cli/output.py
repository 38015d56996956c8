"""What commands share about their output."""

from __future__ import annotations

import os
from typing import IO


def coloured(stream: IO[str]) -> bool:
    """Whether to colour what goes to ``stream``: on a terminal only, and not with NO_COLOR set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
