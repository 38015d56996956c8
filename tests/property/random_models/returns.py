"""What a region returns, and what the spec calls it."""

from __future__ import annotations

import random
from typing import Any

import torch

from random_models.language import written
from random_models.program import Program
from random_models.worlds import Known


def draw_returns(program: Program, number: int, *, last: bool) -> tuple[str, Any]:
    """The return expression of region ``number``, and its key `outputs`; the values become readable."""
    rng = program.rng
    known = [each for each in program.worlds.known() if each.axes is not None]
    chosen = rng.choices(known, [_weight(at, each) for at, each in enumerate(known)], k=rng.choice((1, 1, 2, 3)))
    names = [_name(program, each, f"h{number}_{at}", last=last) for at, each in enumerate(chosen)]
    expressions = [each.name for each in chosen]
    if rng.random() < 0.15 and len(chosen) > 1 and not program.signature.bucketed:
        names.append(f"h{number}t")
        expressions.append(f"({chosen[0].name}, {chosen[1].name})")
    _publish(program, names, expressions)
    if len(names) == 1:
        return expressions[0], names[0]
    if rng.random() < 0.25:
        inside = ", ".join(f"'k{at}': {expression}" for at, expression in enumerate(expressions))
        return f"{{{inside}}}", {name: f"k{at}" for at, name in enumerate(names)}
    return f"({', '.join(expressions)})", names


def _weight(at: int, each: Known) -> float:
    """Mostly what was made last."""
    return 4.0 + 3 * at if each.name.startswith("v") else 0.5 if each.name.startswith("self.") else 1.5


def _name(program: Program, each: Known, fresh: str, *, last: bool) -> str:
    rng, dtype = program.rng, str(each.dtype).removeprefix("torch.")
    shape = written(each.axes or ())
    for name, buffer in program.buffers.items():
        fits = buffer.get("role") == "state" and buffer.get("shape") == shape and buffer.get("dtype") == dtype
        fits = fits and program.worlds.base.named[name].shape == each.tensor.shape  # not where a region resized it
        if fits and name not in program.written and rng.random() < 0.7:
            program.written.add(name)
            return name
    if rng.random() < (0.2 if program.signature.bucketed else 0.4) and not (last and program.signature.bucketed):
        return fresh
    program.buffers[fresh] = {"role": "output", "shape": shape, "dtype": dtype, **_keys(rng)}
    return fresh


def _keys(rng: random.Random) -> dict[str, bool]:
    return {**({"static": True} if rng.random() < 0.15 else {}), **({"copy": False} if rng.random() < 0.1 else {})}


def _publish(program: Program, names: list[str], expressions: list[str]) -> None:
    """Make the values known, all at once: what lies in a state that is written is copied first."""
    states = {name for name in names if program.buffers.get(name, {}).get("role") == "state"}
    for world in program.worlds.all:
        values = [eval(expression, {}, world.local) for expression in expressions]  # noqa: S307  names only
        storages = {world.named[name].untyped_storage()._cdata for name in states}
        for name, value in zip(names, [_apart(value, storages) for value in values], strict=True):
            if name in states:
                world.named[name].copy_(value)
            else:
                world.named[name] = value.clone() if program.buffers.get(name, {}).get("static") else value
    program.values += [name for name in names if name not in program.values]


def _apart(value: Any, storages: set[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone() if value.untyped_storage()._cdata in storages else value
    return tuple(_apart(item, storages) for item in value)
