"""Params as symbols: the same nested lists, and which of them an argument is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphspec import spec as language
from graphspec.runtime.symbols.interval import Interval
from graphspec.runtime.symbols.node import Node, Origin, Reads
from graphspec.runtime.symbols.operations import node_of, symbol


def symbols(param: language.Param, value: Any, largest: Mapping[str, int], reads: Reads) -> Any:
    """``value`` of a param with a symbol for each number; ``largest`` has the sizes its range may name."""
    interval = _interval(param, value, largest)

    def made(part: Any, path: tuple[int, ...]) -> Any:
        if isinstance(part, list):
            return [made(item, (*path, index)) for index, item in enumerate(part)]
        text = param.name + "".join(f"[{index}]" for index in path)
        names = frozenset({param.name})
        return symbol(Node(reads, part, text, params=names, origin=(param.name, path), interval=interval))

    return made(value, ())


def _interval(param: language.Param, value: Any, largest: Mapping[str, int]) -> Interval:
    """Every value an item can have: its range, and what fills the rows that a bucket adds."""
    if param.type == "bool":
        return Interval(0, 1)
    low, high = (largest[end] if isinstance(end, str) else end for end in (param.min, param.max))
    ends = [float("-inf") if low is None else float(low), float("inf") if high is None else float(high)]
    if param.choices:
        ends = [float(choice) for choice in param.choices]
    if param.shape:
        pad = param.pad if param.pad is not None else param.default
        ends.append(float(pad) if isinstance(pad, (int, float)) else 0.0)
    ends += [float(item) for item in _leaves(value)]
    return Interval(min(ends), max(ends))


def _leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


def changed(value: Any, change: Callable[[Node], Any]) -> Any:
    """Nested lists, tuples and dicts with ``change`` of every symbol in them."""
    node = node_of(value)
    if node is not None:
        return change(node)
    if type(value) in (list, tuple):  # not what is derived from them: a size, a named tuple, a model's output
        return type(value)(changed(item, change) for item in value)
    if type(value) is dict:
        return {key: changed(item, change) for key, item in value.items()}
    return value


def plain(value: Any) -> Any:
    """Nested values with every symbol replaced by its number."""
    return changed(value, lambda node: node.value)


def nodes(value: Any) -> list[Node]:
    """Every symbol in nested values that may have another value in another run."""
    found: list[Node] = []
    changed(value, found.append)
    return [node for node in found if node.params]


def nodes_in(argument: Any) -> list[Node]:
    """Every node in an argument of a trace."""
    if isinstance(argument, Node):
        return [argument]
    return [node for item in argument for node in nodes_in(item)] if isinstance(argument, (list, tuple)) else []


def moved(argument: Any, by: int) -> Any:
    """An argument of a trace as it could be in another run: every number in it that can change, moved."""
    if isinstance(argument, Node):
        return argument.value + by
    return [moved(item, by) for item in argument] if isinstance(argument, (list, tuple)) else argument


def exactly(argument: Any, params: Mapping[str, Any]) -> Origin | None:
    """The param, or the part of one, that an argument is; None for everything else. ``params`` are the plain values.

    A whole list is the param itself, one item of several is that item. A list of one item is that item, and one item
    is a list of one: an update converts between the two.
    """
    origin = _origin(argument, params)
    while origin is not None and origin[1] and len(part(params, (origin[0], origin[1][:-1]))) == 1:
        origin = origin[0], origin[1][:-1]
    return origin


def _origin(argument: Any, params: Mapping[str, Any]) -> Origin | None:
    if isinstance(argument, Node):
        return argument.origin
    if not isinstance(argument, (list, tuple)) or not argument:
        return None
    items = [_origin(item, params) for item in argument]
    first = items[0]
    if first is None or (len(items) > 1 and not first[1]):
        return None
    if not first[1]:
        return first  # a list of one item, which is the whole param
    name, path = first[0], first[1][:-1]
    whole = part(params, (name, path))
    return (name, path) if items == [(name, (*path, index)) for index in range(len(whole))] else None


def part(params: Mapping[str, Any], origin: Origin) -> Any:
    """The value of a param, or of one of its items."""
    value = params[origin[0]]
    for index in origin[1]:
        value = value[index]
    return value
