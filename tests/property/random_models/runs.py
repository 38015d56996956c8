"""The runs of a draw: which sequence, at which sizes, with what done before."""

from __future__ import annotations

import random
from collections.abc import Mapping

from random_models.language import RunDraw
from random_models.signature import Signature
from random_models.values import make_param

#: Three runs in a row come first; then something happens between them.
BEFORE = ("", "", "", "poison", "reset", "recapture", "scale", "write", "", "poison")


def draw_runs(rng: random.Random, signature: Signature, sequences: Mapping[str, tuple[str, ...]]) -> tuple[RunDraw, ...]:
    """Three fresh runs in a row and up to three more, each with sizes, params and optional inputs of its own."""
    names = list(sequences)
    runs = []
    for number in range(3 + rng.choice((1, 2, 3))):
        sizes = {dim: _size(rng, signature, dim) for dim in signature.bucketed}
        before = "" if number < 3 else rng.choice(BEFORE[3:])  # noqa: PLR2004
        params = {
            name: make_param(param, sizes, rng)
            for name, param in signature.params.items()
            if rng.random() < 0.7 or param.get("shape")
        }
        optional = [name for name, buffer in signature.buffers.items() if buffer.get("optional")]
        absent = tuple(name for name in optional if rng.random() < 0.4)
        held = [name for name, buffer in signature.buffers.items() if buffer.get("hold")]
        if number and not signature.bucketed:
            absent += tuple(name for name in held if rng.random() < 0.5)
        name = names[0] if number == 0 else rng.choice(names)
        runs.append(RunDraw(name, sizes, rng.randrange(10**6), params, absent, before))
    return tuple(runs)


def _size(rng: random.Random, signature: Signature, dim: str) -> int:
    sizes = signature.sizes(dim)
    return rng.randint(1, sizes[-1]) if signature.padded else rng.choice(sizes)
