"""What a run may not be called inside of: transforms and modes of torch that would have to see every operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

_C: Any = torch._C
_INFRA = (
    (_C._TorchDispatchModeKey.FAKE, "a fake tensor mode, whose tensors hold no values"),
    (_C._TorchDispatchModeKey.PROXY, "a trace of operators (make_fx, export)"),
    (_C._TorchDispatchModeKey.FUNCTIONAL, "functionalization"),
)


def transform() -> str | None:
    """What torch is doing around this call that a replay would not take part in; None if nothing is.

    A replay issues kernels on fixed memory: it is not traced, batched or differentiated, and its results would come
    out as if none of that were going on.
    """
    if _C._functorch.maybe_current_level() is not None:
        return "a transform of torch.func (vmap, grad, jvp, functionalize)"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation (forward_ad.dual_level), which a replay would drop"
    if _C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if _C._len_torch_dispatch_stack():
        for key, name in _INFRA:
            if _C._get_dispatch_mode(key) is not None:
                return name
    if _C._len_torch_function_stack() and torch.get_default_device().type == "meta":
        return "meta as the default device, where tensors hold no values"
    return None
