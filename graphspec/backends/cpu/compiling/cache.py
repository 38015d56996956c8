"""Compiled libraries on disk, by digest, under the user's cache folder.

A library is code that this process will run. So it is only taken from folders and files that belong to the user and
that nobody else can write, and only whole: beside each lies the SHA-256 of its bytes. It is built in a folder of its
own and put in place by one rename, so that a build that is killed, or runs beside another, leaves nothing half-written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from graphspec.errors import CaptureError

LIBRARY: Final = "library.so"
_MANIFEST: Final = "manifest.json"


class UnwritableCacheError(Exception):
    """The cache folder cannot be written; the reason."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/graphspec/compile``, or the same below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path there is to be ignored, by the standard that names the variable.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "graphspec" / "compile"


class LibraryCache:
    """The libraries of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, digest: str) -> Path | None:
        """The library of a digest, if it is there and whole. Raises CaptureError if others could have written it."""
        entry = self.folder / digest
        library = entry / LIBRARY
        try:
            for path in (self.folder.parent, self.folder, entry, *sorted(entry.iterdir())):
                _refuse_foreign(path)
            manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
            whole = all(_sha256(entry / name) == digest_of for name, digest_of in manifest["files"].items())
            return library if whole and LIBRARY in manifest["files"] else None
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, AttributeError, TypeError):
            return None
        except PermissionError:
            return None  # it will be built anew

    @contextmanager
    def building(self) -> Iterator[Path]:
        """A private folder to build in, on the disk of the cache; gone afterwards.

        Raises UnwritableCacheError where there can be none.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UnwritableCacheError(reason(error)) from error
        for path in (self.folder.parent, self.folder):
            _refuse_foreign(path)
        self._sweep()
        try:
            made = Path(tempfile.mkdtemp(prefix=f"{_building()}{os.getpid()}-", dir=self.folder))
        except OSError as error:
            raise UnwritableCacheError(reason(error)) from error
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def publish(self, digest: str, built: Path) -> Path:
        """Put what ``built`` holds in place, at once. Where another process was faster its library is taken."""
        files = {file.name: _sha256(file) for file in sorted(built.iterdir())}
        (built / _MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")
        for file in built.iterdir():
            file.chmod(0o600)
        built.chmod(0o700)
        entry = self.folder / digest
        for _ in range(2):
            with contextlib.suppress(OSError):  # it is there already: from another process, or broken
                built.rename(entry)
                return entry / LIBRARY
            if (found := self.find(digest)) is not None:
                return found
            broken = built.with_name(f"{built.name}-broken")
            with contextlib.suppress(OSError):
                entry.rename(broken)
        raise CaptureError(f"the compiled library could not be put in place in {self.folder}", hint=f"remove {entry}")

    def _sweep(self) -> None:
        """Remove what builds that were killed left behind."""
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"{_building()}*"):
                number = path.name.removeprefix(_building()).partition("-")[0]
                if number.isdigit() and not _is_running(int(number)):
                    shutil.rmtree(path, ignore_errors=True)


def reason(error: OSError) -> str:
    """What the system says: ``Read-only file system``."""
    return error.strerror or type(error).__name__


def _refuse_foreign(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        why = "is a link"
    elif found.st_uid != os.geteuid():
        why = "belongs to another user"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    else:
        return
    hint = f"chmod go-w {path}, after a look at who wrote there; or set XDG_CACHE_HOME to a folder of your own"
    raise CaptureError(f"compiled libraries are not taken from {path}: it {why}", hint=hint)


def _building() -> str:
    """How folders begin that this machine builds in: a home may be shared by several."""
    return f".building-{platform.node()}-"


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
