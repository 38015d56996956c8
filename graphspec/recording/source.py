"""Where in the model's own source a call comes from, and which module is being called right now.

Both are read off the Python stack. "The model" is everything that is neither torch nor graphspec: examples, tests and
libraries such as transformers are model code. Folders decide, not names.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import torch
from torch import nn

_TORCH = f"{Path(torch.__file__).resolve().parent}{os.sep}"
_GRAPHSPEC = f"{Path(__file__).resolve().parents[1]}{os.sep}"
_STDLIB = f"{Path(sysconfig.get_path('stdlib')).resolve()}{os.sep}"


@dataclass(frozen=True, slots=True)
class Site:
    """One line of source. ``line`` counts from 1; 0 when no Python line is known."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line itself, stripped; empty when the source cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


NOWHERE = Site("<unknown>", 0, "<unknown>")


class _Owner(Enum):
    MODEL = 0
    LIBRARY = 1  # the standard library and numpy: shown only if nothing better is on the stack
    HIDDEN = 2


@cache
def _resolved(filename: str) -> str:
    return str(Path(filename).resolve())


@cache
def _folders(*packages: str) -> tuple[str, ...]:
    """Where these packages are installed, each in a place of its own."""
    places: list[str] = []
    for package in packages:
        with suppress(ImportError, ValueError):
            # Not `find_spec` alone: torch_npu's torchair is imported by the first question for any attribute of it.
            known = sys.modules.get(package)
            spec = find_spec(package) if known is None else vars(known).get("__spec__")
            places += (spec.submodule_search_locations or ()) if spec is not None else ()
    return tuple(f"{Path(place).resolve()}{os.sep}" for place in places)


@cache
def _owner(filename: str) -> _Owner:
    if filename.startswith("<"):
        if filename.startswith("<frozen"):
            return _Owner.HIDDEN
        # A notebook cell and a torch.fx graph have source; what dataclasses and namedtuples generate has none.
        return _Owner.MODEL if linecache.getlines(filename) else _Owner.LIBRARY
    path = _resolved(filename)
    if path.startswith((_GRAPHSPEC, _TORCH, *_folders("torch_npu", "torchair"))):
        return _Owner.HIDDEN
    if path.startswith(_folders("numpy")) or (path.startswith(_STDLIB) and "-packages" not in path):
        return _Owner.LIBRARY
    return _Owner.MODEL


def is_model_code(filename: str) -> bool:
    """Whether a source file belongs to the model: to neither torch, graphspec, numpy nor the standard library."""
    return _owner(filename) is _Owner.MODEL


def site() -> Site:
    """The innermost line of model code on the stack of the caller."""
    frame: FrameType | None = sys._getframe(1)
    second: FrameType | None = None
    while frame is not None:
        owner = _owner(frame.f_code.co_filename)
        if owner is _Owner.MODEL:
            return _at(frame)
        if owner is _Owner.LIBRARY and second is None:
            second = frame
        frame = frame.f_back
    return _at(second) if second is not None else NOWHERE


def site_of(error: BaseException) -> Site:
    """The innermost line of model code in the traceback of an exception."""
    found = NOWHERE
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if _owner(code.co_filename) is _Owner.MODEL:
            found = Site(code.co_filename, trace.tb_lineno, getattr(code, "co_qualname", code.co_name))
        trace = trace.tb_next
    return found


def _at(frame: FrameType) -> Site:
    code = frame.f_code
    return Site(code.co_filename, frame.f_lineno, getattr(code, "co_qualname", code.co_name))


def torch_callers() -> tuple[tuple[str, ...], bool]:
    """The functions of torch between the caller's caller and the first frame outside torch, innermost first.

    The second value says whether that frame is graphspec's own: then the model did not ask for the call.
    """
    frame: FrameType | None = sys._getframe(2)
    names = []
    while frame is not None and _resolved(frame.f_code.co_filename).startswith(_TORCH):
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return tuple(names), frame is not None and _resolved(frame.f_code.co_filename).startswith(_GRAPHSPEC)


def within_torch(*files: str) -> bool:
    """Whether code of one of these files of torch is running, by its path below the folder of torch."""
    wanted = {f"{_TORCH}{file}" for file in files}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _resolved(frame.f_code.co_filename) in wanted:
            return True
        frame = frame.f_back
    return False


def part_of_torch() -> str:
    """The folder of torch whose Python code the model called last, e.g. ``optim``; empty if it called none."""
    frame: FrameType | None = sys._getframe(1)
    part = ""
    while frame is not None:
        path = _resolved(frame.f_code.co_filename)
        if path.startswith(_TORCH):
            part = path.removeprefix(_TORCH).partition(os.sep)[0]
        elif _owner(frame.f_code.co_filename) is _Owner.MODEL:
            return part
        frame = frame.f_back
    return part


def module_stack() -> tuple[nn.Module, ...]:
    """The modules with a method on the stack of the caller, outermost first, each entered module once.

    Any method counts, not only ``forward`` through ``__call__``: ``self.block.forward(x)`` and a region that calls
    ``model.decode`` run inside their module too. In a backward pass no module is on the stack.
    """
    found: list[nn.Module] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        # f_locals copies every local, so look at the name of the first argument before asking for it.
        if code.co_argcount and code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and (not found or found[-1] is not owner):
                found.append(owner)
        frame = frame.f_back
    found.reverse()
    return tuple(found)


class ModuleNames:
    """Dotted names of modules, from ``model``, which is what the factory returned (a module or any object).

    A module that is reachable under several names has all of them.
    """

    def __init__(self, root: object, prefix: str = "model") -> None:
        self._names: dict[int, list[str]] = {}
        self._keep: list[nn.Module] = []  # an id is only unique while its object lives
        if isinstance(root, nn.Module):
            self._add(root, prefix)
        else:
            for key, value in getattr(root, "__dict__", {}).items():
                if isinstance(value, nn.Module):
                    self._add(value, f"{prefix}.{key}")

    def _add(self, root: nn.Module, prefix: str) -> None:
        for name, module in root.named_modules(remove_duplicate=False):
            self._names.setdefault(id(module), []).append(f"{prefix}.{name}" if name else prefix)
            self._keep.append(module)

    def of(self, module: nn.Module) -> tuple[str, ...]:
        """Every dotted name of ``module``; empty for one that the root does not reach."""
        return tuple(self._names.get(id(module), ()))

    def inside(self) -> tuple[str, ...]:
        """Every name of every module being called now, outermost first: what ``updates.within`` is matched with."""
        return tuple(name for module in module_stack() for name in self.of(module))
