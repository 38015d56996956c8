"""What the loops of a run go by: one bool, read on the host before each turn."""

from __future__ import annotations

from typing import Any

import torch

from graphspec.errors import OrderError


def truth(name: str, value: Any) -> bool:
    """Whether a loop goes on; on a device this waits for the region that makes the value.

    Raises OrderError for anything but a bool, or a tensor of one.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.numel() == 1:
        return bool(value.item())
    what = f"a tensor {list(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
    message = f"the loop `while: {name}` goes by one bool, and '{name}' is {what}"
    raise OrderError(message, hint=f"return {name}.any(), or another bool of one element, from its region")
