"""Tensors that a library builds of a few numbers while a region is called: filled on the device, not copied there.

``torch.tensor([-1], device=self.device)`` copies from the host, which no capture allows, and nobody can rewrite it in
an installed package (the sliding caches of transformers do so). Filling gives the same tensor, anew in each replay; its
numbers are arguments of operators, so that they are frozen, compared and reported as any other. In the user's own code
the call stays what it is, and is refused (GS703).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from graphspec.runtime.hazards.wrapping import Wrapped, Wrapper
from graphspec.runtime.holdings.parts import is_installed_file

_FILLED: ContextVar[bool] = ContextVar("graphspec_literals", default=False)
_TORCH = str(Path(torch.__file__).parent)
#: More numbers are a table, which belongs in a buffer.
_MOST = 16


@contextmanager
def literals_filled() -> Iterator[None]:
    """Around the call of a region that is, or may be, captured."""
    token = _FILLED.set(True)
    _BUILDER.install()
    try:
        yield
    finally:
        _BUILDER.remove()
        _FILLED.reset(token)


def _filling(_path: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def tensor(data: Any, **options: Any) -> Any:
        numbers = _numbers(data)
        caller = sys._getframe(1).f_code.co_filename
        plain = options.keys() <= {"dtype", "device"} and options.get("device") is not None
        if not (_FILLED.get() and plain and numbers and is_installed_file(caller)) or caller.startswith(_TORCH):
            return original(data, **options)
        if len(set(numbers)) == 1:
            return torch.full((len(numbers),) if isinstance(data, list | tuple) else (), numbers[0], **options)
        return torch.stack([torch.full((), number, **options) for number in numbers])

    return tensor


def _numbers(data: Any) -> list[Any]:
    """The numbers of a literal, if they are few and of one type."""
    numbers = list(data) if isinstance(data, list | tuple) else [data]
    kinds = {type(number) for number in numbers}
    return numbers if len(numbers) <= _MOST and len(kinds) == 1 and kinds <= {bool, int, float} else []


def _builder() -> Iterator[tuple[str, Wrapper]]:
    yield "torch.tensor", _filling


_BUILDER = Wrapped(_builder)
