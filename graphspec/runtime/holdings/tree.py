"""A quick answer to "was anything touched since the last examination?", before every replay, in one call of C++.

Comparing hundreds of places one by one in Python, right after a replay with cold caches, takes 20% of a replay of
llama-decode and more. A Python dict has a version that every write changes, so one comparison answers for all that a
dict holds, and torch.compile's own guard tree makes these comparisons in C++: 6 to 8% (benchmarks/guards.py).

Invariants:
- The tree is torch's own and private, hence proven on examples before its first use (tree_proof.py); where it is
  missing or fails, `Columns` are compared every time.
- A dict that was written to while everything still held (a counter beside the weights) is restless: from then on
  its entries are compared one by one.
"""

# ruff: noqa: D102 - the base says what each method expects

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from typing import Any

import torch

from graphspec.runtime.holdings.columns import Columns
from graphspec.runtime.holdings.places import attributes_of, overrides_reading

_pointer = torch._C.TensorBase.data_ptr  # unbound: no look-up for each tensor

#: Each new child of a node is compared with all that the node has: few, lest a tree of thousands take seconds.
_GROUP = 64


class _Group(list[Any]):
    """Values whose nodes have a common parent."""

    node: Any = None


class GuardTree(Columns):
    """Expectations in torch's guard tree, and in columns what it cannot compare.

    ``restless`` are the ids of dicts whose versions are not to be relied on.
    """

    def __init__(self, restless: Collection[int] = ()) -> None:
        from torch._C._dynamo.guards import RootGuardManager, dict_version
        from torch._dynamo.guards import GuardManagerType

        super().__init__()
        self._restless = restless
        self._version = dict_version
        self._root: Any = RootGuardManager()
        self._kind = GuardManagerType.GUARD_MANAGER
        self._asked: list[Any] = []  # what the tree is asked about, in groups
        self._dicts, self._objects = _Group(), _Group()
        self._alive: list[Any] = []  # what is expected somewhere
        self._nodes: dict[int, Any] = {}
        self._versions: dict[int, tuple[dict[Any, Any], int]] = {}
        self._tensors: list[torch.Tensor] = []

    def attribute(self, owner: Any, key: str, expected: Any) -> None:
        own = attributes_of(owner)
        if own is not None and id(own) not in self._restless and not _is_data_descriptor(type(owner), key):
            self._own(owner, own)
            if key == "__dict__" or key in own:
                return
            if not overrides_reading(type(owner)) and self._of_class(type(owner), key):
                return
        if self._is_new("attribute", id(owner), key) and not self._in_place(owner, key, expected):
            self._matches(self._node(owner).getattr_manager, key, expected)

    def attributes(self, owner: Any) -> None:
        own: Any = _dict_of_class(owner) if isinstance(owner, type) else vars(owner)
        if own is None or id(own) in self._restless:
            super().attributes(owner)
        elif isinstance(owner, type):
            self._untouched(own)
        else:
            self._own(owner, own)

    def keys(self, mapping: dict[Any, Any]) -> None:
        if id(mapping) in self._restless:
            super().keys(mapping)
        else:
            self._untouched(mapping)

    def member(self, kind: type, key: str, expected: Any) -> None:
        own = _dict_of_class(kind)
        if own is None:
            super().member(kind, key, expected)
        else:
            self.entry(own, key, expected)

    def kind(self, owner: Any) -> None:
        if self._is_new("kind", id(owner)):
            _leaf(self._node(owner).add_type_match_guard, id(type(owner)))

    def entry(self, mapping: dict[Any, Any], key: Any, expected: Any) -> None:
        if id(mapping) not in self._restless:
            self._untouched(mapping)
        elif type(key) is not str:  # the tree compares keys by ==, of which tensors make a tensor
            super().entry(mapping, key, expected)
        elif self._is_new("entry", id(mapping), key):
            self._matches(self._node(mapping).dict_getitem_manager, key, expected)

    def item(self, sequence: Any, index: int, expected: Any) -> None:
        if type(sequence) is not list:
            super().item(sequence, index, expected)
        elif self._is_new("item", id(sequence), index):
            self._matches(self._node(sequence).list_getitem_manager, index, expected)

    def length(self, container: Any) -> None:
        if isinstance(container, dict) and id(container) not in self._restless:
            self._untouched(container)
        elif type(container) is not list:
            super().length(container)
        elif self._is_new("length", id(container)):
            _leaf(self._node(container).add_length_check_guard, len(container))

    def unwritten(self, mapping: dict[Any, Any], holds: Callable[[], bool]) -> None:
        if id(mapping) in self._restless:
            super().unwritten(mapping, holds)
        else:
            self._untouched(mapping)

    def tensor(self, tensor: torch.Tensor) -> None:
        if self._is_new("tensor", id(tensor)):
            self._tensors.append(tensor)

    def build(self) -> Callable[[], bool]:
        if not self._asked and not self._tensors:
            return super().build()
        check, tensors, pointers = self._root.check, self._tensors, list(map(_pointer, self._tensors))
        for tensor in tensors:  # beside each other: a tree that goes to and fro between kinds is slower
            layout = (list(tensor.shape), list(tensor.stride()))
            keys = (type(tensor), torch._C._dispatch_keys(tensor))
            _leaf(self._node(tensor).add_tensor_match_guard, tensor, *layout, "", then=keys)
        asked = [*self._asked, self._alive]  # the last has no node: a check keeps alive what it knows by its id
        check(asked)  # notes the versions

        def in_cpp() -> bool:
            return check(asked) and list(map(_pointer, tensors)) == pointers

        if not self._columns and not self._others:
            return in_cpp
        rest = super().build()
        return lambda: in_cpp() and rest()

    def written(self) -> set[int]:
        """The ids of the dicts that were written to since they were expected to keep their versions."""
        return {key for key, (mapping, version) in self._versions.items() if self._version(mapping) != version}

    def _in_place(self, owner: Any, key: str, expected: Any) -> bool:
        """Expect an attribute in some quicker way, if there is one."""
        del owner, key, expected
        return False

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
