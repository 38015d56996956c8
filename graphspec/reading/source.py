"""The text of a spec: of a file, of standard input, or of the one spec in a folder."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from graphspec.errors import Diagnostic, SpecError
from graphspec.files import STDIN, absolute, is_folder, reason

#: Specs of a thousand regions have some megabytes; more is another file, or a device that never ends.
MOST_BYTES = 64 << 20
_USUAL = "model.yaml"
_SUFFIXES = (".yaml", ".yml")
_VERSION = re.compile(rb"^(\xef\xbb\xbf)?graphspec[ \t]*:", re.MULTILINE)
_HEAD = 1 << 16
_LISTED = 6


def read_text(path: Path) -> str:
    """The text at ``path``; ``-`` is standard input. Raises `SpecError` with the one reason why there is none."""
    full = absolute(path)
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        _refuse("GS001", f"there is no file {full}", path, "check its name and folder")
    except IsADirectoryError:
        _refuse("GS001", f"{full} is a folder", path, "name the spec file inside it")
    except (OSError, ValueError) as error:
        _refuse("GS001", f"{full} cannot be read: {reason(error)}", path, "check the file")
    if len(raw) > MOST_BYTES:
        _refuse("GS001", f"{full} holds more than {MOST_BYTES >> 20} MiB, which no spec does", path, "check the file")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        message = f"{full} is not UTF-8 text: byte 0x{raw[error.start]:02x} at offset {error.start}"
        _refuse("GS002", message, path, "save the file as UTF-8")


def _refuse(code: str, message: str, path: Path, hint: str) -> NoReturn:
    raise SpecError([Diagnostic(code, message, file=str(path), hint=hint)])


def spec_file(path: Path) -> Path:
    """The file that ``path`` means: itself, or for a folder its `model.yaml`, or else the only spec in it.

    Raises `SpecError` for a folder that holds several, naming them. One that holds none is left to the reader.
    """
    if path == STDIN or not is_folder(path):
        return path
    if (path / _USUAL).is_file():
        return path / _USUAL
    found = [each for each in _entries(path) if _is_spec(each)]
    if len(found) > 1:
        names = ", ".join(each.name for each in found[:_LISTED]) + (", ..." if len(found) > _LISTED else "")
        _refuse("GS001", f"{absolute(path)} is a folder of {len(found)} specs: {names}", path, "name one of them")
    return found[0] if found else path


def specs_below(path: Path) -> list[Path]:
    """Every spec in a folder and in what it holds, sorted; ``path`` itself where it is no folder or holds none."""
    if path == STDIN or not is_folder(path):
        return [path]
    found = []
    for folder, inner, _ in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and not _is_foreign(Path(folder, name)))
        found += [each for each in _entries(Path(folder)) if _is_spec(each)]
    return found or [path]


def _is_foreign(folder: Path) -> bool:
    """Whether a folder holds what others installed: no spec in it is one of the user's."""
    return folder.name == "node_modules" or (folder / "pyvenv.cfg").exists()


def _entries(folder: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return
    yield from (folder / name for name in names if name.endswith(_SUFFIXES))


def _is_spec(path: Path) -> bool:
    """Whether a file says which format version it has, as every spec does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _VERSION.search(file.read(_HEAD)) is not None
    except OSError:
        return False
