"""Fake tensors have shapes and no values: a trace on them ends where a value is asked for."""

from __future__ import annotations

from torch import Tensor

_NO_VALUE = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")


class TraceEnded(BaseException):
    """A fake tensor has no value to go on with. The findings so far stand.

    No `Exception`, so that no handler of the model takes it for its own.
    """


def lacks_value(error: BaseException) -> bool:
    """Whether an error says that a fake tensor was asked for its value, or for a size that depends on one."""
    return any(kind.__name__ in _NO_VALUE for kind in type(error).__mro__)


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor is fake. By name, since importing the class costs a second where no fake tensor exists."""
    return any(kind.__name__ == "FakeTensor" for kind in type(tensor).__mro__)
