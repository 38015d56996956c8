"""What happened since a spec was opened."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts over all sequences.

    ``replays`` are runs served by graphs, ``fallbacks`` runs served eagerly (`on_miss: eager`). ``bucket_hits`` counts
    runs by bucket. ``real`` and ``padded`` count elements of the bucketed sizes, asked for and run. ``verified`` runs
    were repeated by eager and compared (`check.every`, `Runner.verify`), which took ``verify_s`` seconds more.
    ``evictions`` counts sets of graphs that made room for others; see `Plan.unlisted`.
    ``turns`` counts those that the loops of sequences made.
    """

    replays: int = 0
    fallbacks: int = 0
    bucket_hits: dict[str, int] = field(default_factory=dict)
    real: int = 0
    padded: int = 0
    verified: int = 0
    verify_s: float = 0.0
    evictions: int = 0
    turns: int = 0

    @property
    def padded_fraction(self) -> float:
        """The part of what was run that was padding, between 0 and 1."""
        return 1 - self.real / self.padded if self.padded else 0.0
