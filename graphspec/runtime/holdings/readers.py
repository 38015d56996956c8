"""Objects of Python, numpy and TorchScript that hold what is no attribute and no member: how it is read, and put back.

What leads to another object (a context variable, a weak reference) is followed; of others a `Reading` is compared.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import operator
import random
import sys
import threading
import types
import weakref
import zlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

_LONGEST = 1 << 16
_LONGEST_SHOWN = 40
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


@dataclass(frozen=True)
class Reading:
    """What an object held at one moment, to be compared."""

    state: Any = field(hash=False)

    def __repr__(self) -> str:
        text = repr(self.state)
        return text if len(text) <= _LONGEST_SHOWN else f"state {zlib.crc32(text.encode()):08x}"


@dataclass(frozen=True)
class StateReader:
    """How what a kind of object holds is named and read; ``write`` puts it back, where that can be done."""

    suffix: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object] | None = None


def _memory(value: Any) -> Reading:
    return Reading(bytes(value))


def _write_memory(value: Any, reading: Reading) -> None:
    ctypes.memmove(ctypes.addressof(value), reading.state, len(reading.state))


def _paused(generator: Any) -> Reading:
    """Where a generator stands, and what it has in hand there."""
    frame = generator.gi_frame
    if frame is None:
        return Reading("at its end")
    return Reading(
        (
            f"at line {frame.f_lineno}",
            frame.f_lasti,
            *((name, _comparable(value)) for name, value in frame.f_locals.items()),
        )
    )


def _objects(array: np.ndarray[Any, Any]) -> Reading:
    """The members of an array of objects. Of other arrays the numbers are compared."""
    if not array.dtype.hasobject or array.size > _LONGEST:
        raise LookupError
    return Reading(tuple(map(_comparable, array.ravel().tolist())))


def _comparable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return value if isinstance(value, _PLAIN) else id(value)


def _scripted(module: Any) -> Reading:
    """The attributes of a module of TorchScript and of those within, which C++ holds; tensors by where they lie."""
    held: list[Any] = []
    for name in module._concrete_type.get_attributes():
        value = getattr(module, name, None)
        if isinstance(value, torch.Tensor):
            value = (value.data_ptr(), *value.shape, *value.stride(), str(value.dtype))
        held.append((name, _comparable(value)))
    return Reading((*held, *((name, _scripted(child)) for name, child in module._modules.items())))


def _numpy_state(stream: Any) -> Reading:
    return Reading(repr(stream.bit_generator.state))


_READERS: tuple[tuple[tuple[type, ...], StateReader], ...] = (
    ((ContextVar,), StateReader(".get()", ContextVar.get, ContextVar.set)),
    ((weakref.ref,), StateReader("()", weakref.ref.__call__)),
    ((threading.local,), StateReader(".__dict__", operator.attrgetter("__dict__"))),
    ((types.MappingProxyType,), StateReader("", lambda proxy: gc.get_referents(proxy)[0])),
    ((memoryview,), StateReader(".obj", operator.attrgetter("obj"))),
    ((ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union), StateReader("", _memory, _write_memory)),
    ((random.Random,), StateReader(".getstate()", lambda stream: Reading(stream.getstate()),
                              lambda stream, reading: stream.setstate(reading.state))),
    ((np.ndarray,), StateReader("", _objects)),
    ((torch.jit.ScriptModule,), StateReader("", _scripted)),
    ((np.random.Generator,), StateReader(".bit_generator.state", _numpy_state)),
    ((types.GeneratorType,), StateReader("", _paused)),
    ((itertools.count,), StateReader("", lambda counter: Reading(repr(counter)))),
    ((type(iter([])), type(iter(())), type(iter(range(0))), type(iter({})), itertools.repeat),
     StateReader("", lambda iterator: Reading(operator.length_hint(iterator)))),
)  # fmt: skip


_KINDS = tuple(kind for kinds, _ in _READERS for kind in kinds)
_SHARED = StateReader(".get_obj()", lambda value: value.get_obj())


def reader_of(value: Any) -> StateReader | None:
    """How what an object holds is read; None for all but these. Nothing is remembered: it would keep classes alive."""
    if isinstance(value, _KINDS):
        return next(reader for kinds, reader in _READERS if isinstance(value, kinds))
    shared = sys.modules.get("multiprocessing.sharedctypes")
    return _SHARED if shared is not None and isinstance(value, shared.SynchronizedBase) else None
