"""What happened since a spec was opened."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """How many runs graphs have served at one real size: all that a run counts.

    ``real`` and ``padded`` are the elements of one run.
    """

    label: str
    real: int
    padded: int
    runs: int = 0


@dataclass
class Stats:
    """Counts over all sequences.

    ``replays`` are runs served by graphs, ``fallbacks`` runs served eagerly (`on_miss: eager`). ``bucket_hits`` counts
    runs by bucket. ``real`` and ``padded`` count elements of the bucketed sizes, asked for and run. ``verified`` runs
    were repeated by eager and compared (`check.every`, `Runner.verify`), which took ``verify_s`` seconds more.
    ``evictions`` counts sets of graphs that made room for others; see `Plan.unlisted`.
    ``turns`` counts those that the loops of sequences made.
    """

    fallbacks: int = 0
    verified: int = 0
    verify_s: float = 0.0
    evictions: int = 0
    turns: int = 0
    _tallies: dict[tuple[str, int, int], Tally] = field(default_factory=dict, repr=False)

    def tally(self, label: str, real: int, padded: int) -> Tally:
        """Where runs at a real size in the bucket ``label`` are counted."""
        return self._tallies.setdefault((label, real, padded), Tally(label, real, padded))

    @property
    def replays(self) -> int:
        """How many runs graphs have served."""
        return sum(tally.runs for tally in self._tallies.values())

    @property
    def bucket_hits(self) -> dict[str, int]:
        """The same by bucket."""
        hits: dict[str, int] = {}
        for tally in self._tallies.values():
            if tally.runs:
                hits[tally.label] = hits.get(tally.label, 0) + tally.runs
        return hits

    @property
    def real(self) -> int:
        """The elements of the bucketed sizes that were asked for."""
        return sum(tally.real * tally.runs for tally in self._tallies.values())

    @property
    def padded(self) -> int:
        """The elements that were run."""
        return sum(tally.padded * tally.runs for tally in self._tallies.values())

    @property
    def padded_fraction(self) -> float:
        """The part of what was run that was padding, between 0 and 1."""
        return 1 - self.real / self.padded if self.padded else 0.0
