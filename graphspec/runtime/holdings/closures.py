"""Closure variables that nobody rebinds: what the decorators of installed libraries close over, set once and read."""

from __future__ import annotations

import dis
import sysconfig
import types
from collections.abc import Iterable, Iterator

_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def constant_cells(functions: Iterable[types.FunctionType]) -> frozenset[int]:
    """The ids of cells that only the outermost function around them stores into, which has returned."""
    found: set[int] = set()
    stored: dict[types.CodeType, frozenset[str]] = {}
    for function in functions:
        code = function.__code__
        if not function.__closure__ or not code.co_filename.startswith(_INSTALLED):
            continue
        outer = _outermost(function)
        if outer is None:
            continue
        if outer not in stored:
            stored[outer] = frozenset(_stored_by_inner(outer))
        cells = zip(code.co_freevars, function.__closure__, strict=True)
        found.update(id(cell) for name, cell in cells if name not in stored[outer])
    return frozenset(found)


def _outermost(function: types.FunctionType) -> types.CodeType | None:
    """The code of the module's function that ``function`` was made in; None where the name of its code does not say."""
    code = function.__code__
    name = getattr(code, "co_qualname", "").partition(".")[0]  # Python 3.11 and newer; wraps() changes the function's
    outer = function.__globals__.get(name)
    if isinstance(outer, types.FunctionType) and outer.__code__.co_filename == code.co_filename:
        return outer.__code__
    return None


def _stored_by_inner(code: types.CodeType) -> Iterator[str]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for instruction in dis.get_instructions(inner):
                if instruction.opname in ("STORE_DEREF", "DELETE_DEREF"):
                    yield str(instruction.argval)
            yield from _stored_by_inner(inner)
