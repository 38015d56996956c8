"""Where a bare name leads in the files of a model's folder: to one of them, to the program's module, or elsewhere."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
)
from pathlib import Path
from types import ModuleType
from typing import Any

from graphspec.runtime.importing.loaders import Namespace, Source
from graphspec.runtime.importing.program import is_current, same_file, spec_of


class Names:
    """What ``import name`` finds in code of the folder at ``path``, as ``sys.modules`` calls it.

    ``own`` is the package that the folder's modules are below, and ``source`` loads a file of it.
    """

    def __init__(self, path: Path, own: str, source: Any, namespace: Namespace) -> None:
        self._folders = [str(path)]
        self._own = own
        self._source = source
        self._namespace = namespace
        self._found: dict[str, str] = {}
        self._shared: set[str] = set()
        self._shares = True
        self._path: tuple[str, ...] = ()

    def look_again(self) -> None:
        """For an opening: files may have come since, and the program may have imported some."""
        importlib.invalidate_caches()
        self._found.clear()
        self._shared.clear()
        self._path = tuple(sys.path)
        self._shares = all(map(is_current, self._programs()))

    def of(self, name: str) -> str:
        """The name in ``sys.modules``."""
        top, dot, rest = name.partition(".")
        if top not in self._found:
            self._found[top] = self._home(top)
        return f"{self._found[top]}{dot}{rest}"

    def forget(self, name: str) -> None:
        """An import failed: a file may be written and imported next."""
        self._found.pop(name.partition(".")[0], None)

    def is_shared(self, top: str) -> bool:
        """Whether a name was found to lead to a file that the program finds by that name too."""
        return top in self._shared

    def find(self, name: str, folders: Sequence[str] | None = None) -> ModuleSpec | None:
        """The file of a module, as it is on disk now: no listing of a folder is remembered."""
        loaders: Any = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (self._source, SOURCE_SUFFIXES))
        specs = (FileFinder(each, *loaders).find_spec(name) for each in folders or self._folders)
        found = next((spec for spec in specs if spec is not None), None)
        if found is not None and found.loader is None:
            found.loader = self._namespace
        return found

    def elsewhere(self, top: str) -> ModuleSpec | None:
        """What others find by this name, who do not know of the folder."""
        return PathFinder.find_spec(top, [each for each in sys.path if not self._is_here(each)])

    def _programs(self) -> list[ModuleType]:
        """The modules that the program itself imported from files of this folder."""
        beside = {entry.partition(".")[0] for entry in os.listdir(self._folders[0])} & sys.modules.keys()  # noqa: PTH208
        tops = {top for top in beside if same_file(spec_of(top, self._path), self.find(top))}
        return [module for name, module in tuple(sys.modules.items()) if name.partition(".")[0] in tops]

    def _home(self, top: str) -> str:
        own = f"{self._own}.{top}"
        if own in sys.modules:
            return own
        if top in sys.builtin_module_names or FrozenImporter.find_spec(top) is not None:
            return top
        here, there = self.find(top), spec_of(top, self._path)
        if here is None:
            return top
        if same_file(here, there):
            if self._shares:
                self._shared.add(top)
                return top
            if not isinstance(there.loader if there else None, Source):
                message = (
                    f"{here.origin} or a file beside it changed since the program imported it: the model has its own"
                )
                warnings.warn(message, RuntimeWarning, stacklevel=4)
            return own
        is_folder = here.loader is self._namespace  # without code of its own it comes after any package
        return top if is_folder and there is not None else own

    def _is_here(self, entry: str) -> bool:
        try:
            return str(Path(entry).resolve()) == self._folders[0]
        except OSError:  # the current folder was deleted
            return False
