"""Results lent out without a copy: the graph's own memory, readable until it is overwritten, an error afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

#: Raises OrderError once the memory may have been overwritten.
Check = Callable[[], None]


class Borrowed(torch.Tensor):
    """A tensor on graph memory. Every use first asks whether the memory still holds the result.

    Only Python sees this: C++ code that keeps the tensor, and ``numpy()`` views taken in time, are not watched.
    """

    _check: Check

    @classmethod
    def lend(cls, tensor: torch.Tensor, check: Check) -> Borrowed:
        """A tensor on the same memory that refuses to be read late."""
        lent: Borrowed = tensor.as_subclass(cls)
        lent._check = check
        return lent

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            lent = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if type(leaf) is Borrowed]
            args, kwargs = _pytree.tree_map_only(Borrowed, plain, (args, dict(kwargs or {})))
            result = func(*args, **kwargs)
            checks = {leaf.untyped_storage()._cdata: leaf.__dict__["_check"] for leaf in lent}
            return _pytree.tree_map_only(torch.Tensor, lambda tensor: _lent_again(tensor, checks), result)


def _lent_again(tensor: torch.Tensor, checks: Mapping[int, Check]) -> torch.Tensor:
    """A view of lent memory is lent too."""
    if tensor.layout is not torch.strided:
        return tensor
    check = checks.get(tensor.untyped_storage()._cdata)
    return tensor if check is None or type(tensor) is Borrowed else Borrowed.lend(tensor, check)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """An ordinary tensor on the same memory. Raises OrderError if a borrowed one is read too late."""
    if type(tensor) is not Borrowed:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        tensor.__dict__["_check"]()
        return tensor.as_subclass(torch.Tensor)
