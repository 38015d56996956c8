"""Fake tensors have shapes and no values: a trace on them ends where a value is asked for."""

from __future__ import annotations

from torch import Tensor

from graphspec.recording.source import Site

_NO_VALUE = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")


class TraceEnded(BaseException):
    """A fake tensor has no value to go on with. The findings so far stand.

    No `Exception`, so that no handler of the model takes it for its own.
    """


class KernelMissingError(TraceEnded):
    """The trace ends at an operator that has no fake kernel, or none that takes these arguments."""

    def __init__(self, operator: str, reason: str, place: Site) -> None:
        super().__init__(operator)
        self.operator = operator
        self.reason = reason
        self.place = place


class AddressAskedError(KernelMissingError):
    """The trace ends where the model asks for the address of a tensor, to hand it to a kernel of its own."""

    def __init__(self, place: Site) -> None:
        super().__init__("Tensor.data_ptr", "a fake tensor has no address", place)


def lacks_value(error: BaseException) -> bool:
    """Whether an error says that a fake tensor was asked for its value, or for a size that depends on one."""
    return any(kind.__name__ in _NO_VALUE for kind in type(error).__mro__)


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor is fake. By name, since importing the class costs a second where no fake tensor exists."""
    return any(kind.__name__ == "FakeTensor" for kind in type(tensor).__mro__)
