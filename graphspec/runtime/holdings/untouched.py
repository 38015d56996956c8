"""A quick answer to "was anything touched since the guards passed?", before every replay, in one call of C++.

The guards compare hundreds of places one by one in Python; right after a replay, with cold caches, that takes 20% of a
replay of llama-decode and more. A Python dict has a version that every write changes, so one comparison answers for all
that a dict holds, and torch.compile's own guard tree makes these comparisons in C++: 6 to 8% (benchmarks/guards.py).

Invariants:
- `Tree` may only err towards "touched": what it rejects is examined by the guards, which decide.
- The tree is torch's own and private, hence proven on examples before its first use; where it is missing or fails,
  the guards run every time.
- A dict that was written to while the guards still passed (a counter beside the weights) is restless: from then on
  its entries are compared one by one.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from graphspec.runtime.holdings.slots import attributes_of, overrides_reading
from graphspec.runtime.holdings.storages import quiet

__all__ = ["Tree", "available"]

_pointer = torch._C.TensorBase.data_ptr  # unbound: no look-up for each tensor

#: Each new child of a node is compared with all that the node has: few, lest a tree of thousands take seconds.
_GROUP = 64


class _Group(list[Any]):
    """Values whose nodes have a common parent."""

    node: Any = None


class Tree:
    """Expectations, collected one by one; then what `build` makes says whether all of them hold.

    ``restless`` are the ids of dicts whose versions are not to be relied on.
    """

    def __init__(self, restless: Collection[int] = ()) -> None:
        from torch._C._dynamo.guards import RootGuardManager, dict_version
        from torch._dynamo.guards import GuardManagerType

        self._restless = restless
        self._version = dict_version
        self._root: Any = RootGuardManager()
        self._kind = GuardManagerType.GUARD_MANAGER
        self._asked: list[Any] = []  # what the tree is asked about, in groups
        self._dicts, self._objects = _Group(), _Group()
        self._alive: list[Any] = []  # what is expected somewhere
        self._nodes: dict[int, Any] = {}
        self._versions: dict[int, tuple[dict[Any, Any], int]] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._tensors: list[torch.Tensor] = []
        self._pointers: list[int] = []
        self._others: list[Callable[[], bool]] = []

    # -- what to expect

    def attribute(self, owner: Any, key: str, expected: Any) -> None:
        """Expect ``expected`` as an attribute, where looking it up runs no code of the model."""
        own = attributes_of(owner)
        if own is not None and id(own) not in self._restless and not _is_data_descriptor(type(owner), key):
            self._own(owner, own)
            if key == "__dict__" or key in own:
                return
            if not overrides_reading(type(owner)) and self._of_class(type(owner), key):
                return
        if self._is_new("attribute", id(owner), key):
            self._matches(self._node(owner).getattr_manager, key, expected)

    def attributes(self, owner: Any, keys: set[str]) -> None:
        """Expect these attributes in the ``__dict__``, and no others."""
        own: Any = _dict_of_class(owner) if isinstance(owner, type) else vars(owner)
        if own is None or id(own) in self._restless:
            self._others.append(lambda: vars(owner).keys() == keys)
        elif isinstance(owner, type):
            self._untouched(own)
        else:
            self._own(owner, own)

    def member(self, kind: type, name: str, expected: Any) -> None:
        """Expect ``expected``, as it is, in the dict of a class."""
        own = _dict_of_class(kind)
        if own is None:
            self._others.append(lambda: vars(kind)[name] is expected)
        else:
            self.entry(own, name, expected)

    def kind(self, owner: Any, expected: type) -> None:
        """Expect an object to keep its type."""
        if self._is_new("kind", id(owner)):
            _leaf(self._node(owner).add_type_match_guard, id(expected))

    def entry(self, mapping: dict[Any, Any], key: Any, expected: Any) -> None:
        """Expect ``expected`` in a dict."""
        if id(mapping) not in self._restless:
            self._untouched(mapping)
        elif type(key) is not str:  # the tree compares keys by ==, of which tensors make a tensor
            self._others.append(lambda: dict.get(mapping, key) is expected)
        elif self._is_new("entry", id(mapping), key):
            self._matches(self._node(mapping).dict_getitem_manager, key, expected)

    def item(self, sequence: list[Any], index: int, expected: Any) -> None:
        """Expect ``expected`` in a list."""
        if self._is_new("item", id(sequence), index):
            self._matches(self._node(sequence).list_getitem_manager, index, expected)

    def length(self, container: Any, count: int) -> None:
        """Expect a container to keep its length."""
        if isinstance(container, dict):
            self.unwritten(container, lambda: len(container) == count)
        elif type(container) is list:
            if self._is_new("length", id(container)):
                _leaf(self._node(container).add_length_check_guard, count)
        else:
            self._others.append(lambda: len(container) == count)

    def unwritten(self, mapping: dict[Any, Any], holds: Callable[[], bool]) -> None:
        """Expect nothing to be written to a dict; once something was, expect ``holds()``."""
        if id(mapping) in self._restless:
            self._others.append(holds)
        else:
            self._untouched(mapping)

    def tensors(self, tensors: Collection[torch.Tensor]) -> None:
        """Expect plain tensors to keep address, shape, strides and dtype."""
        for tensor in tensors:
            if not self._is_new("tensor", id(tensor)):
                continue
            layout = (list(tensor.shape), list(tensor.stride()))
            keys = (type(tensor), torch._C._dispatch_keys(tensor))
            _leaf(self._node(tensor).add_tensor_match_guard, tensor, *layout, "", then=keys)
            self._tensors.append(tensor)
            self._pointers.append(tensor.data_ptr())

    def otherwise(self, holds: Callable[[], bool]) -> None:
        """Expect what only Python can compare."""
        self._others.append(holds)

    # -- asking

    def build(self) -> Callable[[], bool]:
        """The check of everything that is expected. It may raise what a vanished place raises."""
        check, others = self._root.check, self._others
        tensors, pointers = self._tensors, self._pointers
        asked = [*self._asked, self._alive]  # the last has no node: a check keeps alive what it knows by its id
        check(asked)  # notes the versions

        def in_cpp() -> bool:
            return check(asked) and list(map(_pointer, tensors)) == pointers

        return (lambda: in_cpp() and all(holds() for holds in others)) if others else in_cpp

    def written(self) -> set[int]:
        """The ids of the dicts that were written to since they were expected to keep their versions."""
        return {key for key, (mapping, version) in self._versions.items() if self._version(mapping) != version}

    def _node(self, value: Any) -> Any:
        """The node that is given ``value``."""
        found = self._nodes.get(id(value))
        if found is None:
            self._objects, found = self._child(self._objects, value)
            self._nodes[id(value)] = found
        return found

    def _child(self, group: _Group, value: Any) -> tuple[_Group, Any]:
        """A new node in this group, or in a new one if it is full; and the group."""
        if not group or len(group) == _GROUP:
            group = _Group()
            group.node = self._root.list_getitem_manager(len(self._asked), "", group, self._kind)
            self._asked.append(group)
        group.append(value)
        return group, group.node.list_getitem_manager(len(group) - 1, "", value, self._kind)

    def _own(self, owner: Any, own: dict[str, Any]) -> None:
        """Expect the owner's ``__dict__`` to be this one, untouched."""
        if self._is_new("own", id(owner)):
            node = self._node(owner).get_generic_dict_manager("", own, self._kind)
            _leaf(node.add_id_match_guard, id(own))
            self._untouched(own)

    def _untouched(self, mapping: dict[Any, Any]) -> None:
        """Expect nothing to be written to a dict."""
        if not self._is_new("untouched", id(mapping)):
            return
        self._dicts, node = self._child(self._dicts, mapping)
        _leaf(node.add_dict_version_guard, mapping)
        self._versions[id(mapping)] = (mapping, self._version(mapping))
        if hasattr(node, "mark_tag_safe"):
            # What torch.compile calls tag safe: as long as the versions of all dicts in the group are those of the last
            # check, its nodes are not visited.
            node.mark_tag_safe()
            if len(self._dicts) == 1:
                self._dicts.node.mark_tag_safe()
                self._dicts.node.mark_tag_safe_root()

    def _of_class(self, kind: type, key: str) -> bool:
        """Expect the classes that decide about an attribute to be untouched, if nothing else decides."""
        dicts = _deciding(kind, key)
        if dicts is None or any(id(each) in self._restless for each in dicts):
            return False
        for each in dicts:
            self._untouched(each)
        return True

    def _matches(self, child: Callable[..., Any], key: Any, expected: Any) -> None:
        node = child(key, "", expected, self._kind)
        if type(expected) in (int, str):  # as good in another object
            _leaf(node.add_equals_match_guard, expected)
        else:
            _leaf(node.add_id_match_guard, id(expected))
            self._alive.append(expected)

    def _is_new(self, *what: Any) -> bool:
        new = what not in self._seen
        self._seen.add(what)
        return new


