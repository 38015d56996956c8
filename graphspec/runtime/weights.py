"""Weights files: reading them safely, and loading them all or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from graphspec.errors import WeightsError
from graphspec.runtime.values.files import UnreadableError, read_file
from graphspec.runtime.values.inputs import exact_cast


def read_weights(path: Path) -> dict[Any, Any]:
    """The tensors by name of a ``.safetensors`` file, or of a ``.pt`` one read with ``weights_only=True``.

    Raises WeightsError saying what is wrong with the file.
    """
    path = path.absolute()
    if not path.exists():
        message = f"the weights file {path} does not exist"
        raise WeightsError(message, hint="paths in a spec are relative to the spec file")
    try:
        loaded = read_file(path)
    except UnreadableError as error:
        raise WeightsError(f"the weights file {path} cannot be read: {error}") from None
    if isinstance(loaded, torch.Tensor):
        message = f"the weights file {path} cannot be read: it holds one tensor, not a mapping of names to tensors"
        raise WeightsError(message)
    return loaded


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
    own = {tensor.untyped_storage()._cdata for tensor in have.values() if isinstance(tensor, torch.Tensor)}
    with torch.no_grad():
        # What lies in the model itself is copied out first: loading one tensor must not change the next.
        new = {key: v.clone() if v.untyped_storage()._cdata in own else v for key, v in weights.items()}
        for key, value in new.items():
            have[key].copy_(value)


def _problems(have: Mapping[str, Any], weights: Mapping[str, Any]) -> list[str]:
    given = {id(have[key]) for key in weights if key in have}  # a tied tensor is often saved under one of its names
    problems = [f"{key}: missing from the weights" for key, tensor in have.items() if id(tensor) not in given]
    for key, value in weights.items():
        if key not in have:
            problems.append(f"{key}: the model has no such tensor")
        elif not isinstance(value, torch.Tensor):
            problems.append(f"{key}: not a tensor but a {type(value).__name__}")
        elif value.shape != have[key].shape:
            problems.append(f"{key}: the model wants {list(have[key].shape)}, the weights have {list(value.shape)}")
        elif value.is_meta or value.layout is not torch.strided:
            problems.append(f"{key}: a {'meta' if value.is_meta else value.layout} tensor, which cannot be copied")
        elif not _fits(value, have[key].dtype):
            wanted = have[key].dtype
            problems.append(f"{key}: the model wants {wanted}, and values of the weights ({value.dtype}) do not fit")
    return problems or list(_contradictions(have, weights))


def _contradictions(have: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Two names of one tied tensor with different values: the later would win."""
    first: dict[int, str] = {}
    for key in weights:
        other = first.setdefault(id(have[key]), key)
        if not torch.equal(weights[other], weights[key]):
            yield f"{key}: is tied to {other}, and the weights have different values for the two"


def _fits(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether ``value`` may be loaded as ``dtype``: rounding is what a smaller float means, anything else is not."""
    if value.dtype == dtype:
        return True
    if value.is_floating_point() and dtype.is_floating_point:
        return bool((value.isfinite() == value.to(dtype).isfinite()).all())
    return exact_cast(value, dtype) is not None
