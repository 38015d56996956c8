"""The nearest name: what a finding suggests for one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 400


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like ``name``, or None where none is like it. Names of very different length are skipped."""
    import difflib

    close = [each for each in candidates if abs(len(each) - len(name)) <= max(2, len(name) // 3)]
    if len(close) > _MOST:  # a spec of a thousand regions: the names that share a beginning are the likely ones
        close = [each for each in close if each[:1] == name[:1]][:_MOST]
    lowered = {each.lower(): each for each in reversed(close)}
    found = difflib.get_close_matches(name.lower(), lowered, n=1)
    return lowered[found[0]] if found else None


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str) -> str:
    """The hint of a finding about an unknown name: the nearest one, else ``otherwise``."""
    found = nearest(name, candidates)
    return f"did you mean `{found}`?" if found is not None else otherwise