def _deciding(kind: type, key: str) -> list[dict[str, Any]] | None:
    """The dicts of the classes that are asked for a plain attribute, up to the one that has it; None if code is run."""
    dicts: list[dict[str, Any]] = []
    for base in kind.__mro__:
        own = _dict_of_class(base)
        if own is None:
            return None
        dicts.append(own)
        if key in own:
            return None if hasattr(type(own[key]), "__get__") else dicts
    return None


def _dict_of_class(kind: type) -> dict[str, Any] | None:
    """The dict that a class shows a read-only view of. It is one and the same for the life of the class."""
    behind = [each for each in gc.get_referents(vars(kind)) if isinstance(each, dict)]
    return behind[0] if len(behind) == 1 and behind[0].keys() == vars(kind).keys() else None


def _is_data_descriptor(kind: type, key: str) -> bool:
    """Whether the class answers for an attribute before the instance is asked."""
    found = next((vars(base)[key] for base in kind.__mro__ if key in vars(base)), None)
    return hasattr(type(found), "__set__") and key != "__dict__"


def _leaf(add: Callable[..., None], *what: Any, then: tuple[Any, ...] = ()) -> None:
    """Add one comparison. Newer versions of torch ask for the stack of the user's code after the words for a log."""
    try:
        add(*what, [""], None, *then)
    except TypeError:
        add(*what, [""], *then)


