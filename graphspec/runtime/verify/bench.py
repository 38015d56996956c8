"""One sequence run again and again from the same states: by eager, and by its graphs, on any content of padded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graphspec.runtime.holdings.random_state import Ambient
from graphspec.runtime.values.trees import owned
from graphspec.runtime.verify.carried import Carried
from graphspec.runtime.verify.compare import Comparison, Tolerance, compare

#: What the padded rows of an input hold in place of its `pad`, at the shape of the bucket.
Fills = Mapping[str, torch.Tensor]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Bench:
    """``replay`` runs the graphs of a sequence, ``eager`` the model's own code, on inputs and params.

    ``carried`` is what they leave to later runs; it and the random streams are put back between two runs.
    """

    replay: Callable[[Values, Fills | None], Mapping[str, Any]]
    eager: Callable[[Values], Mapping[str, Any]]
    carried: Carried
    generators: tuple[torch.Generator, ...] = ()

    def compared(self, values: Values, tolerance: Tolerance) -> Comparison:
        """One run of eager, and one of the graphs, which alone leaves what it carries over."""
        before, ambient = self.carried.save(), Ambient.take(self.generators)
        expected = {**owned(self.eager(cloned(values))), **self.carried.contents()}
        random = ambient.drawn()
        self.carried.restore(before)
        ambient.restore()
        came = {**owned(self.replay(cloned(values), None)), **self.carried.contents()}
        if random and tolerance.resized:
            # A bucket draws more numbers than eager needs, so later draws differ: the padding proof has to do here.
            return Comparison("match", 0.0, None, {})
        return compare(expected, came, tolerance)

    def filled(self, values: Values, fills: Fills) -> dict[str, Any]:
        """The results of the graphs and what they carry over, with these contents in padded rows; all is put back."""
        before, ambient = self.carried.save(), Ambient.take(self.generators)
        found = {**owned(self.replay(cloned(values), fills)), **self.carried.contents()}
        self.carried.restore(before)
        ambient.restore()
        return found


def cloned(values: Values) -> dict[str, Any]:
    """The same values with memory of their own: a run may write to its inputs."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
