"""Tensors in files: what `--input`, `sample: {file: ...}`, `weights` and `--output` read and write."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphspec.errors import InputError
from graphspec.files import absolute, problem

#: What numpy has no dtype for, and what holds every value of it.
_WIDER = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}
#: How torch says that a pickle refers to a class or a function.
_CODE = re.compile(r"GLOBAL (\S+) was not an allowed global")
_ADVICE = re.compile(r"weights_only|safe_globals|trust")


class UnreadableError(Exception):
    """A file of tensors cannot be read; the text says why, in one line without the file's name."""


def read_file(path: Path) -> torch.Tensor | dict[Any, Any]:
    """What a .npy, .pt or .pth (weights only), or .safetensors file holds: a tensor, or tensors by name, on the CPU.

    Raises UnreadableError, whatever is wrong with the file.
    """
    if (wrong := problem(path)) is not None:
        raise UnreadableError(wrong.reason)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is said in one line
            loaded = _load(path)
    except Exception as error:  # noqa: BLE001 - the readers of torch, numpy and safetensors raise what their parsers do
        raise UnreadableError(reason_of(error)) from None
    if isinstance(loaded, torch.Tensor):
        return loaded.detach()
    if isinstance(loaded, Mapping):
        return dict(loaded)
    raise UnreadableError(f"it holds a {type(loaded).__name__}, not tensors")


def read_tensor(path: Path, name: str) -> torch.Tensor:
    """The tensor in a .npy, .pt (weights only) or .safetensors file, as a CPU tensor.

    A file of several tensors gives the one called ``name``, or its only one. Raises InputError.
    """
    path = Path(absolute(path))
    try:
        loaded = read_file(path)
    except UnreadableError as error:
        raise InputError(f"input '{name}': {path} cannot be read: {error}") from None
    if isinstance(loaded, Mapping):
        value = loaded[name] if name in loaded else next(iter(loaded.values())) if len(loaded) == 1 else None
        if not isinstance(value, torch.Tensor):
            have = ", ".join(map(str, loaded)) or "nothing"
            raise InputError(f"input '{name}': {path} has no tensor of that name, only {have}")
        loaded = value
    if loaded.is_meta or loaded.layout is not torch.strided or loaded.is_quantized:
        kind = "quantized" if loaded.is_quantized else "meta" if loaded.is_meta else str(loaded.layout)
        raise InputError(f"input '{name}': {path} holds a {kind} tensor, and a dense one is wanted")
    return loaded.detach()


def refuse_unwritable(path: Path) -> None:
    """Refuse an `--output` that `write_tensors` could not write, and leave nothing behind. Raises InputError."""
    if path.suffix not in {".npz", ".safetensors"}:
        raise InputError(f"--output: {path} is neither .npz nor .safetensors")
    folder = Path(absolute(path)).parent
    if not os.path.isdir(folder):  # noqa: PTH112 - Path's own raises for a name that is too long
        raise InputError(f"--output: there is no folder {folder}")
    try:
        there = path.exists()
        if there and not path.is_file() and not path.is_dir():
            return  # a pipe: opening it would wait for its reader
        path.open("ab").close()
        if not there:
            path.resolve().unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write results to a .npz or .safetensors file. Raises InputError where it cannot be written."""
    plain = {name: _plain(tensor) for name, tensor in tensors.items()}
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import save

            # Not its own `save_file`, which puts a private file of its own where the path, or its link, was.
            path.write_bytes(save(plain))
        else:
            _write_npz(path, plain)
    except OSError as error:
        raise _unwritable(path, error) from None
    except Exception as error:  # noqa: BLE001 - what a format cannot hold: safetensors has a class of its own
        raise InputError(f"--output: {absolute(path)} cannot be written: {reason_of(error)}") from None


def _write_npz(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """As numpy.savez, which takes no result of the name `file`."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, tensor in tensors.items():
            array = (tensor.to(torch.float32) if tensor.dtype in _WIDER else tensor).numpy()
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().clone()


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"--output: {absolute(path)} cannot be written: {error.strerror or error}")


def reason_of(error: Exception) -> str:
    """What a reader said, in one line; torch's advice to trust the file and run its code is not passed on."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    if (code := _CODE.search(text)) is not None:
        return f"it holds {code[1]}, which is code, and only tensors are read; save a state_dict, or use safetensors"
    if "TorchScript archive" in text:
        return "it is a TorchScript archive, which is code, and only tensors are read; save its state_dict"
    _, _, unpickling = text.partition("WeightsUnpickler error:")  # torch puts advice to trust the file before it
    line = next(iter((unpickling or text).strip().splitlines()), "")
    said = " ".join(each for each in re.split(r"(?<=[.!?]) ", line) if _ADVICE.search(each) is None)
    if said and isinstance(error, (OSError, ValueError, TypeError, RuntimeError)):
        return said
    return f"it is damaged, or of another format ({type(error).__name__}{': ' if said else ''}{said})"


def _load(path: Path) -> object:
    match path.suffix:
        case ".npy":
            import numpy as np

            return torch.from_numpy(np.load(path, allow_pickle=False))
        case ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        case ".pt" | ".pth" | ".bin" | ".ckpt":
            return torch.load(path, map_location="cpu", weights_only=True)
        case other:
            message = f"the suffix '{other}' is not one of .npy, .pt, .safetensors"
            raise ValueError(message)
