"""Where a bare name leads in the files of a model's folder: to one of them, to the program's module, or elsewhere."""

from __future__ import annotations

import importlib
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
from graphspec.runtime.importing.search import SearchPath


class Names:
    """What ``import name`` finds in code of a folder, as ``sys.modules`` calls it.

    ``own`` is the package that the folder's modules are below, and ``source`` loads a file of it.
    """

    def __init__(self, search: SearchPath, own: str, source: Any, namespace: Namespace) -> None:
        self._search = search
        self._own = own
        self._source = source
        self._namespace = namespace
        self._found: dict[str, str] = {}
        self._shared: set[str] = set()
        self._shares = True

    def look_again(self) -> None:
        """For an opening: files may have come since, and the program may have imported some."""
        importlib.invalidate_caches()
        self._found.clear()
        self._shared.clear()
        self._search.look_again()
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
        specs = (FileFinder(each, *loaders).find_spec(name) for each in folders or self._search.folders)
        found = next((spec for spec in specs if spec is not None), None)
        if found is not None and found.loader is None:
            found.loader = self._namespace
        return found

    def elsewhere(self, top: str) -> ModuleSpec | None:
        """What others find by this name, who do not know of the folder."""
        found = PathFinder.find_spec(top, self._search.programs)
        return None if same_file(found, self.find(top)) else found

    def _programs(self) -> list[ModuleType]:
        """The modules that the program itself imported from files of this folder."""
        there = sys.modules.copy()  # other threads import too
        beside = {top for name in self._search.files() if (top := name.partition(".")[0]) in there}
        tops = {top for top in beside if same_file(spec_of(top, self._search.programs), self.find(top))}
        return [module for name, module in there.items() if name.partition(".")[0] in tops]

    def _home(self, top: str) -> str:
        own = f"{self._own}.{top}"
        if own in sys.modules:
            return own
        if top in sys.builtin_module_names or FrozenImporter.find_spec(top) is not None:
            return top
        self._search.take_in()
        here, there = self.find(top), spec_of(top, self._search.programs)
        if here is None:
            return top
        if same_file(here, there):
            return self._same(top, own, here, there)
        # A folder without code of its own comes after any package, and so does what the code put last on the path.
        late = here.loader is self._namespace or str(Path(str(here.origin)).parent) in self._search.last_resort
        return top if late and there is not None else own

    def _same(self, top: str, own: str, here: ModuleSpec, there: ModuleSpec | None) -> str:
        """The program finds this very file too."""
        if self._shares:
            self._shared.add(top)
            return top
        if there is not None and not isinstance(there.loader, Source):
            message = f"{here.origin} or a file beside it changed since the program imported it: the model has its own"
            warnings.warn(message, RuntimeWarning, stacklevel=5)
        return own
