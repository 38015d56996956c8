"""What lies at a path, before anything reads it. Nothing here imports torch, and nothing is run."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

_POINTER = b"version https://git-lfs.github.com/spec/"
#: How the name of an index of a sharded checkpoint ends.
INDEX = ".safetensors.index.json"
#: The name that stands for standard input.
STDIN = Path("-")


def absolute(path: Path) -> str:
    """The full path that was tried, as it was spelt: links stay as they are, so that a reader finds the slip."""
    try:
        return os.path.abspath(path)  # noqa: PTH100  Path.resolve would follow links
    except OSError:  # the current folder was deleted
        return str(path)


def leave_deleted_folder() -> bool:
    """Go elsewhere if the working directory was deleted: libraries of torch would end the process. Whether it was."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        os.chdir("/")
        return True
    return False


def is_there(path: Path) -> bool:
    """Whether there is something at a path. A name that the system refuses leads to nothing."""
    return os.path.exists(path)  # noqa: PTH110  that of Path raises for some names


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path, likewise."""
    return os.path.isdir(path)  # noqa: PTH112


@dataclass(frozen=True)
class Problem:
    """Why a file cannot be read, without its name, and what to do about it."""

    reason: str
    fix: str

    def about(self, path: Path) -> str:
        """The whole sentence, with the full path."""
        full = absolute(path)
        return f"there is no file {full}" if self is ABSENT else f"{full} cannot be read: {self.reason}"


ABSENT = Problem("it does not exist", "paths are relative to the spec file")


def problem(path: Path) -> Problem | None:
    """Why the file at ``path`` cannot be read; None where it may be."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return Problem("it is a folder", "name the file inside it")
        if not stat.S_ISREG(mode):
            return Problem("it is no ordinary file", "write it to one")  # reading a pipe would wait for its writer
        with path.open("rb") as file:
            is_pointer = file.read(len(_POINTER)) == _POINTER
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except (OSError, ValueError) as error:  # a name too long, a folder that may not be entered, a null character
        return Problem(reason(error), "check its name and who may read it")
    return Problem("it is a pointer of Git LFS, not the file itself", "fetch it: git lfs pull") if is_pointer else None


def reason(error: Exception) -> str:
    """Why a file cannot be used, in the system's words."""
    return str(getattr(error, "strerror", None) or error)


def read_index(path: Path) -> dict[str, str]:
    """Which file, beside the index, holds each tensor of a sharded checkpoint. Raises ValueError saying what is wrong.

    The format is that of ``model.safetensors.index.json``, as transformers and huggingface_hub write it.
    """
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    found = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(found, dict) or not all(isinstance(file, str) and file for file in found.values()):
        raise ValueError("it has no `weight_map` from the names of tensors to the names of files")
    return found
