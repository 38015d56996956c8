"""Weights files: reading them safely, and loading them all or not at all."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphspec.errors import WeightsError


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a ``.safetensors`` file, or of a ``.pt`` one read with ``weights_only=True``."""
    path = path.absolute()
    if not path.is_file():
        message = f"the weights file {path} does not exist"
        raise WeightsError(message, hint="paths in a spec are relative to the spec file")
    try:
        return _read(path)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        message = f"the weights file {path} cannot be read: {reason}"
        raise WeightsError(message) from None
    except Exception as error:  # safetensors raises a class of its own, which derives straight from Exception
        if type(error).__module__.partition(".")[0] not in {"safetensors", "safetensors_rust"}:
            raise
        message = f"the weights file {path} cannot be read: {error}"
        raise WeightsError(message) from None


def load_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy ``weights`` into the model in place: addresses stay, so captured graphs use the new values.

    All or nothing. Raises WeightsError naming every key that is missing, unknown, or of another shape.
    """
    if not isinstance(model, torch.nn.Module):
        message = f"weights need a torch.nn.Module, and the factory returned a {type(model).__name__}"
        raise WeightsError(message)
    have = model.state_dict(keep_vars=True)
    problems = list(_problems(have, weights))
    if problems:
        message = "the weights do not fit the model, and nothing was loaded:\n  " + "\n  ".join(problems)
        raise WeightsError(message)
    with torch.no_grad():
        for key, value in weights.items():
            have[key].copy_(value)


def _problems(have: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> list[str]:
    given = {id(have[key]) for key in weights if key in have}  # a tied tensor is often saved under one of its names
    problems = [f"{key}: missing from the weights" for key, tensor in have.items() if id(tensor) not in given]
    for key, value in weights.items():
        if key not in have:
            problems.append(f"{key}: the model has no such tensor")
        elif not isinstance(value, torch.Tensor):
            problems.append(f"{key}: not a tensor but a {type(value).__name__}")
        elif value.shape != have[key].shape:
            problems.append(f"{key}: the model wants {list(have[key].shape)}, the weights have {list(value.shape)}")
        elif value.is_complex() and not have[key].is_complex():
            problems.append(f"{key}: the model wants {have[key].dtype}, the weights have {value.dtype}")
    return problems


def _read(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(loaded, Mapping):
        message = f"it holds a {type(loaded).__name__}, not a mapping of names to tensors"
        raise ValueError(message)
    return dict(loaded)
