"""Where in the memory of an object lies what a guard expects of it: found by search, on examples with known content."""

from __future__ import annotations

import ctypes
import functools
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

WORD = 8
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT: the instance's dict is known before the object itself
_BEFORE = -3 * WORD
_MOST_DIMS = 5  # of more, sizes and strides lie elsewhere


def word(address: int) -> int:
    """The word at an address of something that is held."""
    return ctypes.c_int64.from_address(address).value


@dataclass(frozen=True)
class WordPlaces:
    """Bytes from the beginning of an object to a word of it.

    ``kind`` is the type of any object, ``version`` that of a dict, ``implementation`` the tensor in C++ of one in
    Python, ``storage``, ``sizes`` (the number of dims, then each), ``strides`` and ``more`` (offset, count, dtype,
    dispatch keys) are its own, ``data`` the address of a storage. ``length`` is that of a list; the address of its
    items follows. ``attributes`` are those of objects without a dict.
    """

    kind: int
    version: int
    implementation: int
    storage: int
    sizes: int
    strides: int
    more: tuple[int, ...]
    data: int
    length: int
    attributes: Mapping[tuple[type, str], int]

    def of_dict(self, owner: Any, own: dict[str, Any]) -> int | None:
        """Of the instance's own dict; None where that is not found."""
        kind: Any = type(owner)
        at = _BEFORE if kind.__flags__ & _MANAGED_DICT else kind.__dictoffset__
        return at if at != 0 and word(id(owner) + at) == id(own) else None

    def of_list(self, value: list[Any]) -> tuple[int, int]:
        """The addresses of a list's length, and of the address of its items."""
        return id(value) + self.length, id(value) + self.length + WORD

    def of_item(self, value: list[Any], index: int) -> int:
        """The address of an item of a list. Raises LookupError if it is not there."""
        _, items = self.of_list(value)
        address = word(items) + WORD * index
        if word(address) != id(value[index]):
            message = f"item {index} of a list lies elsewhere"
            raise LookupError(message)
        return address

    def of_attribute(self, owner: Any, key: str, expected: Any) -> int | None:
        """Of what an object without a dict holds under a name."""
        at = self.attributes.get((type(owner), key))
        held = id(expected) if expected is not None or key == "cell_contents" else 0
        return at if at is not None and word(id(owner) + at) == held else None

    def of_tensor(self, tensor: torch.Tensor) -> list[int] | None:
        """Everything that a view of memory is made of, in the tensor of C++."""
        dims = tensor.dim()
        if dims > _MOST_DIMS or word(id(tensor) + self.implementation) != tensor._cdata:
            return None
        sizes = (self.sizes + WORD * n for n in range(dims + 1))
        strides = (self.strides + WORD * n for n in range(dims))
        return [self.storage, *sizes, *strides, *self.more]


@functools.cache
def word_places() -> WordPlaces:
    """Where this Python and this torch have them. Raises LookupError where one is not found, or in two places."""
    from torch._C._dynamo.guards import dict_version

    class Example:
        pass

    example, mapping = Example(), {"some": 1, "more": 2}
    mapping["last"] = 3
    memory = bytearray(64 * WORD)  # not torch's own, which notes its address twice
    tensor = torch.frombuffer(memory, dtype=torch.float32).as_strided((2, 3), (17, 5), 7)
    storage = tensor.untyped_storage()
    inside = tensor._cdata
    offset = _found(inside, 26, 7, 6)
    last = _found(inside, 26, torch._C._dispatch_keys(tensor).raw_repr())
    return WordPlaces(
        kind=_found(id(example), 2, id(Example)),
        version=_found(id(mapping), 6, dict_version(mapping)),
        implementation=_found(id(tensor), 4, tensor._cdata),
        storage=_found(inside, 26, storage._cdata),
        sizes=_found(inside, 26, 2, 2, 3),
        strides=_found(inside, 26, 17, 5),
        more=tuple(range(offset, last + WORD, WORD)),
        data=_found(storage._cdata, 8, storage.data_ptr()),
        length=_length(),
        attributes=_attributes(),
    )


def _length() -> int:
    """Of the length of a list. In CPython the address of its items comes next."""
    if sys.implementation.name != "cpython":
        raise LookupError(sys.implementation.name)
    items = [None] * 41
    items.extend([None] * 3)  # now there is room for more
    return _found(id(items), 5, len(items))


def _attributes() -> dict[tuple[type, str], int]:
    value = object()
    cell = types.CellType(value)

    def probe(some: Any = value, *, other: Any = value) -> None:
        del some, other

    found: dict[tuple[type, str], int] = {(types.CellType, "cell_contents"): _found(id(cell), 3, id(value))}
    for key in ("__code__", "__defaults__", "__kwdefaults__"):
        found[types.FunctionType, key] = _found(id(probe), 16, id(getattr(probe, key)))
    return found


def _found(start: int, words: int, *values: int) -> int:
    """Bytes from ``start`` to the one place among so many words where these follow each other."""
    have = [word(start + WORD * n) for n in range(words)]
    places = [n for n in range(words - len(values) + 1) if have[n : n + len(values)] == list(values)]
    if len(places) != 1:
        message = f"{values} lie in {len(places)} places"
        raise LookupError(message)
    return WORD * places[0]
