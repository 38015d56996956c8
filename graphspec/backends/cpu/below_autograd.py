"""Which operators may be issued below autograd, as they were recorded.

A recorder sees each call after autograd's kernels and the counting of versions have had it. Issuing it from above again
costs a tenth of a replay for nothing: what it is given needs no gradient, and its tensors are the program's own.

Only torch's own kernels are known to ask for nothing above them. Code of somebody else's may run autograd within an
operator, and one that has a kernel for autograd alone would not be found at all; they are issued the plain way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch.library
from torch._ops import OpOverload

from graphspec.recording.python_kernels import entry

_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


def all_below_autograd(ops: Iterable[OpOverload]) -> bool:
    """Whether each of these has a kernel of torch's own for the CPU, below autograd."""
    return all(map(_is_below_autograd, ops))


def _is_below_autograd(op: OpOverload) -> bool:
    return op.namespace == "aten" and not _is_overridden(op) and _has_kernel(op)


@functools.cache
def _has_kernel(op: OpOverload) -> bool:
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(str(op.name()), "CPU")


def _is_overridden(op: OpOverload) -> bool:
    """Whether somebody registered another kernel from Python. Asked each time: that may be done at any time."""
    start = entry(op)
    return any(f"{start}{key}" in torch.library._impls for key in _KEYS)
