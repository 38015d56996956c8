"""What code that ran can have reached: from the objects it ran on, along the names that it loads.

A part of the model that no region runs is nobody's business. Which objects the functions that ran were given, and which
names they load, is noted while they run (code_names.py); whatever a chain of those names leads to from there is
touched. Where names say nothing everything is followed: the members of a container, what a method or a partial is bound
to, the attributes of objects whose own code is a library's, and those of the user's objects when names are computed.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from graphspec.runtime.holdings.code_names import LoadedNames
from graphspec.runtime.holdings.parts import (
    DATA_CLASSES,
    code_parts,
    function_of,
    is_from_library,
    is_of_user,
    module_of,
)
from graphspec.runtime.holdings.places import Part, Place
from graphspec.runtime.holdings.reach import Reach

CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
#: Objects that are nothing but their attributes.
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_LAYERS = "torch.nn.modules."
_TORCH = ("torch", "torch_npu", "torchair")
#: Parts that are asked by name.
ATTRIBUTES = ("attributes", "fields", "parameters", "buffers", "modules", "class")


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
        return [key for key in part.read() if everything or key in self._code.names]

    def _visit(self, value: Any) -> None:
        if id(value) in self._seen or not (isinstance(value, type) or self._found.knows(value)):
            return
        self._seen.add(id(value))
        for part in self._parts.get(id(value), ()):
            content = part.read()
            for key in content if id(value) in self._code.asked else self.names(part):
                self._todo.append(content[key])
                if part.kind == "modules" and id(part.owner) in self._walked:
                    self._walked.add(id(content[key]))
        if isinstance(value, types.FunctionType):
            for part in code_parts(value, ""):
                self._seen.add(id(part.owner))
                self._todo += [
                    held for key, held in part.read().items() if part.kind == "cell" or key in self._code.names
                ]
        elif isinstance(value, type):
            members = [vars(value)[key] for key in self._code.names if key in vars(value)]
            self._todo += [function_of(member) or member for member in members]
            self._todo += value.__mro__[1:] if is_of_user(value) else ()
        else:
            self._todo += [kind for kind in type(value).__mro__ if not is_from_library(kind)]

    def _is_all_asked(self, part: Part) -> bool:
        owner, kind = part.owner, type(part.owner)
        if part.kind not in ATTRIBUTES or (part.kind == "fields" and is_from_library(kind)):
            return True
        if part.kind == "modules" and (isinstance(owner, CONTAINERS) or id(owner) in self._walked):
            return True
        if part.kind == "class" or isinstance(owner, torch.Tensor):
            return False
        if self._code.computed and is_of_user(kind):
            return True
        return (isinstance(owner, DATA_CLASSES) and kind not in NAMESPACES) or any(map(_is_foreign, kind.__mro__))


def _is_foreign(kind: type) -> bool:
    """Whether a class is of torch, and none of its layers, whose code is watched."""
    module = str(module_of(kind))
    return module.partition(".")[0] in _TORCH and not module.startswith(_LAYERS)
