"""`--device` on the command line."""

from __future__ import annotations

import re

from graphspec.errors import InputError


def refuse_unknown(device: str | None) -> None:
    """Refuse what names no kind of device, before anything is built. Raises InputError."""
    if device is not None and not re.fullmatch(r"auto|cpu|(cuda|npu)(:[0-9]+)?", device):
        raise InputError(f"--device: there is no device '{device}'", hint="auto, cpu, cuda, npu, or one such as npu:1")
