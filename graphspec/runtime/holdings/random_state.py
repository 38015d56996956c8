"""Random streams and ambient flags of the process, taken and put back as one value.

Streams: torch's default generators (CPU, and the accelerator's once it is in use), given generators, Python's
``random`` and numpy's legacy global one. Flags: grad mode, autocast, default dtype, determinism.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy.random
import torch

from graphspec.runtime.holdings.storages import quiet

_Flag = tuple[Callable[[], Any], Callable[[Any], Any]]


@dataclass(frozen=True)
class Ambient:
    """One moment of the process's random streams and flags. See `take`."""

    generators: tuple[tuple[torch.Generator, torch.Tensor], ...]
    host: tuple[tuple[str, Any], ...]
    flags: tuple[tuple[Callable[[Any], Any], Callable[[], Any], Any], ...]

    @classmethod
    def take(cls, generators: Iterable[torch.Generator]) -> Ambient:
        """The state now, of the default streams and of these generators."""
        flags = tuple((put, get, get()) for get, put in _flags())
        every = {id(generator): generator for generator in (*default_generators(), *generators)}
        with quiet():  # not around the flags: it turns grad mode off
            states = tuple((generator, generator.get_state()) for generator in every.values())
        return cls(states, tuple((name, get()) for name, (get, _) in _host_streams().items()), flags)

    def drawn(self) -> bool:
        """Whether any of the generators has moved since."""
        return any(not torch.equal(generator.get_state(), state) for generator, state in self.generators)

    def host_moved(self) -> tuple[str, ...]:
        """Which of Python's and numpy's global streams have moved since: "random", "numpy.random"."""
        streams = _host_streams()
        return tuple(name for name, state in self.host if not _equal(streams[name][0](), state))

    def restore(self) -> None:
        """Put everything back."""
        with quiet():
            for generator, state in self.generators:
                generator.set_state(state)
        for name, state in self.host:
            _host_streams()[name][1](state)
        for put, get, value in self.flags:
            if get() != value:
                put(value)


def default_generators() -> tuple[torch.Generator, ...]:
    """The default generators of the CPU and, once it is initialised, of each accelerator device."""
    if not torch.accelerator.is_available():
        return (torch.default_generator,)
    kind = torch.accelerator.current_accelerator()
    module: Any = torch.get_device_module(kind)
    if not module.is_initialized():
        return (torch.default_generator,)
    return (torch.default_generator, *module.default_generators)


def _host_streams() -> dict[str, _Flag]:
    return {
        "random": (random.getstate, random.setstate),
        "numpy.random": (numpy.random.get_state, numpy.random.set_state),  # also before a model first asks for it
    }


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        if set(map(type, one)) == {int}:  # the hundreds of words of Python's stream
            return bool(one == other)
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    return one.tobytes() == other.tobytes() if hasattr(one, "tobytes") else bool(one == other)


def _flags() -> tuple[_Flag, ...]:
    """Getter and setter of each ambient flag."""
    kinds = ["cpu"]
    if torch.accelerator.is_available():
        kinds.append(str(torch.accelerator.current_accelerator()).partition(":")[0])
    autocast = [flag for kind in kinds for flag in _autocast_flags(kind)]
    return (
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        *autocast,
    )


def _autocast_flags(kind: str) -> tuple[_Flag, ...]:
    return (
        (lambda: torch.is_autocast_enabled(kind), lambda value: torch.set_autocast_enabled(kind, value)),
        (lambda: torch.get_autocast_dtype(kind), lambda value: torch.set_autocast_dtype(kind, value)),
    )
