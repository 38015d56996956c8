"""What code that ran can have reached: from the objects it ran on, along the names that it loads.

A part of the model that no region runs is nobody's business. Which objects the functions that ran were given, and which
names they load, is noted while they run (code_names.py); whatever a chain of those names leads to from there is
touched. Where names say nothing everything is followed: the members of a container, what a method or a partial is bound
to, the attributes of objects whose own code is a library's, and those of the user's objects when names are computed.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from graphspec.runtime.holdings.code_names import LoadedNames
from graphspec.runtime.holdings.parts import (
    DATA_CLASSES,
    cells_of,
    function_of,
    is_from_library,
    is_installed_file,
    is_of_user,
    module_of,
    modules_of,
    names_in,
)
from graphspec.runtime.holdings.places import Part, Place
from graphspec.runtime.holdings.reach import Reach

MODULE_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
#: Objects that are nothing but their attributes.
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
#: What every module keeps for torch itself.
_INTERNAL = frozenset(vars(nn.Module()))
_LAYERS = "torch.nn.modules."
_TORCH = ("torch", "torch_npu", "torchair")
#: Parts that are asked by name.
ATTRIBUTES = ("attributes", "fields", "parameters", "buffers", "modules", "class")


def remembered(found: Reach, code: LoadedNames) -> LoadedNames:
    """``code``, and that of the user's functions whose results are kept: when these are forgotten, it runs again."""
    todo, codes, names = list(found.remembering()), set(code.codes), set(code.names)
    for function in todo:  # grows while it is walked
        if is_installed_file(function.__code__.co_filename):
            continue
        codes.add(function.__code__)
        names.update(names_in(function.__code__))
        called = _named(function.__globals__, names_in(function.__code__))
        todo += (it for it in called if isinstance(it, types.FunctionType) and it.__code__ not in codes)
    return dataclasses.replace(code, names=frozenset(names), codes=frozenset(codes))


class Touched:
    """The objects of a `Reach` that ``code`` can have got to, beginning at ``starts``."""

    def __init__(self, found: Reach, starts: Iterable[Any], code: LoadedNames) -> None:
        self._found = found
        self._code = code
        self._parts: dict[int, list[Part]] = {}
        for part in found.parts:
            if part.kind not in ("cell", "globals"):
                self._parts.setdefault(id(part.owner), []).append(part)
        self._seen: set[int] = set()
        self._walked = set(code.walked)
        ran = (function for function in found.functions() if function.__code__ in code.codes)
        self._todo = [*starts, *ran, *found.objects(code.objects)]
        while self._todo:
            self._visit(self._todo.pop())

    def __contains__(self, value: object) -> bool:
        return id(value) in self._seen

    def walks(self, module: nn.Module) -> bool:
        """Whether code went through the children, parameters or buffers of a module, whatever their names."""
        return id(module) in self._walked

    def holds(self, place: Place) -> bool:
        """Whether code that ran can have looked in a place."""
        if place.kind == "global":
            return place.key in self._code.names
        return not place.above or place.owner in self

    def relevant(self, places: Iterable[Place]) -> list[Place]:
        """The places that count of those that hold one object; all of them where nobody knows how code got there."""
        every = list(places)
        return [place for place in every if self.holds(place)] or every

    def names(self, part: Part) -> list[Any]:
        """The keys of a part that code can have asked for."""
        everything = self._is_all_asked(part)
        internal = _INTERNAL if part.kind == "attributes" and isinstance(part.owner, nn.Module) else ()
        return [key for key in part.read() if (everything or key in self._code.names) and key not in internal]

    def asked(self, part: Part) -> list[Any]:
        """Of these, those that are no business of Python's own."""
        return [key for key in self.names(part) if part.kind not in ATTRIBUTES or not str(key).startswith("__")]

    def globals(self, space: Mapping[str, Any]) -> Iterable[str]:
        """The names that code can have asked for in a namespace."""
        everything = self._code.computed and not is_installed_file(space.get("__file__"))
        return (key for key in space if key in self._code.names or everything)

    def _visit(self, value: Any) -> None:
        known = isinstance(value, type | types.ModuleType) or self._found.knows(value)
        if id(value) in self._seen or not known:
            return
        self._seen.add(id(value))
        for part in self._parts.get(id(value), ()):
            content, named = part.read(), self.names(part)
            if id(value) in self._code.asked:  # by names that a library makes: that may lead to objects
                named += [key for key, held in content.items() if isinstance(held, nn.Module) and key not in named]
            self._todo += [content[key] for key in named]
            if part.kind == "modules" and id(value) in self._walked:
                self._walked.update(map(id, content.values()))
        if isinstance(value, types.FunctionType):
            for part in cells_of(value, ""):
                self._seen.add(id(part.owner))
                self._todo += part.read().values()
            self._todo += [*_named(value.__globals__, self._code.names), *modules_of(value)]
        elif isinstance(value, types.ModuleType):
            self._todo += _named(vars(value), self.globals(vars(value)))
        elif isinstance(value, type):
            members = _named(vars(value), self._code.names)
            self._todo += [function_of(member) or member for member in members]
            self._todo += [*value.__mro__[1:], type(value)] if is_of_user(value) else ()
        else:
            self._todo += [kind for kind in type(value).__mro__ if not is_from_library(kind)]

    def _is_all_asked(self, part: Part) -> bool:
        owner, kind = part.owner, type(part.owner)
        if part.kind not in ATTRIBUTES or (part.kind == "fields" and is_from_library(kind)):
            return True
        if part.kind == "modules" and (isinstance(owner, MODULE_CONTAINERS) or id(owner) in self._walked):
            return True
        if part.kind == "class" or isinstance(owner, torch.Tensor):
            return False
        if self._code.computed and is_of_user(kind):
            return True
        return _is_foreign(kind) or (isinstance(owner, DATA_CLASSES) and kind not in NAMESPACES)


def _named(space: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    return [space[name] for name in names if name in space]


def _is_foreign(kind: type) -> bool:
    """Whether some code of a class is torch's, but for that of layers, which is watched."""
    modules = [str(module_of(base)) for base in kind.__mro__]
    return any(name.partition(".")[0] in _TORCH and not name.startswith(_LAYERS) for name in modules)
