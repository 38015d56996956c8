"""Values of what a factory computes on the host: ``[p.item() for p in torch.linspace(0, rate, depth)]``.

Fake tensors have no values, so the few small tensors that come from nothing but numbers are computed for real beside
their fakes, for as long as only they go into an operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from graphspec.recording.writes import effect_of
from graphspec.runtime.holdings.storages import tensors_in

_MOST_ELEMENTS = 4096
_READS = frozenset({"tolist", "numpy", "__array__", "__repr__", "__format__"})


class HostConstants(TorchDispatchMode):
    """Keeps the real value beside each small tensor that is made of numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: MutableMapping[torch.Tensor, torch.Tensor] = WeakIdKeyDictionary()

    def value(self, tensor: Any) -> torch.Tensor | None:
        """The real value of a tensor, if it is known."""
        if not isinstance(tensor, torch.Tensor):
            return None
        return tensor if type(tensor) is torch.Tensor else self._known.get(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        real = self._computed(func, args, kwargs)
        if func is torch.ops.aten._local_scalar_dense.default and real is not None:
            return real
        result = func(*args, **kwargs)
        self._note(result, real)
        if real is None:
            self._forget(effect_of(func).targets(args, kwargs))
        return result

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags or func.namespace != "aten" or "empty" in func.name():
            return None
        if not any(isinstance(arg, torch.Tensor) for arg in args) and _asked_for(args) > _MOST_ELEMENTS:
            return None
        try:
            given, named = self._real(args), self._real(kwargs)
            with _disable_current_modes(), torch.no_grad():
                return func(*given, **named)
        except Exception:  # noqa: BLE001 - then its value is not known
            return None

    def _real(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self.value(value)
            if known is None or known.numel() > _MOST_ELEMENTS:
                raise LookupError
            return known
        if isinstance(value, dict):
            return {key: self._real(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._real(item) for item in value)
        return value

    def _note(self, result: Any, real: Any) -> None:
        if isinstance(result, torch.Tensor) and isinstance(real, torch.Tensor):
            if type(result) is not torch.Tensor and real.numel() <= _MOST_ELEMENTS:
                self._known[result] = real
        elif isinstance(result, (list, tuple)) and isinstance(real, (list, tuple)):
            for item, other in zip(result, real, strict=False):
                self._note(item, other)

    def _forget(self, written: tuple[Any, ...]) -> None:
        """A write of something unknown: whatever shares the memory is unknown from now on."""
        touched = {tensor.untyped_storage()._cdata for tensor in tensors_in(written)}
        for tensor in list(self._known) if touched else ():
            if tensor.untyped_storage()._cdata in touched:
                del self._known[tensor]


class HostReads(TorchFunctionMode):
    """Answers the reads that never reach the dispatcher."""

    def __init__(self, constants: HostConstants) -> None:
        super().__init__()
        self._constants = constants

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if getattr(func, "__name__", "") in _READS and args and type(args[0]) is not torch.Tensor:
            real = self._constants.value(args[0])
            if real is not None:
                with _disable_current_modes():
                    return func(real, *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _asked_for(args: tuple[Any, ...]) -> int:
    """Elements that a maker such as ``zeros([4096, 4096])`` or ``arange(0, 10**9)`` asks for, at most."""
    product = 1
    for arg in args:
        for number in arg if isinstance(arg, (list, tuple)) else (arg,):
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                product *= max(1, int(abs(number))) if math.isfinite(number) else 1
    return product