@functools.cache
def available() -> bool:
    """Whether the tree of this torch tells apart everything that it must, on this Python."""
    try:
        return all(_tells(attack) for attack in _ATTACKS)
    except Exception:  # noqa: BLE001 # private: whatever it raises, the guards are there
        return False


class _Example:
    """One of everything that a tree compares."""

    def __init__(self) -> None:
        self.base = type("Base", (), {"shared": 1, "hidden": 1})
        self.kind = type("Kind", (self.base,), {"own": 1})
        self.plain = self.kind()
        self.plain.number = 1
        self.module = nn.BatchNorm1d(2)
        self.items = [object(), object()]
        self.tricky = type("Tricky", (), {})()
        vars(self.tricky).update(kind=1, own=1, untouched=1)
        self.weight = torch.zeros(2, 2)
        self.restless = {"here": 1}
        self.cell = types.CellType(1)

    def expected(self) -> Tree:
        """All of it."""
        tree = Tree(restless={id(self.restless), id(vars(self.tricky))})
        for name in vars(self.tricky):
            tree.attribute(self.tricky, name, 1)
        tree.kind(self.tricky, type(self.tricky))
        for name, value in vars(self.module).items():
            tree.attribute(self.module, name, value)
        tree.attributes(self.plain, set(vars(self.plain)))
        tree.attribute(self.plain, "hidden", 1)
        tree.attribute(self.plain, "shared", 1)
        tree.member(self.kind, "own", 1)
        tree.attributes(self.kind, set(vars(self.kind)))
        tree.kind(self.plain, self.kind)
        tree.attribute(self.cell, "cell_contents", 1)
        tree.entry(self.module._parameters, "weight", self.module.weight)
        tree.length(self.module._forward_hooks, 0)
        tree.item(self.items, 0, self.items[0])
        tree.length(self.items, 2)
        tree.entry(self.restless, "here", 1)
        tree.tensors([self.weight])
        return tree


def _copy_attributes(owner: Any) -> None:
    owner.__dict__ = dict(vars(owner))


def _nothing_expected(example: _Example) -> None:
    example.restless["more"] = 1


#: What is done to an example, and must be told; but for `_nothing_expected`.
_ATTACKS: tuple[Callable[[_Example], Any], ...] = (
    lambda example: example.module.train(mode=False),
    lambda example: setattr(example.module, "extra", 1),
    lambda example: delattr(example.module, "eps"),
    lambda example: setattr(example.module, "weight", nn.Parameter(torch.ones(2))),
    lambda example: example.module.register_parameter("other", None),
    lambda example: example.module.register_forward_hook(lambda *_: None),
    lambda example: _copy_attributes(example.module),
    lambda example: setattr(example.plain, "number", 2),
    lambda example: vars(example.plain).update(number=3),
    lambda example: _copy_attributes(example.plain),
    lambda example: setattr(example.plain, "hidden", 2),
    lambda example: setattr(example.kind, "hidden", 2),
    lambda example: setattr(example.kind, "shared", 2),
    lambda example: setattr(example.base, "shared", 2),
    lambda example: delattr(example.base, "shared"),
    lambda example: setattr(example.kind, "own", 2),
    lambda example: setattr(example.kind, "more", 2),
    lambda example: setattr(example.plain, "__class__", type("Kind", (example.kind,), {})),
    lambda example: setattr(example.tricky, "kind", 2),
    lambda example: setattr(example.tricky, "own", 2),
    lambda example: setattr(example.tricky, "__class__", type("Tricky", (), {})),
    lambda example: setattr(example.cell, "cell_contents", None),
    lambda example: example.items.reverse(),
    lambda example: example.items.append(1),
    lambda example: example.restless.update(here=2),
    lambda example: example.restless.clear(),
    lambda example: setattr(example.weight, "data", torch.zeros(2, 2)),
    lambda example: setattr(example.weight, "data", example.weight.data.t()),
    lambda example: setattr(example.weight, "data", example.weight.data.view(torch.int32)),
    lambda example: example.weight.unsqueeze_(0),
    _nothing_expected,
)


def _tells(attack: Callable[[_Example], Any]) -> bool:
    with quiet():
        example = _Example()
        tree = example.expected()
        untouched = tree.build()
        if not untouched() or tree.written():
            return False
        attack(example)
        return untouched() == (attack is _nothing_expected)
