"""Tensors in files: what `--input`, `sample: {file: ...}` and `--output` read and write."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphspec.errors import InputError


def read_tensor(path: Path, name: str) -> torch.Tensor:
    """The tensor in a .npy, .pt (weights only) or .safetensors file, as a CPU tensor.

    A file of several tensors gives the one called ``name``, or its only one. Raises InputError.
    """
    path = path.absolute()
    if not path.is_file():
        message = f"input '{name}': the file {path} does not exist"
        raise InputError(message)
    try:
        loaded = _load(path)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        message = f"input '{name}': {path} cannot be read: {str(error).splitlines()[0]}"
        raise InputError(message) from None
    if isinstance(loaded, torch.Tensor):
        return loaded
    if not isinstance(loaded, Mapping):
        message = f"input '{name}': {path} holds a {type(loaded).__name__}, not a tensor"
        raise InputError(message)
    if name in loaded or len(loaded) == 1:
        value = loaded[name] if name in loaded else next(iter(loaded.values()))
        if isinstance(value, torch.Tensor):
            return value
    message = f"input '{name}': {path} has no tensor of that name, only {', '.join(map(str, loaded)) or 'nothing'}"
    raise InputError(message)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write results to a .npz or .safetensors file. Raises InputError for another suffix or an unwritable path."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file({name: tensor.clone() for name, tensor in plain.items()}, path)
            return
        if path.suffix == ".npz":
            import numpy as np

            wide = {torch.bfloat16: torch.float32}  # numpy has no bfloat16; float32 holds every value of it
            arrays: dict[str, Any] = {n: t.to(wide.get(t.dtype, t.dtype)).numpy() for n, t in plain.items()}
            np.savez(path, **arrays)
            return
    except OSError as error:
        message = f"--output: {path.absolute()} cannot be written: {error.strerror or error}"
        raise InputError(message) from None
    message = f"--output: {path} is neither .npz nor .safetensors"
    raise InputError(message)


def _load(path: Path) -> object:
    match path.suffix:
        case ".npy":
            import numpy as np

            return torch.from_numpy(np.load(path, allow_pickle=False))
        case ".pt" | ".pth":
            return torch.load(path, map_location="cpu", weights_only=True)
        case ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        case other:
            message = f"the suffix '{other}' is not one of .npy, .pt, .safetensors"
            raise ValueError(message)
