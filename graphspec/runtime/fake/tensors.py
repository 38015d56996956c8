"""A world of fake tensors: shapes, dtypes and memory without bytes, in which a factory builds any model.

Real tensors that were made outside of it (at the import of a module) may be used inside; nothing is written to them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from graphspec.recording.source import site
from graphspec.runtime.fake.kernels import FakeKernels
from graphspec.runtime.hazards.fake import AddressAskedError, is_fake
from graphspec.runtime.hazards.patches import without_function_modes
from graphspec.runtime.holdings.parts import is_library

#: torch prints the traceback of a failing meta kernel before it raises: a finding says it instead.
_LOGGERS = ("torch._subclasses.fake_tensor",)


class FakeTensors:
    """One fake mode, entered as often as it is needed; tensors of it stay usable in between."""

    def __init__(self) -> None:
        self._mode = FakeKernels(allow_non_fake_inputs=True)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, every operator runs on fake tensors, and a kernel that cannot ends the trace."""
        with ExitStack() as stack:
            stack.enter_context(_silent())
            stack.enter_context(_replaced(torch.utils, "swap_tensors", _take_data))
            stack.enter_context(_no_addresses())
            stack.enter_context(without_function_modes())
            stack.enter_context(self._mode)
            yield


def _take_data(one: torch.Tensor, other: torch.Tensor) -> None:
    """What ``module.to(...)`` does for a plain parameter.

    For a fake one it exchanges the two objects, which torch refuses where a weak reference exists, and the fake mode
    keeps one to each parameter.
    """
    one.data = other.detach()


@contextmanager
def _no_addresses() -> Iterator[None]:
    """A model that hands an address to a kernel of its own ends the trace: a fake tensor has none, and says 0."""

    def data_ptr(self: torch.Tensor) -> int:
        asked_by = str(sys._getframe(1).f_globals.get("__name__"))
        if is_fake(self) and not is_library(asked_by):
            raise AddressAskedError(site())
        return torch._C.TensorBase.data_ptr(self)

    torch.Tensor.data_ptr = data_ptr  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del torch.Tensor.data_ptr  # that of its base, in C, shows again


@contextmanager
def without_initialisers() -> Iterator[None]:
    """The functions of ``torch.nn.init`` do nothing: there are no values, and some of them read values."""
    with ExitStack() as stack:
        for name in dir(nn.init):
            if name.endswith("_") and not name.endswith("__") and callable(getattr(nn.init, name)):
                stack.enter_context(_replaced(nn.init, name, _untouched))
        # Copied by name at its import, as other libraries do; these hold what the copies call.
        for owner in ("transformers.initialization",):
            functions = getattr(sys.modules.get(owner), "TORCH_INIT_FUNCTIONS", None)
            if isinstance(functions, dict):
                before = dict(functions)
                stack.callback(functions.update, before)
                functions.update(dict.fromkeys(functions, _untouched))
        yield


def _untouched(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


@contextmanager
def _replaced(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _silent() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
