"""Where Python's own import system meets the folders of models: one finder in ``sys.meta_path``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from graphspec.runtime.importing.loaders import FOLDER, Alias, Importer


class Asked(NamedTuple):
    """Whose files may be asked for by a bare name, here and now. ``aliases``: the names that were."""

    folder: Importer
    only: str | None  # this name; None: any
    aliases: set[str]


ASKED: ContextVar[Asked | None] = ContextVar("graphspec_asked", default=None)


class Finder:
    """Finds the modules of folders, and their files by bare names where these may be asked for.

    ``sys.modules`` has the last set of modules of a folder. An older one comes back when it is asked for, by a late
    import or by pickle, as long as anything of it is alive.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self.changes = threading.Lock()  # of sys.path; held while no code of anyone's runs
        self._folders: WeakValueDictionary[str, Any] = WeakValueDictionary()

    @classmethod
    def installed(cls) -> Finder:
        """The finder in ``sys.meta_path``, put there if it is not."""
        found = next((each for each in sys.meta_path if isinstance(each, cls)), None)
        if found is None:
            found = cls()
            sys.meta_path.insert(0, found)
        return found

    def last(self, base: str) -> Any:
        """The last set of modules whose name begins with ``base``."""
        return self._folders.get(f"{base}_{self._last.get(base, 0)}")

    def add(self, base: str, folder: Importer) -> str:
        """Take in a new set of modules; its name."""
        self._last[base] = count = self._last.get(base, 0) + 1
        self._folders[f"{base}_{count}"] = folder
        return f"{base}_{count}"

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The import system's question."""
        del target
        parent, _, tail = name.rpartition(".")
        if not parent:
            if (known := self._folders.get(name)) is not None:
                return ModuleSpec(name, Alias(known.restored()), is_package=True)
            asked = ASKED.get()
            return asked.folder.answer(name, asked) if asked is not None and asked.only in (None, name) else None
        owner = sys.modules.get(parent)
        folder: Importer | None = vars(owner).get(FOLDER) if isinstance(owner, ModuleType) else None
        if folder is None or owner is None or path is None:
            return None
        if owner.__name__ != parent:
            return folder.alias(name, f"{owner.__name__}.{tail}")
        found: ModuleSpec | None = folder.names.find(name, path)
        return found
