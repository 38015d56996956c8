"""The runs of a draw: which sequence, at which sizes, with what done before."""

from __future__ import annotations

import random
from collections.abc import Mapping

from random_models.language import RegionDraw, RunDraw, names_in
from random_models.signature import Signature
from random_models.values import make_param

#: Three runs in a row come first; then something happens between them.
BEFORE = ("", "", "", "poison", "reset", "recapture", "scale", "write", "", "poison")


def draw_runs(
    rng: random.Random, signature: Signature, regions: tuple[RegionDraw, ...], sequences: Mapping[str, tuple[str, ...]]
) -> tuple[RunDraw, ...]:
    """Three fresh runs in a row and up to three more, each with sizes, params and optional inputs of its own."""
    names = list(sequences)
    shown = {name: _shown(signature, regions, steps) for name, steps in sequences.items()}
    runs = []
    for number in range(3 + rng.choice((1, 2, 3))):
        name = names[0] if number == 0 else rng.choice(names)
        sizes = {dim: _size(rng, signature, dim, shown=dim in shown[name]) for dim in signature.bucketed}
        before = "" if number < 3 else rng.choice(BEFORE[3:])
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
        runs.append(RunDraw(name, sizes, rng.randrange(10**6), params, absent, before))
    return tuple(runs)


def _shown(signature: Signature, regions: tuple[RegionDraw, ...], steps: tuple[str, ...]) -> set[str]:
    """The dims that the inputs of a sequence show. One that none shows has the size of its bucket."""
    read = {
        name for region in regions if region.name in steps for each in region.arguments for name in names_in(each.value)
    }
    given = [buffer for name, buffer in signature.buffers.items() if name in read and not buffer.get("optional")]
    shapes = [buffer["shape"] for buffer in given if buffer.get("role") != "state" and "shape" in buffer]
    return {str(axis).rpartition("*")[2] for shape in shapes for axis in shape}


def _size(rng: random.Random, signature: Signature, dim: str, *, shown: bool) -> int:
    sizes = signature.sizes(dim)
    if not shown:
        return sizes[-1]
    return rng.randint(1, sizes[-1]) if signature.padded else rng.choice(sizes)
