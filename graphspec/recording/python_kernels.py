"""Operators whose kernel is Python: a device graph holds what that code calls, and so does a recording."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import torch.library
from torch._library.simple_registry import singleton
from torch._ops import OpOverload
from torch._subclasses import FakeTensor

from graphspec.recording.unsafe import is_unsafe

_BUILT_IN = frozenset({"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional"})
#: What serves every device for which there is no kernel of its own.
_ANY_DEVICE = "CompositeExplicitAutograd"


class PythonKernels:
    """Finds the kernels that are Python code. ``whole`` are names of operators that are to stay one call.

    An operator that torch keeps out of graphs stays one too: it is refused as such.
    """

    def __init__(self, whole: Collection[str] = ()) -> None:
        self._whole = frozenset(whole)
        self._registered: dict[OpOverload, frozenset[str]] = {}

    def opened(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> torch._C.DispatchKeySet | None:
        """Where a call of ``op`` is Python code that can be looked into: the dispatch keys that call it directly.

        On fake tensors a kernel is looked into only if there is no fake one: it may not run on this machine at all.
        """
        keys = self._registered.get(op)
        if keys is None:
            keys = self._registered[op] = _keys(op) if has_python_kernel(op) and not is_unsafe(op) else frozenset()
        if not keys or _name(op) in self._whole:
            return None
        tensor = next(_tensors((args, kwargs)), None)
        if tensor is None or (isinstance(tensor, FakeTensor) and _has_fake_kernel(op)):
            return None
        key = torch._C._dispatch_key_for_device(tensor.device.type)
        return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)) if keys & {key, _ANY_DEVICE} else None

    @staticmethod
    def on_fakes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call was given fake tensors, which a kernel of Python code may not be able to take."""
        return any(isinstance(tensor, FakeTensor) for tensor in _tensors((args, kwargs)))


def has_python_kernel(op: OpOverload) -> bool:
    """Whether Python code is registered for an operator, under any key but that of fake tensors."""
    return op.namespace not in _BUILT_IN and bool(_keys(op) - {"Meta"})


def entry(op: OpOverload) -> str:
    """How torch's list of what Python registered begins for an operator; the dispatch key follows."""
    return f"{str(op.name()).replace('::', '/', 1)}/"


def _keys(op: OpOverload) -> frozenset[str]:
    start = entry(op)
    registered = getattr(torch.library, "_impls", ())
    return frozenset(key.removeprefix(start) for key in registered if key.startswith(start))


def _name(op: OpOverload) -> str:
    return str(op.name()).partition(".")[0]


def _has_fake_kernel(op: OpOverload) -> bool:
    return "Meta" in _keys(op) or singleton.find(str(op._schema.name)).fake_impl.kernel is not None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
