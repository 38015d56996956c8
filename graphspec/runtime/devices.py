"""From the spec's `device` to a backend that is there, or to one clear reason why not."""

from __future__ import annotations

from graphspec import spec as language
from graphspec.backends.base import Backend
from graphspec.errors import DeviceError


def open_backend(device: str, spec: language.Spec) -> Backend:  # noqa: ARG001 - the device backends take options of it
    """The backend for ``auto``, ``cpu``, ``cuda``, ``npu``, or one with an index such as ``npu:1``.

    Raises DeviceError if it cannot be used here.
    """
    kind, _, _ = device.partition(":")
    if kind in ("auto", "cpu"):
        from graphspec.backends.cpu import CpuBackend

        return CpuBackend()
    if kind in ("cuda", "npu"):
        message = f"device {device} is not supported by this build of graphspec yet"
        raise DeviceError(message, hint="use --device cpu")
    message = f"there is no device '{device}'"
    raise DeviceError(message, hint="one of auto, cpu, cuda, npu, or an indexed one such as npu:1")
