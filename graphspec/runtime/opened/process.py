"""Whether this is still the process that made something. Graphs, arenas and locks do not survive a fork.

Asking the system for the process id on every run costs as much as a small graph, so forks are counted instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class Forks:
    """How many forks lie between the process that imported graphspec and this one."""

    count = 0

    @classmethod
    def _one_more(cls) -> None:
        cls.count += 1

    @staticmethod
    def call(after: Callable[[], object]) -> None:
        """Call ``after`` in every process that is forked off from now on."""
        if hasattr(os, "register_at_fork"):  # there is no fork elsewhere
            os.register_at_fork(after_in_child=after)


Forks.call(Forks._one_more)
