"""Whether everything is still what and where it was, asked quickly in Python; tree.py asks quicker.

What is expected is collected place by place, as it is now; then `build` gives the check. A check may only err towards
"touched": what it rejects is examined by the expectations, which decide.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import eq, getitem, is_
from typing import Any

import torch

from graphspec.runtime.holdings.objects import same
from graphspec.runtime.holdings.places import Place, attributes_of, overrides_reading
from graphspec.runtime.holdings.readers import reader_of

_pointer = torch._C.TensorBase.data_ptr  # unbound: no look-up for each tensor
_DICTS = {"parameter": "_parameters", "buffer": "_buffers"}


class Columns:
    """Expectations in parallel lists, each compared in one pass of C code."""

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._columns: dict[str, tuple[list[Any], ...]] = {}
        self._others: list[Callable[[], bool]] = []

    def held(self, place: Place, expected: Any) -> None:
        """Expect ``expected`` in a place, and whatever dict holds it still to be its owner's."""
        owner, key, holder = place.owner, place.key, place.holder()
        if isinstance(owner, tuple | frozenset):
            return  # cannot change
        if place.kind == "content":
            self._content(place, expected)
        elif isinstance(owner, type):
            self.member(owner, key, expected)
        elif holder is None:
            self.attribute(owner, key, expected)
        elif isinstance(holder, set):
            self.otherwise(lambda: place.get() is expected)
        elif not isinstance(holder, dict):
            self.item(holder, key, expected)
        elif holder is owner:
            self.entry(holder, key, expected)
        elif holder is attributes_of(owner) and _is_plain_attribute(type(owner), key):
            self.attribute(owner, key, expected)  # one generic look-up proves both
        else:  # and the dict, which `owner.__dict__ = ...` would leave as it was
            self.entry(holder, key, expected)
            own = holder is attributes_of(owner)
            self.attribute(owner, "__dict__" if own else _DICTS.get(place.kind, "_modules"), holder)

    def attribute(self, owner: Any, key: str, expected: Any) -> None:
        """Expect ``expected`` as an attribute."""
        self._add("attribute", owner, key, expected)

    def member(self, kind: type, key: str, expected: Any) -> None:
        """Expect ``expected``, as it is, in the dict of a class."""
        self._add("member", kind, key, expected)

    def entry(self, mapping: dict[Any, Any], key: Any, expected: Any) -> None:
        """Expect ``expected`` in a dict."""
        self._add("entry", mapping, key, expected)

    def item(self, sequence: Any, index: int, expected: Any) -> None:
        """Expect ``expected`` in a list or a deque."""
        self._add("item", sequence, index, expected)

    def attributes(self, owner: Any) -> None:
        """Expect an object or a class to have the attributes that it has now, and no others."""
        self._add("attributes", owner, set(vars(owner)))

    def keys(self, mapping: dict[Any, Any]) -> None:
        """Expect a dict to have the keys that it has now, and no others."""
        self._add("keys", mapping, set(mapping))

    def kind(self, owner: Any) -> None:
        """Expect an object to keep its type."""
        self._add("kind", owner, type(owner))

    def length(self, container: Any) -> None:
        """Expect a container to keep its length."""
        self._add("length", container, len(container))

    def tensor(self, tensor: torch.Tensor) -> None:
        """Expect a plain tensor to keep address, shape, strides and dtype."""
        self._add("tensor", tensor, _fact(tensor))

    def unwritten(self, mapping: dict[Any, Any], holds: Callable[[], bool]) -> None:
        """Expect nothing to be written to a dict, or at least ``holds()``."""
        del mapping
        self.otherwise(holds)

    def otherwise(self, holds: Callable[[], bool]) -> None:
        """Expect what only Python can compare."""
        self._others.append(holds)

    def build(self) -> Callable[[], bool]:
        """The check of everything that is expected. It may raise what a vanished place raises."""
        checks = [_COMPARED[what](*columns) for what, columns in self._columns.items()]
        checks += self._others
        return checks[0] if len(checks) == 1 else lambda: all(holds() for holds in checks)

    def _content(self, place: Place, expected: Any) -> None:
        """Expect what only a reader sees (readers.py): that of a context variable, of a weak reference."""
        owner, reader = place.owner, reader_of(place.owner)
        if reader is None:
            self.otherwise(lambda: same(place.get(), expected))
            return
        read = reader.read

        def holds() -> bool:
            now = read(owner)
            return now is expected or same(now, expected)

        self.otherwise(holds)

    def _add(self, what: str, owner: Any, *values: Any) -> None:
        if self._is_new(what, id(owner), *values[:-1]):
            columns = self._columns.setdefault(what, tuple([] for _ in range(len(values) + 1)))
            for column, value in zip(columns, (owner, *values), strict=True):
                column.append(value)

    def _is_new(self, *what: Any) -> bool:
        new = what not in self._seen
        self._seen.add(what)
        return new


def _fact(tensor: torch.Tensor) -> tuple[Any, ...]:
    return _pointer(tensor), tensor.shape, tensor.stride(), tensor.dtype


def _is_plain_attribute(kind: type, key: str) -> bool:
    """Whether ``getattr`` reads this key of the instance's dict, and runs no code of the class."""
    return not overrides_reading(kind) and not any(key in vars(base) for base in kind.__mro__)


#: From the columns of each kind of expectation to its check.
_COMPARED: dict[str, Callable[..., Callable[[], bool]]] = {
    "attribute": lambda owners, keys, values: lambda: all(map(is_, map(getattr, owners, keys), values)),
    "member": lambda kinds, keys, values: lambda: all(map(is_, map(getitem, map(vars, kinds), keys), values)),
    "entry": lambda dicts, keys, values: lambda: all(map(is_, map(dict.get, dicts, keys), values)),
    "item": lambda lists, places, values: lambda: all(map(is_, map(getitem, lists, places), values)),
    "attributes": lambda owners, keys: lambda: all(map(eq, map(set, map(vars, owners)), keys)),
    "keys": lambda mappings, keys: lambda: all(map(eq, map(dict.keys, mappings), keys)),
    "kind": lambda owners, kinds: lambda: all(map(is_, map(type, owners), kinds)),
    "length": lambda containers, counts: lambda: all(map(eq, map(len, containers), counts)),
    "tensor": lambda tensors, facts: lambda: list(map(_fact, tensors)) == facts,
}
