"""What an eager part writes of what was there before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphspec.recording.writes import effect_of


class Writes(TorchDispatchMode):
    """Notes the tensors that operators write, one for each storage that none of them made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: set[int] = set()
        self._found: dict[int, torch.Tensor] = {}

    @property
    def found(self) -> dict[int, torch.Tensor]:
        """Those that were there before, by the identity of their storage."""
        return {key: tensor for key, tensor in self._found.items() if key not in self._made}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        given = {_key(tensor) for tensor in _tensors((*args, *kwargs.values()))}
        for tensor in _tensors(effect_of(func).written(args, kwargs)):
            self._found.setdefault(_key(tensor), tensor)
        result = func(*args, **kwargs)
        returned = result if isinstance(result, (list, tuple)) else (result,)
        self._made.update(_key(tensor) for tensor in _tensors(returned) if _key(tensor) not in given)
        return result


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
