"""The names that model code loads while it runs: attributes, globals and closure variables, read off its bytecode."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from graphspec.recording.source import is_model_code
from graphspec.runtime.holdings.parts import is_installed_file

#: Modules of torch.nn keep eps, p, momentum and the like as plain attributes; their base class only dispatches.
_LAYERS = str(Path(nn.__file__).resolve().parent / "modules")
_DISPATCH = "module.py"
_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_SUPER_ATTR")

_WALKS = frozenset({"GET_ITER", "CONTAINS_OP", "DICT_MERGE", "DICT_UPDATE", "LIST_EXTEND", "SET_UPDATE", "UNPACK_EX"})
_WALKING = frozenset({
    "len", "list", "tuple", "set", "dict", "sorted", "sum", "max", "min", "any", "all", "enumerate", "zip", "map",
    "iter", "filter", "reversed", "reduce", "get", "setdefault", "pop", "popitem", "keys", "values", "items", "copy",
    "next",
})  # fmt: skip
#: What reads all attributes of an object, or some by a name that no constant says.
_WHOLE = frozenset({"asdict", "astuple", "vars", "__dict__", "attrgetter", "__getattribute__"})


class CodeNames:
    """The names that model code loads while it runs in this thread."""

    def __init__(self) -> None:
        self._codes: set[types.CodeType] = set()
        self._disassembled: dict[types.CodeType, list[dis.Instruction]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note every Python function that is called inside. A profiler of the caller rests meanwhile."""
        previous: Any = sys.getprofile()
        sys.setprofile(self._note)
        try:
            with _RestingInTorch(self._note):
                yield
        finally:
            if previous is None or callable(previous):
                sys.setprofile(previous)
            else:  # a profiler in C, such as cProfile, which only it can turn on again
                sys.setprofile(None)
                previous.enable()

    def loaded(self) -> frozenset[str]:
        """Every global, attribute and closure name loaded by the functions noted so far.

        A text constant that could be a name counts too: ``getattr(self, "scale")``.
        """
        return frozenset(str(each.argval) for each in self._watched() if each.opname in _LOADS or _is_name(each))

    def methods(self) -> frozenset[str]:
        """Of these, the names that are only ever called, as ``x.sum()``: what they find is no number."""
        loads = (each for each in self._watched() if each.opname in _LOADS and not _loads_method(each))
        constants = filter(_is_name, self._watched())
        return self.loaded() - {str(each.argval) for each in (*loads, *constants)}

    def computes_names(self) -> bool:
        """Whether code of the user's own reads attributes by names that it makes, or all of an object at once."""
        codes = (code for code in tuple(self._codes) if _is_watched(code.co_filename))
        return any(_computes_names(self._instructions(c)) for c in codes if not is_installed_file(c.co_filename))

    def walks(self) -> bool:
        """Whether any of these functions could see more of a dict or a set than the entries it asks for by key."""
        return any(
            each.opname in _WALKS or (each.opname in _LOADS and each.argval in _WALKING) for each in self._watched()
        )

    def _watched(self) -> Iterator[dis.Instruction]:
        """Every instruction of the model's own code."""
        for code in tuple(self._codes):
            if _is_watched(code.co_filename):
                yield from self._instructions(code)

    def _instructions(self, code: types.CodeType) -> list[dis.Instruction]:
        if code not in self._disassembled:
            self._disassembled[code] = list(dis.get_instructions(code))
        return self._disassembled[code]

    def _note(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)


class _RestingInTorch(TorchFunctionMode):
    """Suspends a profile function inside of torch: under fake tensors one operator is hundreds of Python calls."""

    def __init__(self, note: Callable[[types.FrameType, str, Any], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(map(callable, args)) or any(map(callable, kwargs.values())):  # the model's own function, called back
            return func(*args, **kwargs)
        sys.setprofile(None)
        try:
            return func(*args, **kwargs)
        finally:
            sys.setprofile(self._note)


def _computes_names(instructions: Sequence[dis.Instruction]) -> bool:
    loads = [(at, each.argval) for at, each in enumerate(instructions) if each.opname in _LOADS]
    return any(name in _WHOLE or (name == "getattr" and not _by_constant(instructions, at)) for at, name in loads)


def _by_constant(instructions: Sequence[dis.Instruction], at: int) -> bool:
    """Whether the second argument of the call that begins here is a text, not made from others."""
    constant = False
    for instruction in instructions[at + 1 :]:
        if instruction.opname in ("FORMAT_VALUE", "FORMAT_SIMPLE", "BUILD_STRING", "BINARY_OP"):
            return False
        if instruction.opname.startswith("CALL"):
            break
        constant = constant or _is_name(instruction)
    return constant


def _loads_method(instruction: dis.Instruction) -> bool:
    """Whether the next thing done to an attribute is a call. From Python 3.12 on, a flag of LOAD_ATTR says so."""
    flagged = sys.version_info >= (3, 12) and instruction.opname == "LOAD_ATTR" and bool((instruction.arg or 0) & 1)
    return instruction.opname == "LOAD_METHOD" or flagged


def _is_name(instruction: dis.Instruction) -> bool:
    return (
        instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str) and instruction.argval.isidentifier()
    )


def _is_watched(filename: str) -> bool:
    return is_model_code(filename) or (filename.startswith(_LAYERS) and Path(filename).name != _DISPATCH)
