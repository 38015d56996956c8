"""Closure variables that nobody rebinds: what the decorators of installed libraries close over, set once and read."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterable, Iterator

from graphspec.runtime.holdings.parts import is_installed_file

#: Flags of code whose call may still be running: generators and coroutines.
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def constant_cells(functions: Iterable[types.FunctionType]) -> frozenset[int]:
    """The ids of cells that only the call that made them stores into, which has returned."""
    found: set[int] = set()
    chains: dict[types.CodeType, tuple[types.CodeType, ...]] = {}
    stored: dict[types.CodeType, frozenset[str]] = {}
    for function in functions:
        code = function.__code__
        if not function.__closure__ or not is_installed_file(code.co_filename):
            continue
        if code not in chains:
            outer = _outermost(function)
            chains[code] = () if outer is None else _nested(outer, code)
        for name, cell in zip(code.co_freevars, function.__closure__, strict=True):
            maker = next((around for around in reversed(chains[code]) if name in around.co_cellvars), None)
            if maker is None or maker.co_flags & _SUSPENDED:
                continue
            if maker not in stored:
                stored[maker] = frozenset(_stored_by_inner(maker))
            if name not in stored[maker]:
                found.add(id(cell))
    return frozenset(found)


def _outermost(function: types.FunctionType) -> types.CodeType | None:
    """The code of the module's function that ``function`` was made in; None where the name of its code does not say."""
    code = function.__code__
    name = getattr(code, "co_qualname", "").partition(".")[0]  # Python 3.11 and newer; wraps() changes the function's
    outer = function.__globals__.get(name)
    if isinstance(outer, types.FunctionType) and outer.__code__.co_filename == code.co_filename:
        return outer.__code__
    return None


def _nested(outer: types.CodeType, wanted: types.CodeType) -> tuple[types.CodeType, ...]:
    """The code around ``wanted``, from the outermost; empty where it is not in there."""
    for inner in outer.co_consts:
        if inner is wanted:
            return (outer,)
        if isinstance(inner, types.CodeType) and (found := _nested(inner, wanted)):
            return (outer, *found)
    return ()


def _stored_by_inner(code: types.CodeType) -> Iterator[str]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for instruction in dis.get_instructions(inner):
                if instruction.opname in ("STORE_DEREF", "DELETE_DEREF"):
                    yield str(instruction.argval)
            yield from _stored_by_inner(inner)
