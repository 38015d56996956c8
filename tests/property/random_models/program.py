"""What a draw in the making knows: its source of chance, the spec so far, and the worlds in which it lives."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from random_models.interpret import model_from, module_text
from random_models.signature import Signature, draw_signature
from random_models.values import make_input
from random_models.worlds import World, Worlds


@dataclass
class Program:
    """``values`` are the names that a region may read, ``written`` the states that some region writes back."""

    seed: int
    rng: random.Random
    signature: Signature
    worlds: Worlds
    buffers: dict[str, dict[str, Any]]
    values: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)


#: How large the garbage in padded rows is, by the number of a world: rows that mix must show by one or the other.
_GARBAGE = {1: 40, 2: 0.1}


def begin(seed: int) -> Program:
    """A program without regions."""
    rng = random.Random(seed)  # noqa: S311  not for secrets
    signature = draw_signature(rng)
    least = {dim: 1 if signature.padded else signature.sizes(dim)[0] for dim in signature.dims}
    text = module_text(signature.init, ())
    worlds = Worlds(lambda: model_from(text, "<draw>", seed), signature.bucketed, least, padded=signature.padded)
    buffers = {name: dict(buffer) for name, buffer in signature.buffers.items()}
    program = Program(seed, rng, signature, worlds, buffers)
    for name, buffer in buffers.items():
        if "attr" not in buffer:
            _define(program, name, buffer)
    return program


def _define(program: Program, name: str, buffer: dict[str, Any]) -> None:
    worlds, source = program.worlds, buffer.get("from")
    if isinstance(source, dict):
        number = worlds.base.sizes[next(iter(source.values()))]
        worlds.define(name, lambda _world, _number: torch.tensor(number))
    else:
        worlds.define(name, lambda world, number: _made(program, buffer, world, number))
    if buffer.get("role") != "state":
        worlds.inputs.add(name)
    program.values.append(name)


def _made(program: Program, buffer: dict[str, Any], world: World, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(program.seed * 31 + number)
    value = make_input(buffer, world.sizes, generator)
    if number in _GARBAGE and program.worlds.padded and value.is_floating_point():
        value = value * _GARBAGE[number]
    return value.to(memory_format=torch.channels_last) if "layout" in buffer else value
