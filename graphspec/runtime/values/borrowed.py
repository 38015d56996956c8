"""Results lent out without a copy: the graph's own memory, readable until it is overwritten, an error afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from graphspec.errors import OrderError
from graphspec.runtime.values.blocks import Block, Stamp

#: What gives the memory to somebody who does not ask before reading: they get a copy.
_LEAVING = frozenset(
    {"numpy", "__array__", "__dlpack__", "untyped_storage", "storage", "_typed_storage", "share_memory_",
     "__reduce_ex__", "__deepcopy__"}
)  # fmt: skip


@dataclass(frozen=True)
class Loan:
    """One result on loan, since a tick. ``poisoned`` says when graph memory was last overwritten on purpose.

    ``watch`` is told of every tensor that asks before it is read.
    """

    result: str
    region: str
    block: Block
    since: int
    poisoned: Stamp
    watch: Callable[[torch.Tensor], None]

    def check(self) -> None:
        """Raise OrderError if the memory may have been overwritten."""
        culprit = self.block.changed_since(self.since)
        if culprit is None and self.poisoned.at > self.since:
            culprit = self.poisoned
        if culprit is not None:
            message = (
                f"the result '{self.result}' of region '{self.region}' is read too late: its memory was lent "
                f"(copy: false), and {culprit.who} ran since"
            )
            hint = f"read '{self.result}' before the next run, or declare it without copy: false"
            raise OrderError(message, hint=hint)


class Borrowed(torch.Tensor):
    """A tensor on graph memory. Every use first asks whether the memory still holds the result.

    Views and shallow copies are lent too. What leaves PyTorch (numpy, DLPack, pickling, storages) is a copy. What
    shares the memory in ways that Python does not see (``set_``, C++ code) does not ask, and gets memory of its own
    before this one is overwritten.
    """

    _loan: Loan

    @classmethod
    def lend(cls, tensor: torch.Tensor, loan: Loan) -> Borrowed:
        """A tensor on the same memory that refuses to be read late."""
        lent: Borrowed = torch.Tensor.as_subclass(tensor, cls)
        lent._loan = loan
        loan.watch(lent)
        return lent

    def __copy__(self) -> Borrowed:
        return Borrowed.lend(plain(self).detach(), self.__dict__["_loan"])

    def as_subclass(self, cls: Any) -> Any:
        """A copy, in another class: only this one is watched."""
        return torch.Tensor.as_subclass(plain(self).clone(), cls)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            lent = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if type(leaf) is Borrowed]
            name = getattr(func, "__name__", "")
            if name in _LEAVING:
                _refuse_sharing(lent, kwargs)
                args, kwargs = _pytree.tree_map_only(Borrowed, _own, (args, kwargs))
                return func(*args, **kwargs)
            args, kwargs = _pytree.tree_map_only(Borrowed, plain, (args, kwargs))
            result = func(*args, **kwargs)
            return _pytree.tree_map_only(torch.Tensor, lambda tensor: _lent_again(tensor, _oldest(lent)), result)


def _oldest(lent: Sequence[Borrowed]) -> dict[int, Loan]:
    """The loans by storage; of several on one storage the one that ends first."""
    loans: dict[int, Loan] = {}
    for tensor in lent:
        loan, key = tensor.__dict__["_loan"], tensor.untyped_storage()._cdata
        loans[key] = min(loan, loans.get(key, loan), key=lambda each: each.since)
    return loans


def _refuse_sharing(lent: Sequence[Borrowed], kwargs: Mapping[str, Any]) -> None:
    if lent and kwargs.get("copy") is False:
        message = f"the result '{lent[0].__dict__['_loan'].result}' is lent (copy: false): outside of PyTorch nobody"
        raise OrderError(f"{message} would watch its memory", hint="ask for a copy, or take a clone")


def _lent_again(tensor: torch.Tensor, loans: Mapping[int, Loan]) -> torch.Tensor:
    """A view of lent memory is lent too."""
    if tensor.layout is not torch.strided or type(tensor) is Borrowed or not torch._C._has_storage(tensor):
        return tensor
    loan = loans.get(tensor.untyped_storage()._cdata)
    return tensor if loan is None else Borrowed.lend(tensor, loan)


def _own(tensor: Borrowed) -> torch.Tensor:
    return plain(tensor).clone()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """An ordinary tensor on the same memory. Raises OrderError if a borrowed one is read too late."""
    if type(tensor) is not Borrowed:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        tensor.__dict__["_loan"].check()
        return torch.Tensor.as_subclass(tensor, torch.Tensor)
