"""A number of the host that remembers how it was made: the node behind a ``torch.SymInt``, ``SymFloat`` or ``SymBool``.

torch asks of a node only that it has the right methods, so this is one of graphspec's own. Against torch's, which needs
a ShapeEnv, it costs no import of sympy (a second), reports every read with its place, and is never simplified away.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import torch

from graphspec.runtime.symbols.interval import EVERYTHING, INTERVALS, Interval, decided

Number = bool | int | float

#: A param and the indices of one of its items; no indices: the whole param.
Origin = tuple[str, tuple[int, ...]]

_LONGEST = 80  # characters of an expression: a sum over a long list is cut


class Reads(Protocol):
    """Who is told when a number is read off its node."""

    def read(self, kind: str, node: Node, file: str) -> None:
        """``kind`` is branch, int, float or text. ``file`` is the C++ source that reads; empty for Python."""


@dataclass(frozen=True)
class _Form:
    """How an operation is computed and written. A higher ``binding`` holds its operands closer."""

    compute: Callable[..., Any]
    sign: str
    binding: int


_ATOM = 9
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


class Node:
    """One value of a trace: the number it has in this run, and the expression of params that made it.

    ``origin`` is set where the expression is exactly a param or one of its items; ``params`` are those it is made
    from, none for a constant; ``interval`` holds every value that the ranges of the params allow.
    """

    __slots__ = ("_binding", "interval", "origin", "params", "reads", "text", "value")
    constant = None  # asked for by torch

    def __init__(  # noqa: PLR0913 - one node is all of these
        self,
        reads: Reads,
        value: Number,
        text: str,
        *,
        params: frozenset[str] = frozenset(),
        origin: Origin | None = None,
        interval: Interval = EVERYTHING,
        binding: int = _ATOM,
    ) -> None:
        if not isinstance(value, (bool, int, float)):
            message = f"no symbol can be a {type(value).__name__}"  # a negative number to a fraction is complex
            raise TypeError(message)
        self.reads = reads
        self.value = value
        self.text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
        self.params = params
        self.origin = origin
        self.interval = interval
        self._binding = binding

    # -- what torch asks a node

    @property
    def hint(self) -> Number:
        """The value in this run."""
        return self.value

    def has_hint(self) -> bool:
        """A value is always known."""
        return True

    def is_int(self) -> bool:
        """Whether it stands for an int."""
        return type(self.value) is int

    def is_float(self) -> bool:
        """Whether it stands for a float."""
        return type(self.value) is float

    def is_bool(self) -> bool:
        """Whether it stands for a bool."""
        return type(self.value) is bool

    def is_symbolic(self) -> bool:
        """Whether it may have another value in another run."""
        return bool(self.params)

    def is_constant(self) -> bool:
        """Whether torch may replace it by its value; torch unpacks no float."""
        return not self.params and type(self.value) is bool

    def is_nested_int(self) -> bool:
        """Nested tensors have nodes of their own."""
        return False

    def nested_int(self) -> None:
        """See `is_nested_int`."""

    def maybe_as_int(self) -> int | None:
        """The value of a constant."""
        return None if self.params else int(self.value)

    def maybe_as_float(self) -> float | None:
        """The value of a constant."""
        return None if self.params else float(self.value)

    def maybe_as_bool(self) -> bool | None:
        """The value of a constant."""
        return None if self.params else bool(self.value)

    def wrap_int(self, value: int) -> Node:
        """A constant beside this node."""
        return self._constant(value)

    def wrap_float(self, value: float) -> Node:
        """A constant beside this node."""
        return self._constant(value)

    def wrap_bool(self, value: bool) -> Node:  # noqa: FBT001 - the signature is torch's
        """A constant beside this node."""
        return self._constant(value)

    def clone(self) -> Node:
        """Nodes do not change."""
        return self

    def guard_int(self, file: str, _line: int) -> int:
        """The value, for code that needs an int."""
        return int(self._read("int", file))

    def guard_float(self, file: str, _line: int) -> float:
        """The value, for code that needs a float."""
        return float(self._read("float", file))

    def guard_bool(self, file: str, _line: int) -> bool:
        """The value, for code that takes a branch."""
        return bool(self._read("branch", file))

    guard_size_oblivious = guard_or_false = guard_or_true = guard_bool

    def expect_true(self, _file: str, _line: int) -> bool:
        """A check that raises: the run with plain numbers has passed it (and torch allows no negative base)."""
        return True

    def statically_known_true(self, _file: str, _line: int) -> bool:
        """Whether it is true for every value of the params."""
        return not self.params and bool(self.value)

    def int_(self) -> int:
        """``int(n)``, ``range(n)``, an index."""
        return self.guard_int("", 0)

    def bool_(self) -> bool:
        """``if b``."""
        return self.guard_bool("", 0)

    def as_text(self) -> str:
        """The value as text, for code that formats it; torch calls this ``str``."""
        return str(self._read("text", ""))

    def rounded(self, digits: int | None = None) -> Node:
        """``round(s)``; torch calls this ``round``."""
        shown = self.text if digits is None else f"{self.text}, {digits}"
        return _made((self,), round(self.value, digits), f"round({shown})")

    def sym_sum(self, nodes: list[Node]) -> Node:
        """``torch.sym_sum``."""
        return reduce(lambda one, other: _infix("add", one, other), nodes)

    def sym_ite(self, then: Node, other: Node) -> Node:
        """``torch.sym_ite``: a choice that is part of the expression."""
        if not self.params:
            return then if self.value else other
        text = f"({then.text} if {self.text} else {other.text})"
        return _made((self, then, other), then.value if self.value else other.value, text)

    def neg(self) -> Node:
        """``-s``."""
        return _made((self,), -self.value, f"-{self.inside(7)}", interval=INTERVALS["neg"](self.interval), binding=7)

    def pos(self) -> Node:
        """``+s``."""
        return self

    def sym_not(self) -> Node:
        """``not b``, without a branch."""
        return _made((self,), not self.value, f"not {self.inside(2)}", binding=1)

    # -- inside

    def inside(self, binding: int) -> str:
        """The expression as an operand of an operation that binds so closely."""
        return self.text if self._binding >= binding else f"({self.text})"

    def _constant(self, value: Number) -> Node:
        text = repr(value)
        return Node(self.reads, value, text.removesuffix(".0"), interval=Interval(value, value))

    def _read(self, kind: str, file: str) -> Number:
        if self.params:
            self.reads.read(kind, self, file)
        return self.value


def _made(nodes: tuple[Node, ...], value: Any, text: str, *, interval: Interval = EVERYTHING, binding: int = 9) -> Node:
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
    # By these names in the body of the class, they would hide the builtins.
    for name, method in {"str": Node.as_text, "_graph_repr": Node.as_text, "round": Node.rounded}.items():
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
        return torch.SymBool(node)  # type: ignore[no-untyped-call]
    return _Int(node) if type(node.value) is int else _Float(node)  # type: ignore[no-untyped-call]


def node_of(value: Any) -> Node | None:
    """The node behind a number; None for everything else."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and isinstance(value.node, Node):
        return value.node
    return None
