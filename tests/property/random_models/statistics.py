"""What became of many draws, as counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from random_models.judge import Outcome
from random_models.language import Draw


@dataclass
class Tally:
    """Draws by outcome, refusals by code, and those replayed from Python for want of C++."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    both: int = 0
    fallbacks: int = 0

    def add(self, draw: Draw, outcome: Outcome) -> None:
        """Count one draw."""
        self.outcomes[f"{outcome.kind}, illegal" if draw.illegal else outcome.kind] += 1
        self.runs += outcome.runs
        self.fallbacks += any("replayed from Python" in note for note in outcome.notes)
        if outcome.kind == "refused":
            self.refused[outcome.code] += 1

    def values(self) -> dict[str, object]:
        """As plain data, which travels between processes."""
        return {**vars(self), "outcomes": dict(self.outcomes), "refused": dict(self.refused)}

    @property
    def draws(self) -> int:
        """How many were drawn."""
        return sum(self.outcomes.values())


def total(parts: Iterable[Mapping[str, object]]) -> Tally:
    """The sum of several tallies given by `Tally.values`."""
    summed = Tally()
    for part in parts:
        summed.outcomes.update(part["outcomes"])  # type: ignore[call-overload]
        summed.refused.update(part["refused"])  # type: ignore[call-overload]
        for key in ("runs", "both", "fallbacks"):
            setattr(summed, key, getattr(summed, key) + part[key])
    return summed


def lines(tally: Tally) -> list[str]:
    """For people."""
    outcomes = ", ".join(f"{count} {kind}" for kind, count in tally.outcomes.most_common())
    refused = ", ".join(f"{code} {count}" for code, count in tally.refused.most_common())
    return [
        f"{tally.draws} draws, {tally.runs} runs compared: {outcomes}",
        f"refused by: {refused or 'none'}",
        f"{tally.both} draws also through the plain Python replayer; {tally.fallbacks} had no C++ replay",
    ]
