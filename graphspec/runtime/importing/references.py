"""What ``FILE.py:NAME`` and ``package.module:NAME`` of a spec refer to."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from graphspec.errors import GraphSpecError, ModelError
from graphspec.files import absolute, problem
from graphspec.nearest import nearest
from graphspec.runtime.importing.folder import ModelFolder
from graphspec.runtime.importing.user_code import call_user_code, failed, read_attribute, user_error


def import_object(reference: str, folder: Path, *, loaded: bool = False) -> Any:
    """What ``FILE.py:NAME`` (relative to ``folder``) or ``package.module:NAME`` refers to.

    A file is executed anew: it may have changed since. ``loaded`` takes it as it was executed last, where it did not.
    Raises ModelError: the file or module is missing or fails to import, or has no such name.
    """
    place, _, name = reference.rpartition(":")
    module = _file(folder / place, loaded=loaded) if place.endswith(".py") else _module(place, importlib.import_module)
    return _named(module, place, name)


def import_beside(reference: str, folder: Path, factory: str) -> Any:
    """The same, as code beside the ``factory`` finds it: what its modules hold is there once, for it and for the spec.

    ``set_context`` of a module that the model imports must set what the model reads.
    """
    place, _, name = reference.rpartition(":")
    own = factory.rpartition(":")[0]
    if not own.endswith(".py"):
        return import_object(reference, folder, loaded=True)
    home = ModelFolder.of((folder / own).parent, anew=False)
    if not place.endswith(".py"):
        return _named(_module(place, home.import_module), place, name)
    module = home.imported_from(folder / place)
    return import_object(reference, folder, loaded=True) if module is None else _named(module, place, name)


def _named(module: ModuleType, place: str, name: str) -> Any:
    reference = f"{place}:{name}"
    try:
        return functools.reduce(lambda owner, step: read_attribute(owner, step, reference), name.split("."), module)
    except AttributeError:
        message = f"{place} has no '{name}'"
        names = sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
        close = nearest(name, names)
        hint = f"did you mean '{close}'?" if close else f"it has: {', '.join(names)}" if names else None
        raise ModelError(message, hint=hint) from None


def beside(reference: str, folder: Path) -> contextlib.AbstractContextManager[None]:
    """While code of a reference is called: libraries find the files beside it, as they did when it was imported."""
    place = reference.rpartition(":")[0]
    if not place.endswith(".py"):
        return contextlib.nullcontext()
    return ModelFolder.of((folder / place).parent, anew=False).visible()


def _file(path: Path, *, loaded: bool) -> ModuleType:
    if (wrong := problem(path)) is not None:
        raise ModelError(wrong.about(path), hint=wrong.fix)
    path = Path(absolute(path))
    folder = ModelFolder.of(path.parent, anew=not loaded)
    module: ModuleType | None = call_user_code(folder.loaded, f"importing {path}", path) if loaded else None
    if module is None:
        module = call_user_code(folder.execute, f"importing {path}", path)
    return module


def _module(name: str, load: Callable[[str], ModuleType]) -> ModuleType:
    try:
        return load(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            message = f"there is no module '{error.name}'"
            raise ModelError(message, hint="install it, or name a file: model.py:build") from None
        raise failed(f"importing {name}", error) from user_error(error)
    except (GraphSpecError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - the same at import
        raise failed(f"importing {name}", error) from user_error(error)
