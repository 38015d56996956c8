"""Weights files: reading them safely, and loading them all or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import _TYPES as SAFETENSORS_DTYPES

from graphspec.errors import WeightsError
from graphspec.files import INDEX, absolute, problem, read_index
from graphspec.runtime.values.files import UnreadableError, read_file, reason_of
from graphspec.runtime.values.inputs import exact_cast


@dataclass(frozen=True)
class _WeightForm:
    """What a tensor is, without its values."""

    shape: torch.Size
    dtype: torch.dtype


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of one or more .safetensors files by name; each is read when it is asked for, none is kept."""

    def __init__(self, opened: Mapping[str, Any]) -> None:
        self._opened = opened

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._opened[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)

    def form(self, name: str) -> _WeightForm:
        """Shape and dtype of a tensor, from the header of its file."""
        entry = self._opened[name].get_slice(name)
        dtype = SAFETENSORS_DTYPES.get(entry.get_dtype())
        return _WeightForm(torch.Size(entry.get_shape()), self[name].dtype if dtype is None else dtype)


def read_weights(path: Path) -> Mapping[Any, Any]:
    """The tensors by name of a ``.safetensors`` file, of all files of a ``.safetensors.index.json``, or of a ``.pt``.

    The latter is read with ``weights_only=True``; of the others only the headers are read at first. Raises
    WeightsError saying what is wrong with which file.
    """
    path = Path(absolute(path))
    if (wrong := problem(path)) is not None:
        raise WeightsError(_unreadable(path, wrong.reason), hint=wrong.fix)
    if path.name.endswith(INDEX):
        return _sharded(path)
    if path.suffix == ".safetensors":
        opened = _open(path)
        return StoredTensors(dict.fromkeys(opened.keys(), opened))
    try:
        loaded = read_file(path)
    except UnreadableError as error:
        raise WeightsError(_unreadable(path, str(error))) from None
    if isinstance(loaded, torch.Tensor):
        raise WeightsError(_unreadable(path, "it holds one tensor, not a mapping of names to tensors"))
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
    in_memory = {} if isinstance(weights, StoredTensors) else weights
    with torch.no_grad():
        # What lies in the model itself is copied out first: loading one tensor must not change the next.
        apart = {key: v.clone() for key, v in in_memory.items() if v.untyped_storage()._cdata in own}
        for key in weights:
            have[key].copy_(apart[key] if key in apart else weights[key])


def _sharded(index: Path) -> StoredTensors:
    try:
        shards = read_index(index)
    except (OSError, ValueError) as error:
        raise WeightsError(_unreadable(index, str(error))) from None
    files = {shard: index.parent / shard for shard in dict.fromkeys(shards.values())}
    gone = [f"{shard}: {wrong.reason}" for shard, file in files.items() if (wrong := problem(file)) is not None]
    if gone:
        message = f"files that the weights index {index} names cannot be read:\n  " + "\n  ".join(gone)
        raise WeightsError(message, hint="they lie beside the index")
    opened = {shard: _open(file) for shard, file in files.items()}
    held = {shard: frozenset(file.keys()) for shard, file in opened.items()}
    lacking = [f"{name}: not in {shard}" for name, shard in shards.items() if name not in held[shard]]
    if lacking:
        message = f"the weights index {index} does not fit the files beside it:\n  " + "\n  ".join(lacking)
        raise WeightsError(message, hint="fetch index and files of one and the same revision")
    return StoredTensors({name: opened[shard] for name, shard in shards.items()})


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except Exception as error:  # noqa: BLE001 - safetensors has a class of its own, and raises others too
        raise WeightsError(_unreadable(path, reason_of(error))) from None


def _unreadable(path: Path, reason: str) -> str:
    return f"the weights file {path} cannot be read: {reason}"


def _problems(have: Mapping[str, Any], weights: Mapping[str, Any]) -> list[str]:
    given = {id(have[key]) for key in weights if key in have}  # a tied tensor is often saved under one of its names
    problems = [f"{key}: missing from the weights" for key, tensor in have.items() if id(tensor) not in given]
    for key in weights:
        problem = _key_problem(have, weights, key)
        if problem is not None:
            problems.append(f"{key}: {problem}")
    return problems or [*_unfit(have, weights), *_contradictions(have, weights)]


def _key_problem(have: Mapping[str, Any], weights: Mapping[str, Any], key: str) -> str | None:
    """What is wrong with a tensor before its values are looked at."""
    if key not in have:
        return "the model has no such tensor"
    value = weights.form(key) if isinstance(weights, StoredTensors) else weights[key]
    if not isinstance(value, _WeightForm):
        if not isinstance(value, torch.Tensor):
            return f"not a tensor but a {type(value).__name__}"
        if value.is_meta or value.layout is not torch.strided:
            return f"a {'meta' if value.is_meta else value.layout} tensor, which cannot be copied"
    if value.shape != have[key].shape:
        return f"the model wants {list(have[key].shape)}, the weights have {list(value.shape)}"
    return None


def _unfit(have: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Tensors of another dtype whose values the model's cannot hold."""
    for key in weights:
        wanted = have[key].dtype
        given = weights.form(key).dtype if isinstance(weights, StoredTensors) else weights[key].dtype
        if not _holds_all(wanted, given) and not _fits(weights[key], wanted):
            yield f"{key}: the model wants {wanted}, and values of the weights ({given}) do not fit"


def _holds_all(dtype: torch.dtype, given: torch.dtype) -> bool:
    """Whether every value of ``given`` is one of ``dtype``, so that nothing needs to be read to know it."""
    wider = dtype.is_floating_point and given.is_floating_point and min(dtype.itemsize, given.itemsize) > 1
    return given == dtype or (wider and torch.promote_types(given, dtype) == dtype)


def _contradictions(have: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Two names of one tied tensor with different values: the later would win."""
    first: dict[int, str] = {}
    for key in weights:
        other = first.setdefault(id(have[key]), key)
        if other != key and not _same(weights[other], weights[key], have[key].dtype):
            yield f"{key}: is tied to {other}, and the weights have different values for the two"


def _same(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether two tensors are the same once they are loaded: by their bytes, so that NaN is as good as a number."""
    first, second = (each.to(dtype).contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(first, second)


def _fits(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether ``value`` may be loaded as ``dtype``: rounding is what a smaller float means, anything else is not."""
    try:
        if value.is_floating_point() and value.dtype.itemsize == 1:
            value = value.float()  # exact, and few operators take floats of 8 bits
        if value.is_floating_point() and dtype.is_floating_point:
            return _rounds(value, dtype)
        return exact_cast(value, dtype) is not None
    except NotImplementedError:  # packed numbers, which torch converts to nothing
        return False


def _rounds(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether floats become floats of ``dtype`` by rounding alone: none overflows, or is cut at the largest number."""
    wide = value.dtype if dtype.itemsize == 1 else torch.promote_types(value.dtype, dtype)
    back = value.to(dtype).to(wide)
    finite = value.isfinite()
    kept = (value.abs() <= torch.finfo(dtype).max) | (dtype.itemsize > 1)
    same_sign = (back == 0) | (back.sign() == value.sign())  # a dtype for scales has no sign, and no zero
    return bool(((finite == back.isfinite()) & (~finite | (kept & same_sign))).all())
