"""The folders in which a model's code finds its own modules: where it lies, and what it puts on ``sys.path`` nearby."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path


class _OwnEntry(str):
    """A folder that graphspec put on ``sys.path``: told from the same folder put there by others."""

    __slots__ = ()


class SearchPath:
    """The folder at ``path``, and those inside of it or around it that its code adds to ``sys.path``.

    Whatever else the code adds is the program's from then on, as Python has it.
    """

    def __init__(self, path: Path, changes: AbstractContextManager[object]) -> None:
        self._path = path
        self._changes = changes  # of sys.path, one at a time
        #: In the order of the search: put before the program's own, the folder, put after them.
        self.folders = [str(path)]
        self.last_resort: set[str] = set()
        self.programs: tuple[str, ...] = ()

    def look_again(self) -> None:
        """What is on the path now is the program's, but for what was added before."""
        added = {each for each in self.folders if each != str(self._path)}
        self.programs = tuple(each for each in sys.path if type(each) is not _OwnEntry and each not in added)

    @contextlib.contextmanager
    def running(self, folder: str | None) -> Iterator[None]:
        """Code of the folder runs; what others have on the path before is the program's.

        ``folder`` is put first, as for a script, which may take it out again. What the code adds nearby is taken in and
        off ``sys.path`` again: another model's code is not to find it.
        """
        self.look_again()
        own = None if folder is None else _OwnEntry(folder)
        with self._changes:
            sys.path[:0] = [] if own is None else [own]
        try:
            yield
        finally:
            self.take_in()
            with self._changes:
                sys.path[:] = self._without_added(own)

    def take_in(self) -> None:
        """Notice what was added since."""
        first = True
        for entry in tuple(sys.path):
            if entry in self.programs:
                first = False
            elif self.is_near(entry) and entry not in self.folders and Path(entry).resolve() != self._path:
                self.folders.insert(0 if first else len(self.folders), entry)
                if not first:
                    self.last_resort.add(entry)

    def _without_added(self, own: _OwnEntry | None) -> list[str]:
        before, kept = Counter(self.programs), []
        for entry in reversed(sys.path):  # what was there before comes after what was put before it
            if type(entry) is _OwnEntry:
                stays = entry is not own  # another thread's
            else:
                before[entry] -= 1
                stays = before[entry] >= 0 or not self.is_near(entry)
            kept += [entry] if stays else []
        return kept[::-1]

    def files(self) -> Iterator[str]:
        """The names of what lies in these folders."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                yield from (entry.name for entry in Path(folder).iterdir())

    def is_near(self, entry: str) -> bool:
        """Whether a folder is this one, inside of it, or around it."""
        try:
            there = Path(entry).resolve()
        except (OSError, ValueError):  # the current folder was deleted; no name of a folder
            return False
        return there == self._path or self._path in there.parents or there in self._path.parents
