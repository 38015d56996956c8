"""The first difference between two dry runs of one region, in words."""

from __future__ import annotations

from collections.abc import Sequence

from graphspec.recording.source import Site

#: One recorded call: its operator, the model's line, and its signature (shapes, dtypes and constants), as text.
DryRunCall = tuple[str, Site, str]


def dry_run_difference(first: Sequence[DryRunCall], second: Sequence[DryRunCall]) -> str | None:
    """What the second dry run did otherwise, with both source lines; None when both made the same calls.

    The line counts too: the same operator called from another line is another path through the model.
    """
    shorter = min(len(first), len(second))
    for index, (one, two) in enumerate(zip(first, second, strict=False)):
        if (one[0], one[1]) != (two[0], two[1]):
            return f"call {index} is {one[0]} at {one[1]} in the first dry run and {two[0]} at {two[1]} in the second"
        if one != two:
            return f"call {index}, {one[0]} at {one[1]}, takes {one[2]} in the first dry run and {two[2]} in the second"
    if len(first) == len(second):
        return None
    name, place, _ = max(first, second, key=len)[shorter]
    run, other = ("first", "second") if len(first) > shorter else ("second", "first")
    return f"call {shorter}, {name} at {place}, is made in the {run} dry run only; the {other} ends before it"
