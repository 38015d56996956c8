"""One run of a region on symbols: its calls on plain numbers, which arguments were symbols, and where one was read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from graphspec.recording.calls import Recorder
from graphspec.recording.source import Site, site
from graphspec.runtime.hazards.conditions import function_name
from graphspec.runtime.hazards.wording import shown
from graphspec.runtime.symbols.node import Node
from graphspec.runtime.symbols.places import Place, place_of
from graphspec.runtime.symbols.tree import changed, nodes, plain

if TYPE_CHECKING:
    from graphspec.recording.source import ModuleNames


@dataclass(frozen=True)
class SymbolRead:
    """A number that left its symbol, as ``kind``: branch, int, float, text or tensor.

    ``function`` is the one of torch that did it, if any; ``place`` the instruction of ``site``.
    """

    kind: str
    node: Node
    site: Site
    function: str
    place: Place | None


@dataclass(frozen=True)
class Passed:
    """A symbol that a function of torch took as a plain number, and the range of calls it made (first, last + 1)."""

    node: Node
    function: str
    site: Site
    calls: tuple[int, int]


class Trace:
    """What a run with symbols for ``params`` showed, except for those in ``lost``.

    ``arguments`` has those that held a symbol, by call and position in the schema.
    In an argument a `Node` stands for each symbol, and a plain value for everything else.
    """

    def __init__(
        self,
        region: str,
        params: frozenset[str],
        names: ModuleNames | None = None,
        updated: Collection[str] = (),
    ) -> None:
        self.params = params
        self.lost: set[str] = set()
        self.recorder = _Recorder(region, names, self, updated)
        self.functions = _Functions(self)
        self.arguments: dict[tuple[int, int], Any] = {}
        self.reads: list[SymbolRead] = []
        self.passed: list[Passed] = []
        self._function: str = ""
        self._taken: list[Node] = []

    def read(self, kind: str, node: Node, file: str) -> None:
        """See `Reads`. The argument parser of a torch function takes a symbol where it can only pass on a number."""
        if "tensor_new" in file:
            kind = "tensor"
        elif file and self._function and kind != "branch":
            self._taken.append(node)
            return
        where = site()
        self.reads.append(SymbolRead(kind, node, where, self._function, place_of(where)))

    def note(self, call: int, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Remember which arguments of a recorded call are symbols."""
        positions = {argument.name: position for position, argument in enumerate(op._schema.arguments)}
        given = (*enumerate(args), *((positions[name], value) for name, value in kwargs.items()))
        for position, value in given:
            if nodes(value):
                self.arguments[call, position] = changed(value, lambda node: node if node.params else node.value)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of torch, and follow the symbols that it takes as plain numbers."""
        held = nodes((args, kwargs))
        if not held:
            return function(*args, **kwargs)
        first = len(self.recorder.recording.calls)
        outer = self._function, self._taken
        self._function, self._taken = _name(function), []
        try:
            result = self._run(function, args, kwargs, held)
            calls = (first, len(self.recorder.recording.calls))
            self.passed += [Passed(node, self._function, site(), calls) for node in self._taken]
        finally:
            self._function, self._taken = outer
        return result

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], held: list[Node]) -> Any:
        if isinstance(function, (OpOverload, OpOverloadPacket)):
            return self._run_operator(function, args, kwargs, held)
        if function is not torch.Tensor.__setitem__:
            try:
                return function(*args, **kwargs)
            except TypeError:  # some arguments take no symbols; a wrong type fails again below
                self._taken.clear()
        # With a symbol, `x[i] = s` takes another path through torch than with a number.
        self._taken += held
        return function(*plain(args), **plain(kwargs))

    def _run_operator(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], held: list[Node]) -> Any:
        """An operator called by name: torch would read a list of symbols without saying for what."""
        calls = self.recorder.recording.calls
        first = len(calls)
        result = function(*plain(args), **plain(kwargs))
        packet = function.overloadpacket if isinstance(function, OpOverload) else function
        for index in range(first, len(calls)):
            if calls[index].op.overloadpacket is packet:
                self.note(index, calls[index].op, args, kwargs)
                return result
        self._taken += held  # made of other operators
        return result


class _Recorder(Recorder):
    """Records the calls as with plain numbers, so that no kernel reads a symbol."""

    def __init__(self, region: str, names: ModuleNames | None, trace: Trace, updated: Collection[str]) -> None:
        super().__init__(region, names, whole=updated)
        self._trace = trace

    def record(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = super().record(func, plain(args), plain(kwargs))
        self._trace.note(len(self.recording.calls) - 1, func, args, kwargs)
        return result


class _Functions(TorchFunctionMode):
    """Tells the trace which function of torch is being called."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return self._trace.call(func, args, kwargs or {})


def _name(function: Any) -> str:
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return str(function).replace(".", "::", 1)
    return shown(function_name(function))
