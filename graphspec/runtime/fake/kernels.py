"""Operators whose fake kernel is missing, or stricter than the real one: no fault of the model.

Entered right above the fake mode. A missing kernel ends the trace with `KernelMissingError`. One that refuses what it
is given is believed only if the real operator, run on zeros of the same shapes, refuses it too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from graphspec.recording.source import site
from graphspec.runtime.hazards.fake import KernelMissingError, lacks_value

#: Above this many bytes the real operator is not run; its fake kernel is then believed.
_TRIED_BYTES = 64 << 20
#: Fake kernels known to refuse what the real ones take: grouped products of float32.
_STRICTER = ("aten::_grouped_mm", "aten::_scaled_mm", "aten::_scaled_grouped_mm")
_BUILT_IN = ("aten", "prim", "prims")


class Kernels(TorchDispatchMode):
    """Tells a mistake of the model from a gap in the fake kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
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
            return made


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


def _tried(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Fake results in the form of the real operator's on zeros; None where it fails, or cannot be asked."""
    if any(it.alias_info is not None for it in (*func._schema.arguments, *func._schema.returns)):
        return None
    if _bytes((args, kwargs)) > _TRIED_BYTES:
        return None
    try:
        with _disable_current_modes(), torch.no_grad():
            result = func(*_mapped(args, _zeros), **_mapped(kwargs, _zeros))
    except Exception:  # noqa: BLE001 - whatever it refuses, the fake kernel was right
        return None
    return _mapped(result, _fake)


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
