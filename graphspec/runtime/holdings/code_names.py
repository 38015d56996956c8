"""The names that model code loads while it runs, read off its bytecode, and the objects that it runs on."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from graphspec.recording.source import is_model_code
from graphspec.runtime.holdings.parts import is_installed_file, names_in_text

#: Modules of torch.nn keep eps, p, momentum and the like as plain attributes; their base class only dispatches.
_LAYERS = str(Path(nn.__file__).parent / "modules")  # as code objects have it
_DISPATCH = "module.py"
_LOADS = frozenset({
    "LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_SUPER_ATTR",
    "IMPORT_NAME", "IMPORT_FROM",
})  # fmt: skip
_MADE = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "BUILD_STRING", "BINARY_OP"})

_WALKS = frozenset({"GET_ITER", "CONTAINS_OP", "DICT_MERGE", "DICT_UPDATE", "LIST_EXTEND", "SET_UPDATE", "UNPACK_EX"})
_WALKING = frozenset({
    "len", "list", "tuple", "set", "dict", "sorted", "sum", "max", "min", "any", "all", "enumerate", "zip", "map",
    "iter", "filter", "reversed", "reduce", "get", "setdefault", "pop", "popitem", "keys", "values", "items", "copy",
    "next",
})  # fmt: skip
_STORES = frozenset({"STORE_GLOBAL", "STORE_ATTR", "STORE_NAME", "STORE_DEREF"})
_IDENTITIES = frozenset({"type", "id"})
#: What reads all attributes of an object, or some by a name that no constant says.
_WHOLE = frozenset({
    "asdict", "astuple", "vars", "__dict__", "attrgetter", "__getattribute__", "getattr_static",
    "_modules", "_parameters", "_buffers", "globals",
})  # fmt: skip
_PROBES = frozenset({"getattr", "hasattr", "AttributeError", "globals"})
#: Methods of modules that go through all their children, parameters or buffers.
_THROUGH = frozenset({
    "apply", "buffers", "children", "modules", "named_buffers", "named_children", "named_modules", "named_parameters",
    "parameters", "state_dict",
})  # fmt: skip


@dataclass(frozen=True)
class LoadedNames:
    """What code that ran can have asked objects for, and the objects that it had in hand.

    ``methods`` are those of ``names`` that are only ever called, as ``x.sum()``: what they find is no number.
    ``computed``: code of the user's own reads attributes by names that it makes, or all of an object at once.
    ``probes``: it asks whether attributes are there; ``texts`` are names that are written as texts. ``walks``: some
    code could see more of a dict or a set than the entries it asks for by key. ``codes`` is the code itself;
    ``objects`` are the ids of what it had in hand, ``asked`` of those it may have asked for anything, and ``walked`` of
    modules whose children or tensors it went through. ``stored`` are the globals and attributes that it assigns to;
    ``identity``: code of the user's own, or of a file that assigns, asks whether two objects are the same one, or for
    the class or the id of one.
    """

    names: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    computed: bool = False
    probes: bool = False
    texts: frozenset[str] = frozenset()
    walks: bool = True
    codes: frozenset[types.CodeType] = frozenset()
    objects: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    walked: frozenset[int] = frozenset()
    stored: frozenset[str] = frozenset()
    identity: bool = False


@dataclass(frozen=True)
class _Reading:
    """What one function can ask for: ``plain`` are the names that it does not only call."""

    names: frozenset[str]
    plain: frozenset[str]
    computes: bool
    probes: bool
    texts: frozenset[str]
    walks: bool
    stored: frozenset[str]
    identity: bool
    sets_globals: bool


class CodeNames:
    """The names that model code loads while it runs in this thread, and the objects it runs on."""

    def __init__(self) -> None:
        self._ran: dict[types.CodeType, bool] = {}  # and whether what it has in hand is noted
        self._readings: dict[types.CodeType, _Reading] = {}
        self._objects: set[int] = set()  # by their ids: nothing here may keep a tensor alive
        self._receivers: set[tuple[types.CodeType, int]] = set()

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
        """Every global, attribute and closure name loaded so far, and every text that could be one."""
        return frozenset().union(*(reading.names for reading in self._read().values()))

    def so_far(self) -> LoadedNames:
        """All that was noted until now."""
        readings, names = self._read(), self.loaded()
        storing = {code.co_filename for code, reading in readings.items() if reading.sets_globals}
        own = storing | {code.co_filename for code in readings if not is_installed_file(code.co_filename)}
        computing = {code for code, reading in readings.items() if reading.computes and not _is_layer(code)}
        return LoadedNames(
            names,
            names - frozenset().union(*(reading.plain for reading in readings.values())),
            any(not is_installed_file(code.co_filename) for code in computing),
            any(it.probes and not is_installed_file(code.co_filename) for code, it in readings.items()),
            frozenset().union(*(reading.texts for reading in readings.values())),
            any(reading.walks for reading in readings.values()),
            frozenset(self._ran),
            frozenset(self._objects),
            frozenset(key for code, key in self._receivers if code in computing),
            frozenset(key for code, key in self._receivers if code.co_name in _THROUGH and _is_dispatch(code)),
            frozenset().union(*(reading.stored for reading in readings.values())),
            any(reading.identity for code, reading in readings.items() if code.co_filename in own),
        )

    def _read(self) -> Mapping[types.CodeType, _Reading]:
        """What the model's own code can ask for, each function read once."""
        for code in tuple(self._ran):
            watched = self._ran[code] and not _is_dispatch(code)
            if watched and code not in self._readings:
                self._readings[code] = _reading(list(dis.get_instructions(code)))
        return self._readings

    def _note(self, frame: types.FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        noted = self._ran.get(code)
        if noted is None:
            noted = is_model_code(code.co_filename) or _is_layer(code)
            self._ran[code] = noted
        if noted:
            held = frame.f_locals
            self._objects.update(map(id, held.values()))
            self._objects.add(id(value))
            if code.co_argcount and event == "call":
                self._receivers.add((code, id(held.get(code.co_varnames[0]))))


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


def _reading(instructions: Sequence[dis.Instruction]) -> _Reading:
    loads = [(at, each) for at, each in enumerate(instructions) if each.opname in _LOADS]
    texts = {name for each in instructions if each.opname == "LOAD_CONST" for name in names_in_text(each.argval)}
    names = {name for _, each in loads for name in str(each.argval).split(".")} | texts
    return _Reading(
        frozenset(names),
        frozenset(
            {name for _, each in loads if not _loads_method(each) for name in str(each.argval).split(".")} | texts
        ),
        any(
            each.argval in _WHOLE or (each.argval == "getattr" and not _by_text(instructions, at)) for at, each in loads
        ),
        not _PROBES.isdisjoint(names - texts),
        frozenset(texts),
        any(each.opname in _WALKS for each in instructions) or not _WALKING.isdisjoint(names - texts),
        frozenset(str(each.argval) for each in instructions if each.opname in _STORES),
        any(each.opname == "LOAD_GLOBAL" and each.argval in _IDENTITIES for _, each in loads)
        or any(one.opname == "IS_OP" and not _is_none(before) for before, one in pairwise(instructions)),
        any(each.opname == "STORE_GLOBAL" for each in instructions),
    )


def _is_none(instruction: dis.Instruction) -> bool:
    return instruction.opname in ("LOAD_CONST", "LOAD_COMMON_CONSTANT") and instruction.argval is None


def _by_text(instructions: Sequence[dis.Instruction], at: int) -> bool:
    """Whether the second argument of the call that begins here is a text, not made from others."""
    text = False
    for instruction in instructions[at + 1 :]:
        if instruction.opname in _MADE:
            return False
        if instruction.opname.startswith("CALL"):
            break
        text = text or (instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str))
    return text


def _loads_method(instruction: dis.Instruction) -> bool:
    """Whether the next thing done to an attribute is a call. From Python 3.12 on, a flag of LOAD_ATTR says so."""
    flagged = sys.version_info >= (3, 12) and instruction.opname == "LOAD_ATTR" and bool((instruction.arg or 0) & 1)
    return instruction.opname == "LOAD_METHOD" or flagged


def _is_layer(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_LAYERS)


def _is_dispatch(code: types.CodeType) -> bool:
    return _is_layer(code) and Path(code.co_filename).name == _DISPATCH
