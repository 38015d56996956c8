"""What to do where an optimizer of torch reads a value in its step: the form of it that keeps all in tensors."""

from __future__ import annotations

import inspect
import sys
from types import FrameType

from torch.optim import Optimizer


def optimizer_hint() -> str | None:
    """The advice for the optimizer that is stepping right now in this thread; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        stepping = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames[:1] else None
        if isinstance(stepping, Optimizer):
            return _way_out(type(stepping))
        frame = frame.f_back
    return None


def _way_out(kind: type[Optimizer]) -> str:
    options, name = inspect.signature(kind.__init__).parameters, kind.__name__
    if "fused" in options:
        also = " (on a device also capturable=True)" if "capturable" in options else ""
        return f"make it {name}(..., fused=True){also}, which keeps its step count and its learning rate in tensors"
    if "capturable" in options:
        return (
            f"on a device make it {name}(..., capturable=True); no form of {name} keeps its step count in a tensor on "
            "the CPU: take AdamW(..., fused=True), or step it outside of the spec"
        )
    return f"no form of {name} does without: take AdamW(..., fused=True), or step it outside of the spec"
