"""How the files of a model's folder become modules."""

from __future__ import annotations

import builtins
import linecache
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Protocol

from torch.utils._python_dispatch import _disable_current_modes

#: The global of a module that holds its folder.
FOLDER = "__graphspec_folder__"


class Importer(Protocol):
    """A folder, as its modules and the import system see it: `ModelFolder`."""

    def import_(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """`__import__` for code of the folder."""

    @property
    def names(self) -> Any:
        """Its modules by name."""

    def alias(self, name: str, own: str) -> ModuleSpec | None:
        """The spec of one of its modules that is asked for by another name."""

    def restored(self) -> ModuleType:
        """Its package, with its modules in ``sys.modules``."""

    def answer(self, name: str, asked: Any) -> ModuleSpec | None:
        """The spec of a file that is asked for by its bare name."""


class Source(SourceFileLoader):
    """Runs a file from its source, with the ``__import__`` of its folder. ``loaded`` is told once it has run."""

    def __init__(self, folder: Importer, loaded: Callable[[Source], None], fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._folder = folder
        self._loaded = loaded
        self._source: bytes | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module in which import statements ask the folder."""
        module = ModuleType(spec.name)
        own: dict[str, Any] = {FOLDER: self._folder}
        own["__builtins__"] = {**vars(builtins), "__import__": self._folder.import_}
        vars(module).update(own)
        return module

    def get_code(self, fullname: str) -> CodeType:
        """The file compiled, whatever bytecode lies beside it."""
        del fullname
        self._source = self.get_data(self.path)
        linecache.cache.pop(self.path, None)  # its lines are told apart by time and size as well
        code: CodeType = self.source_to_code(self._source, self.path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run it. What an import makes is real, and no part of the call that happens to import."""
        with _disable_current_modes():
            super().exec_module(module)
        self._loaded(self)

    def is_current(self) -> bool:
        """Whether the file says what was run."""
        try:
            return self.get_data(self.path) == self._source
        except OSError:
            return False


class Namespace(Loader):
    """A folder without an ``__init__.py``."""

    def __init__(self, folder: Importer) -> None:
        self._folder = folder

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module; the import system gives it its path."""
        module = ModuleType(spec.name)
        vars(module)[FOLDER] = self._folder
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class Alias(Loader):
    """A module that is there already, under another name."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself."""
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give back the spec that the import system replaced by that of the alias."""
        module.__spec__ = self._spec
