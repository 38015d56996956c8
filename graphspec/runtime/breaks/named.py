"""What `break` names, met while a region is called: modules by their paths, operators as the model calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from graphspec.recording.source import ModuleNames
from graphspec.runtime.hazards.wrapping import Wrapped, Wrapper

#: Makes a call that is named: its name in the spec, what is called, and its arguments.
Handler = Callable[[str, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]


class _Met:
    """The patterns of one region, and who makes the calls that they name."""

    def __init__(self, patterns: Sequence[str], names: ModuleNames, handler: Handler) -> None:
        self._operators = frozenset(pattern for pattern in patterns if "::" in pattern)
        self._paths = [pattern for pattern in patterns if "::" not in pattern]
        self._names = names
        self.handler = handler

    def module(self, module: torch.nn.Module) -> str | None:
        """The pattern that names a module."""
        names = self._names.of(module) if self._paths else ()
        return next((path for path in self._paths for name in names if _matches(name, path)), None)

    def operator(self, function: Any) -> str | None:
        """The pattern that names a function of torch."""
        if not self._operators:
            return None
        named = getattr(function, "_qualified_op_name", None)
        if named is None and isinstance(function, torch._ops.OpOverload):
            named = str(function.name()).partition(".")[0]
        if named is None:
            named = f"aten::{getattr(function, '__name__', '')}"
        return named if named in self._operators else None


def _matches(name: str, pattern: str) -> bool:
    """``*`` stands for one part of a path."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


_MET: ContextVar[_Met | None] = ContextVar("graphspec_breaks", default=None)


@contextmanager
def meeting(patterns: Sequence[str], names: ModuleNames, handler: Handler) -> Iterator[None]:
    """Inside, ``handler`` makes the calls of this thread that ``patterns`` name; not those that it makes itself."""
    met = _Met(patterns, names, handler)
    _WRAPPED.install()
    token = _MET.set(met)
    try:
        with _Operators():
            yield
    finally:
        _MET.reset(token)
        _WRAPPED.remove()


@contextmanager
def unmet() -> Iterator[None]:
    """Inside, nothing is met: a part runs as it is. Function modes that watch a region do not see it."""
    token = _MET.set(None)
    modes = []
    while torch._C._len_torch_function_stack() > 0:
        modes.append(torch.overrides._pop_mode())
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch.overrides._push_mode(mode)
        _MET.reset(token)


class _Operators(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        met = _MET.get()
        name = met.operator(func) if met is not None else None
        if met is None or name is None:
            return func(*args, **(kwargs or {}))
        return met.handler(name, func, args, kwargs or {})


def _calling(_path: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        met = _MET.get()
        name = met.module(self) if met is not None else None
        if met is None or name is None:
            return original(self, *args, **kwargs)
        return met.handler(name, self, args, kwargs)

    return call


def _targets() -> Iterator[tuple[str, Wrapper]]:
    yield "torch.nn.modules.module.Module.__call__", _calling


_WRAPPED = Wrapped(_targets)
