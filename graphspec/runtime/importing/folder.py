"""The modules of one folder: made, imported from each other, and replaced when a file of it changes."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from graphspec.runtime.importing.finder import ASKED, Asked, Finder
from graphspec.runtime.importing.loaders import FOLDER, Alias, Namespace, Source
from graphspec.runtime.importing.names import Names
from graphspec.runtime.importing.program import is_current
from graphspec.runtime.importing.search import SearchPath

_PREFIX = "graphspec_model_"
_OWN_NAME = re.compile(rf"\b{_PREFIX}[0-9a-f]+_\d+\.")


def readable(text: str) -> str:
    """``text`` with the modules of a folder called as their own code calls them."""
    return _OWN_NAME.sub("", text)


def file_of(module: str) -> str | None:
    """How findings call a module beside a model file: ``model.py``, ``layers/attention.py``; None for another one."""
    if _OWN_NAME.match(module) is None:
        return None
    own = readable(module)
    return own if hasattr(sys.modules.get(module), "__path__") else own.replace(".", "/") + ".py"


def imported(name: str, namespace: Mapping[str, Any]) -> ModuleType | None:
    """The module that ``import name`` finds in code with these globals; None where it was not imported yet."""
    folder = namespace.get(FOLDER)
    return sys.modules.get(folder.names.of(name) if isinstance(folder, ModelFolder) else name)


class ModelFolder:
    """One set of modules of a folder, below a package without a file, which is in ``sys.modules`` and holds this."""

    def __init__(self, path: Path, base: str) -> None:
        finder = Finder.installed()
        self.name = finder.add(base, self)
        self._helpers: list[Source] = []
        self._search = SearchPath(path, finder.changes)
        self.names = Names(self._search, self.name, partial(Source, self, self._helpers.append), Namespace(self))
        self._package = importlib.util.module_from_spec(ModuleSpec(self.name, None, is_package=True))
        self._package.__path__ = self._search.folders
        vars(self._package)[FOLDER] = self
        self._away: dict[str, ModuleType] = {}
        self._executed: set[str] = set()
        self._serves_again = True

    @classmethod
    def of(cls, path: Path, *, anew: bool) -> ModelFolder:
        """The modules of a folder as it is now. ``anew``: for an opening, which executes its model file once more."""
        path = path.resolve()  # a link to a folder may lead elsewhere tomorrow
        base = f"{_PREFIX}{hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()}"
        folder: ModelFolder | None = Finder.installed().last(base)
        if folder is None or not folder.is_current() or (anew and not folder._serves_again):
            if folder is not None:
                folder._leave()
            folder = cls(path, base)
            anew = True
        folder.restored()
        if anew:
            folder.names.look_again()
        return folder

    def is_current(self) -> bool:
        """Whether the files say what was run; those that are executed for each opening do not count."""
        return all(helper.is_current() for helper in self._helpers)

    def execute(self, path: Path) -> ModuleType:
        """Run a file of the folder, whether it was before or not, and give its module. Raises what the file raises."""
        name = self._name(path)
        self._executed.add(name)
        spec = importlib.util.spec_from_file_location(name, path, loader=Source(self, _nothing, name, str(path)))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        before = sys.modules.get(name)
        sys.modules[name] = module
        try:
            with self.visible(str(path.parent)):
                spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            if before is not None:
                sys.modules[name] = before
            raise
        vars(self._package)[name.rpartition(".")[2]] = module
        return module

    def loaded(self, path: Path) -> ModuleType | None:
        """The module of a file that was executed, or that an import statement finds; None where it must be executed.

        Raises what the file raises.
        """
        module = sys.modules.get(self._name(path))
        if module is None and path.stem.isidentifier():
            with contextlib.suppress(ModuleNotFoundError), self.visible():
                module = self.import_(path.stem, fromlist=("__name__",))
        is_this = Path(str(getattr(module, "__file__", None))).name == path.name
        return module if module is not None and is_this and is_current(module) else None

    def imported_from(self, path: Path) -> ModuleType | None:
        """The module of this set that a file is; None where no code imported it."""
        below, wanted = f"{self.name}.", path.resolve()
        found = (module for name, module in sys.modules.copy().items() if name.startswith(below))
        return next((each for each in found if is_current(each) and _lies_in(each, wanted)), None)

    @contextlib.contextmanager
    def visible(self, first: str | None = None) -> Iterator[None]:
        """Here libraries find the files by their bare names: unpickling, or `import_module` of a name in a config.

        ``first`` is on ``sys.path`` meanwhile.
        """
        asked = Asked(self, None, set())
        token = ASKED.set(asked)
        try:
            with self._search.running(first):
                yield
        finally:
            ASKED.reset(token)
            for name in asked.aliases:
                sys.modules.pop(name, None)

    def restored(self) -> ModuleType:
        """The package, after this set of modules has come back into ``sys.modules``."""
        for name, module in self._away.items():
            sys.modules.setdefault(name, module)
        return sys.modules.setdefault(self.name, self._package)

    def import_(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__` for code of this folder."""
        target = self.names.of(name) if level == 0 else _absolute(name, globals or {}, level)
        if self._executed & {target, *(f"{target}.{each}" for each in fromlist or ())}:
            self._serves_again = False  # what others took from a file that is executed anew would be the old one's
        try:
            with self._asking(target.partition(".")[0]):
                found = builtins.__import__(name if level else target, globals, locals, fromlist or (), level)
        except ImportError as error:
            self.names.forget(name)
            error.msg, error.name = error.msg and readable(error.msg), error.name and readable(error.name)
            raise
        if level == 0 and target != name and not fromlist:
            return sys.modules[f"{self.name}.{name.partition('.')[0]}"]
        return self._importlib() if found is importlib else found

    def answer(self, name: str, asked: Asked) -> ModuleSpec | None:
        """The spec of a file that is asked for by its bare name."""
        own = self.names.of(name)
        if own == name:
            return self.names.find(name) if asked.only == name and self.names.is_shared(name) else None
        return self.names.elsewhere(name) or self.alias(name, own)

    def alias(self, name: str, own: str) -> ModuleSpec | None:
        """A second name of a module of this folder; None where there is no such module."""
        try:
            module = importlib.import_module(own)
        except ModuleNotFoundError as error:
            if error.name == own:
                return None
            raise
        if (asked := ASKED.get()) is not None:
            asked.aliases.add(name)
        return ModuleSpec(name, Alias(module), is_package=hasattr(module, "__path__"))

    def _leave(self) -> None:
        """Make room for a newer set of modules. This one lives on with whoever uses it."""
        below = f"{self.name}."
        self._away = {name: module for name, module in sys.modules.copy().items() if f"{name}.".startswith(below)}
        for name in self._away:
            sys.modules.pop(name, None)

    def _name(self, path: Path) -> str:
        """What an executed file is called in ``sys.modules``; a dot in its stem would be a package's."""
        return f"{self.name}.{path.stem.replace('.', '_')}"

    @contextlib.contextmanager
    def _asking(self, top: str) -> Iterator[None]:
        """A name that is not imported yet: if it is shared with the program, this folder's finder loads the file."""
        if top in sys.modules:
            yield
            return
        token = ASKED.set(Asked(self, top, set()))
        try:
            yield
        finally:
            ASKED.reset(token)

    def _importlib(self) -> ModuleType:
        """`importlib` whose `import_module` answers as a statement would."""
        module = ModuleType("importlib")
        vars(module).update(vars(importlib), import_module=self.import_module)
        return module

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """`importlib.import_module` for code of this folder."""
        return importlib.import_module(name, package) if name[:1] == "." else self.import_(name, fromlist=("__name__",))


def _lies_in(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).name == path.name and Path(file).resolve() == path


def _absolute(name: str, namespace: Mapping[str, Any], level: int) -> str:
    """What a relative import asks for."""
    package = str(namespace.get("__package__")).split(".")
    return ".".join([*package[: len(package) - level + 1], *filter(None, [name])])


def _nothing(_: Source) -> None:
    """A file that is executed for each opening is no reason for a new set of modules."""
