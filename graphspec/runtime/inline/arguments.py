"""What a module is called with, taken apart: the tensors, and everything else as one key that tells two calls apart.

Tensors are copied into static memory before a replay. Numbers and text are part of the key, since a graph freezes them.
An object that is no structure of tensors (a cache) is itself: a graph reads the very memory it holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from graphspec.runtime.values.trees import PLAIN

Key = Hashable


class Arguments:
    """The arguments of one call. ``leaves`` are its distinct tensors, ``objects`` what a graph can only read as it is.

    ``key`` is equal for two calls only where they differ in nothing but the content of tensors; it holds the identity
    of ``objects``, which is unique as long as they are kept.
    """

    __slots__ = ("_numbers", "args", "key", "kwargs", "leaves", "objects")

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.leaves: list[torch.Tensor] = []
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self.key: Key = (
            tuple([self._visit(value) for value in args]),
            tuple([(name, self._visit(value)) for name, value in kwargs.items()]),
        )

    def _visit(self, value: Any) -> Key:
        if isinstance(value, torch.Tensor):
            number = self._numbers.setdefault(id(value), len(self.leaves))
            if number == len(self.leaves):
                self.leaves.append(value)
            return number
        kind = type(value)
        if isinstance(value, PLAIN):
            return kind, repr(value)  # 0.0 is another number than -0.0, and 1 another than true
        if isinstance(value, Mapping):
            return kind, tuple([(key, self._visit(item)) for key, item in value.items()])
        if isinstance(value, (list, tuple)):
            return kind, tuple([self._visit(item) for item in value])
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return kind, tuple([self._visit(getattr(value, entry.name)) for entry in dataclasses.fields(value)])
        self.objects.append(value)
        return kind, id(value)
