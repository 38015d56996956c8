"""A number of the host that remembers how it was made: the node behind a ``torch.SymInt``, ``SymFloat`` or ``SymBool``.

torch asks of a node only that it has the right methods, so this is one of graphspec's own. Against torch's, which needs
a ShapeEnv, it reports every read, and whether Python or torch reads; a comparison never turns a symbol into a constant;
and the expression stays as the model wrote it.
"""

from __future__ import annotations

from typing import Protocol

from graphspec.runtime.symbols.interval import EVERYTHING, Interval

Number = bool | int | float

#: A param and the indices of one of its items; no indices: the whole param.
Origin = tuple[str, tuple[int, ...]]

#: How closely a name or a call holds together: more than every operator.
ATOM = 9
_LONGEST = 80  # characters of an expression: a sum over a long list is cut


class Reads(Protocol):
    """Who is told when a number is read off its node."""

    def read(self, kind: str, node: Node, file: str) -> None:
        """``kind`` is branch, int, float or text. ``file`` is the C++ source that reads; empty for Python."""


class Node:
    """One value of a trace: the number it has in this run, and the expression of params that made it.

    ``origin`` is set where the expression is exactly a param or one of its items; ``params`` are those it is made
    from, none for a constant; ``interval`` holds every value that the ranges of the params allow.
    """

    __slots__ = ("_binding", "interval", "origin", "params", "reads", "text", "value")
    constant = None  # asked for by torch

    def __init__(
        self,
        reads: Reads,
        value: Number,
        text: str,
        *,
        params: frozenset[str] = frozenset(),
        origin: Origin | None = None,
        interval: Interval = EVERYTHING,
        binding: int = ATOM,
    ) -> None:
        if type(value) not in (bool, int, float):  # a negative number to a fraction is complex
            message = f"no symbol can be a {type(value).__name__}"
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
