"""From the spec's `device` to a backend that is there, or to one clear reason why not."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import torch

from graphspec import spec as language
from graphspec.backends.base import Backend
from graphspec.errors import DeviceError, InputError
from graphspec.plan import Plan
from graphspec.runtime.building.build import call_user_code, import_object

_HINT = "one of auto, cpu, cuda, npu, or an indexed one such as npu:1"


def open_backend(device: str | torch.device, plan: Plan) -> Backend:
    """The backend for ``auto``, ``cpu``, ``cuda``, ``npu``, or one with an index such as ``npu:1``.

    ``auto`` is an NPU, else a GPU, else the CPU. Also a `torch.device`. Raises DeviceError if what is asked for cannot
    be used here, and InputError for what is no name of a device.
    """
    device = device_name(device)
    kind = device.partition(":")[0]
    if kind == "auto":
        kind = device = _best()
    if kind == "cpu":
        from graphspec.backends.cpu import CpuBackend

        return CpuBackend()
    if kind == "cuda":
        from graphspec.backends.cuda import open_cuda

        return open_cuda(device, plan)
    from graphspec.backends.npu import open_npu

    backend = open_npu(device, plan)
    for reference in plan.npu.handlers:
        call_user_code(import_object(reference, plan.folder), f"npu.handlers: {reference}")
    return backend


def device_name(device: str | torch.device) -> str:
    """The device as a spec writes it, where only kinds of which a machine has several take an index.

    Raises DeviceError for another name, and InputError for what is neither a name nor a `torch.device`.
    """
    if isinstance(device, torch.device):
        device = "cpu" if device.type == "cpu" and not device.index else str(device)
    if not isinstance(device, str):
        raise InputError(f"device takes a name or a torch.device, and a {type(device).__name__} came", hint=_HINT)
    if not language.DEVICE.fullmatch(device):
        raise DeviceError(f"there is no device '{device}'", hint=_HINT)
    return device


@contextlib.contextmanager
def without_broken_torch_npu() -> Iterator[None]:
    """Around the user's code on another device: a torch_npu that cannot load, for want of CANN, looks not installed.

    Libraries such as transformers ask whether torch_npu is installed, and then import it: without CANN that fails, and
    a model for the CPU could not even be imported.
    """
    if "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is None or _has_cann():
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules["torch_npu"] = None  # how Python says "not here"
    try:
        yield
    finally:
        if sys.modules.get("torch_npu", ...) is None:
            del sys.modules["torch_npu"]


def _has_cann() -> bool:
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        return False
    return True


def _best() -> str:
    from graphspec.backends.npu import load_torch_npu

    if importlib.util.find_spec("torch_npu") is not None and load_torch_npu() is None:
        return "npu"
    return "cuda" if torch.cuda.is_available() else "cpu"
