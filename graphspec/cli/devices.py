"""`--device` on the command line."""

from __future__ import annotations

from graphspec.errors import InputError
from graphspec.spec import DEVICE


def refuse_unknown(device: str | None) -> None:
    """Refuse what names no kind of device, before anything is built. Raises InputError."""
    if device is not None and not DEVICE.fullmatch(device):
        raise InputError(f"--device: there is no device '{device}'", hint="auto, cpu, cuda, npu, or one such as npu:1")
