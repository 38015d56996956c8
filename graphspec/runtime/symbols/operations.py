"""Arithmetic on nodes: the number, the expression as Python writes it, and the interval it lies in.

Importing this gives `Node` its operations, under every name that torch has for them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from graphspec.runtime.symbols.interval import EVERYTHING, INTERVALS, Interval, decided
from graphspec.runtime.symbols.node import ATOM, Node


@dataclass(frozen=True)
class _Form:
    """How an operation is computed and written. A higher ``binding`` holds its operands closer."""

    compute: Callable[..., Any]
    sign: str
    binding: int


_INFIX: Mapping[str, _Form] = {
    "or": _Form(lambda a, b: a or b, " or ", 0), "and": _Form(lambda a, b: a and b, " and ", 1),
    "eq": _Form(operator.eq, " == ", 2), "ne": _Form(operator.ne, " != ", 2), "lt": _Form(operator.lt, " < ", 2),
    "le": _Form(operator.le, " <= ", 2), "gt": _Form(operator.gt, " > ", 2), "ge": _Form(operator.ge, " >= ", 2),
    "bitwise_or": _Form(operator.or_, " | ", 3), "bitwise_xor": _Form(operator.xor, " ^ ", 3),
    "bitwise_and": _Form(operator.and_, " & ", 4),
    "lshift": _Form(operator.lshift, " << ", 5), "rshift": _Form(operator.rshift, " >> ", 5),
    "add": _Form(operator.add, " + ", 6), "sub": _Form(operator.sub, " - ", 6),
    "mul": _Form(operator.mul, "*", 7), "truediv": _Form(operator.truediv, "/", 7),
    "floordiv": _Form(operator.floordiv, "//", 7), "mod": _Form(operator.mod, "%", 7),
    "pow": _Form(operator.pow, "**", 8),
}  # fmt: skip
#: What torch calls them, where it has further names.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "or": ("or_", "sym_or"), "and": ("and_", "sym_and"), "truediv": ("truediv", "float_truediv", "int_truediv"),
    "floordiv": ("floordiv", "int_floordiv"), "pow": ("pow", "float_pow", "pow_by_natural"),
}  # fmt: skip
_FUNCTIONS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "abs": ("abs", abs), "ceil": ("ceil", math.ceil), "floor": ("floor", math.floor), "trunc": ("int", math.trunc),
    "sym_int": ("int", int), "sym_float": ("float", float),
    "is_integer": ("is_integer", lambda value: float(value).is_integer()),
    "sym_min": ("min", min), "sym_max": ("max", max),
    **{f"sym_{name}": (name, getattr(math, name)) for name in
       ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2")},
}  # fmt: skip


def _made(
    nodes: tuple[Node, ...], value: Any, text: str, *, interval: Interval = EVERYTHING, binding: int = ATOM
) -> Node:
    params = frozenset[str]().union(*(node.params for node in nodes))
    return Node(nodes[0].reads, value, text, params=params, interval=interval, binding=binding)


def _infix(name: str, left: Node, right: Node) -> Node:
    form = _INFIX[name]
    value = form.compute(left.value, right.value)
    answer = decided(name, left.interval, right.interval)
    if answer is not None:  # the same for every value of the params
        return Node(left.reads, answer, repr(answer), interval=Interval(answer, answer))
    if name in ("mul", "truediv", "pow") and not right.params and right.value == 1 and type(value) is type(left.value):
        return left
    if name == "add" and not left.params and left.value == 0 and type(value) is int:  # how `sum` begins
        return right
    text = f"{left.inside(form.binding)}{form.sign}{right.inside(form.binding + 1)}"
    interval = INTERVALS[name](left.interval, right.interval) if name in INTERVALS else EVERYTHING
    return _made((left, right), value, text, interval=interval, binding=form.binding)


def _function(name: str, *nodes: Node) -> Node:
    word, compute = _FUNCTIONS[name]
    if name in ("sym_min", "sym_max"):
        smaller = decided("le", nodes[0].interval, nodes[1].interval)
        if smaller is not None:
            return nodes[0] if smaller == (name == "sym_min") else nodes[1]
    interval = INTERVALS[name](*(node.interval for node in nodes)) if name in INTERVALS else EVERYTHING
    text = f"{word}({', '.join(node.text for node in nodes)})"
    return _made(nodes, compute(*(node.value for node in nodes)), text, interval=interval)


def _neg(self: Node) -> Node:
    return _made((self,), -self.value, f"-{self.inside(7)}", interval=INTERVALS["neg"](self.interval), binding=7)


def _not(self: Node) -> Node:
    return _made((self,), not self.value, f"not {self.inside(2)}", binding=1)


def _choice(self: Node, then: Node, other: Node) -> Node:
    if not self.params:
        return then if self.value else other
    text = f"({then.text} if {self.text} else {other.text})"
    return _made((self, then, other), then.value if self.value else other.value, text)


def _sum(_: Node, nodes: list[Node]) -> Node:
    return reduce(lambda one, other: _infix("add", one, other), nodes)


def _round(self: Node, digits: int | None = None) -> Node:
    shown = self.text if digits is None else f"{self.text}, {digits}"
    return _made((self,), round(self.value, digits), f"round({shown})")


def _install() -> None:
    """Gives `Node` a method for each operation, under every name that torch has for it."""

    def infix(name: str) -> Callable[[Node, Node], Node]:
        return lambda self, other: _infix(name, self, other)

    def function(name: str) -> Callable[..., Node]:
        return lambda self, *others: _function(name, self, *others)

    for name in _INFIX:
        for known in _ALIASES.get(name, (name,)):
            setattr(Node, known, infix(name))
    for name in _FUNCTIONS:
        setattr(Node, name, function(name))
    arithmetic = {"neg": _neg, "pos": Node.clone, "sym_not": _not, "sym_ite": _choice, "sym_sum": _sum, "round": _round}
    for name, method in {**arithmetic, "str": Node.as_text, "_graph_repr": Node.as_text}.items():
        setattr(Node, name, method)


_install()


class _Int(torch.SymInt):
    """A param itself, which may also be a key of a dict and be formatted, as an int may."""

    def __hash__(self) -> int:
        return hash(int(self))

    def __format__(self, spec: str) -> str:
        return format(self.node.guard_int("", 0), spec)


class _Float(torch.SymFloat):
    """A param itself, which may also be formatted, as a float may."""

    __hash__ = torch.SymFloat.__hash__

    def __format__(self, spec: str) -> str:
        return format(self.node.guard_float("", 0), spec)


def symbol(node: Node) -> Any:
    """The number that torch and the model see."""
    if type(node.value) is bool:
        return torch.SymBool(node)
    return _Int(node) if type(node.value) is int else _Float(node)  # type: ignore[no-untyped-call]


def node_of(value: Any) -> Node | None:
    """The node behind a number; None for everything else."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and isinstance(value.node, Node):
        return value.node
    return None
