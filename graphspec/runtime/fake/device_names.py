"""Devices by name, on a build for the CPU: a factory may say ``cuda`` or ``npu`` where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from graphspec.recording.source import torch_callers


def names_device(device: Any, *, building: bool = False) -> bool:
    """Whether a ``device`` argument means the model's device. The text "cpu" does not.

    In a region a device object may be ``x.device``, which is where the region runs. While the model is built, nothing
    has been moved yet: there ``x.device`` and ``torch.device("cpu")`` are the host.
    """
    if isinstance(device, torch.device) and building:
        return device.type not in ("cpu", "meta")
    return not (isinstance(device, str) and device.partition(":")[0] in ("cpu", "meta"))


def any_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """``torch.device("npu:0")`` on a build that knows no NPU is a device that none is on."""
    try:
        return torch.device(*args, **kwargs)
    except RuntimeError:
        if args and isinstance(args[0], str) and args[0].partition(":")[0] == "npu":
            return torch.device(args[0].replace("npu", "cuda", 1))
        raise


@contextmanager
def module_to_any_device() -> Iterator[None]:
    """``Module.to`` reads its arguments in C++, which knows no NPU here, before a function mode sees a tensor."""
    before = nn.Module.to

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        known = {key: _known_device(value) for key, value in kwargs.items()}
        return before(self, *map(_known_device, args), **known)

    nn.Module.to = to  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.to = before  # type: ignore[method-assign]


@contextmanager
def asked_for_devices(asked: Callable[[], None]) -> Iterator[None]:
    """Calls ``asked`` when a model asks whether there is a device: the "cpu" it goes on with is where it runs."""
    before = torch.cuda.is_available

    def is_available() -> bool:
        if not torch_callers()[0]:
            asked()
        return before()

    torch.cuda.is_available = is_available
    try:
        yield
    finally:
        torch.cuda.is_available = before


def _known_device(value: Any) -> Any:
    return any_device((value,), {}) if isinstance(value, str) else value
