"""Operators whose fake kernel is missing, or stricter than the real one: no fault of the model.

A missing kernel ends the trace with `KernelMissingError`. One that refuses what it
is given is believed only if the real operator, run on zeros of the same shapes, refuses it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from graphspec.recording.source import site
from graphspec.runtime.hazards.fake import KernelMissingError, lacks_value

#: Above this many bytes the real operator is not run; its fake kernel is then believed.
_TRIED_BYTES = 64 << 20
#: Fake kernels known to refuse what the real ones take: grouped products of float32.
_STRICTER = ("aten::_grouped_mm", "aten::_scaled_mm", "aten::_scaled_grouped_mm")
_BUILT_IN = ("aten", "prim", "prims")
_NONE: Mapping[str, Any] = MappingProxyType({})


class FakeKernels(FakeTensorMode):
    """The fake mode, which tells a mistake of the model from a gap in the fake kernels.

    One mode and not two: each costs as much as a fake kernel.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = _NONE
    ) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except Exception as error:
            if lacks_value(error) or not isinstance(func, OpOverload):
                raise
            name = str(func.name()).removesuffix(".default")
            if func.namespace not in _BUILT_IN or "Unsupported" in type(error).__name__:
                raise KernelMissingError(name, _reason(error), site()) from error
            made = _tried(func, args, kwargs)
            if made is None and name.startswith(_STRICTER):
                raise KernelMissingError(name, _reason(error), site()) from error
            if made is None:
                raise
            with self:  # what the real operator gave, on fake tensors
                return _mapped(made, _fake)


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


def _tried(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """What the real operator gives on zeros; None where it fails, or cannot be asked."""
    if any(it.alias_info is not None for it in (*func._schema.arguments, *func._schema.returns)):
        return None
    if _bytes((args, kwargs)) > _TRIED_BYTES:
        return None
    try:
        with _disable_current_modes(), torch.no_grad():
            result = func(*_mapped(args, _zeros), **_mapped(kwargs, _zeros))
    except Exception:  # noqa: BLE001 - whatever it refuses, the fake kernel was right
        return None
    return result


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(item, change) for item in value)
    return value


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return math.prod(value.shape) * value.dtype.itemsize
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return sum(_bytes(item) for item in items)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype).zero_()


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
