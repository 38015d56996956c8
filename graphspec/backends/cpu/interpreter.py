"""Replay from C++: the program as one TorchScript graph, run by the interpreter that ships inside torch.

The graph is built node by node and never comes from Python source, so no compiler is needed and the calls are the
recorded ones, one node each. Four things keep torch's graph passes from changing what it computes:

- every tensor comes out of one input list, so the passes must assume that any two of them alias;
- a tensor list that an operator writes to is an input of its own: a list built inside the graph would make
  in-place foreach calls look dead, and they would be removed;
- what nobody reads is returned, or its call would be removed: it may draw random numbers, or refuse;
- the schema each node resolved to is compared with the recorded operator, one by one.

This is a private route of torch. `selftest` proves it on this torch before it is used.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._C import Graph, ListType, TensorType, TupleType

from graphspec.backends.base import Inlet, Serve
from graphspec.backends.cpu.below_autograd import all_below_autograd
from graphspec.backends.cpu.program import At, Program, SlotAt, Step
from graphspec.levers import pulled

aten = torch.ops.aten


class UnsupportedProgramError(Exception):
    """This program cannot be written as a TorchScript graph. The plain replayer runs it."""


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals wait: torch makes lists of Python objects in C++, where a handler that raises ends the process."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Interpreter:
    """Replays with one call into C++."""

    kind = "interpreter"

    def __init__(self, program: Program) -> None:
        self._program = program
        builder = _Builder(program)
        builder.add_all()
        self._function = builder.finish("replay")
        self._values = program.values
        below = pulled("below_autograd") and all_below_autograd(step.op for step in program.steps)
        self._around: Any = torch._C._AutoDispatchBelowADInplaceOrView if below else nullcontext
        with _uninterrupted():
            self._tensors, *self._written_lists = (torch._C.ScriptList(tensors) for tensors in builder.lists)
        self._serving: dict[Any, tuple[Any, list[Any]]] = {}

    def run(self) -> None:
        """Issue every call once, in order."""
        with self._around():
            self._function(self._tensors, *self._values, *self._written_lists)

    def serving(self, inlets: Sequence[Inlet], results: Sequence[torch.Tensor]) -> Serve:
        """The same between copies into ``inlets`` and copies of ``results``, all in one call.

        One function serves every real size: where copies go to and come from is handed to it.
        """
        with _uninterrupted():
            return self._serving_of(inlets, results)

    def _serving_of(self, inlets: Sequence[Inlet], results: Sequence[torch.Tensor]) -> Serve:
        pads = [None if inlet.target is inlet.view else inlet.pad for inlet in inlets]
        key = (repr(pads), len(results))
        if key not in self._serving:
            builder = _Builder(self._program)
            outlets = builder.begin_serving(pads, len(results))
            builder.add_all()
            function = builder.finish("serve", builder.copies(outlets))
            _, _, *lists = builder.lists
            self._serving[key] = function, [torch._C.ScriptList(tensors) for tensors in lists]
        function, written = self._serving[key]
        tensors, values, around = self._tensors, self._values, self._around
        ends = torch._C.ScriptList([*(t for inlet in inlets for t in (inlet.view, inlet.target)), *results])

        count = len(results)

        def serve(given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            with around():
                returned = function(tensors, *values, *given, ends, *written) or ()
            return returned if len(returned) == count else returned[:count]

        return serve


class _Builder:
    """Writes one node a call into a fresh graph."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._graph: Any = Graph()  # its stub knows half of it
        self._constants: dict[tuple[type, Any], Any] = {}
        self._unread: list[Any] = []
        self.lists: list[list[torch.Tensor]] = []
        self._tensors = self._unpacked(list(program.tensors))
        # Inputs are in order of creation: the tensors, the update slots, then each list that is written.
        self._slots = [self._graph.addInput(f"slot_{index}") for index in range(len(program.values))]

    def begin_serving(self, pads: Sequence[Any], results: int) -> list[Any]:
        """Fill what is given into inlets, each after its ``pad`` if it has one; the results that are copied out."""
        given = [self._graph.addInput(f"given_{number}") for number in range(len(pads))]
        for value in given:
            value.setType(TensorType.get())
        ends = self._unpacked([torch.empty(0)] * (2 * len(pads) + results))  # of each route its own
        for number, pad in enumerate(pads):
            view, target = ends[2 * number : 2 * number + 2]
            if pad is not None:
                self._node(aten.fill_.Scalar, [view, self._constant(int(pad) if isinstance(pad, bool) else pad)])
            self._node(aten.copy_.default, [target, given[number], self._constant(False)])
        return ends[2 * len(pads) :]

    def copies(self, tensors: Sequence[Any]) -> list[Any]:
        """Copies of these."""
        return [self._node(aten.clone.default, [each, self._constant(None)])[0] for each in tensors]

    def add_all(self) -> None:
        """Every step of the program."""
        for step in self._program.steps:
            self.add(step)

    def add(self, step: Step) -> None:
        schema = step.op._schema
        if step.op.namespace == "c10d":
            message = f"{schema.name} returns a handle that must be waited for"
            raise UnsupportedProgramError(message)
        inputs = [self._value(value, argument) for argument, value in zip(schema.arguments, step.args, strict=True)]
        outputs = self._node(step.op, inputs)
        if all(copy is None for copy in step.copies) and not schema.is_mutable:
            self._unread += outputs
        for output, copy in zip(outputs, step.copies, strict=False):
            self._copy(output, copy)

    def finish(self, name: str, returned: Sequence[Any] = ()) -> Any:
        """The function, which returns a tuple: ``returned``, then what no call reads; or None for nothing."""
        graph, returned = self._graph, [*returned, *self._unread]
        if not returned:
            graph.registerOutput(self._constant(None))
        else:
            node = graph.create("prim::TupleConstruct", returned, 1)
            node.output().setType(TupleType([value.type() for value in returned]))
            graph.appendNode(node)
            graph.registerOutput(node.output())
        graph.lint()
        return _as_written(torch._C._create_function_from_graph(name, graph))

    def _node(self, op: Any, inputs: list[Any]) -> list[Any]:
        """Call one operator; what it returns."""
        schema = op._schema
        node = self._graph.create(schema.name, inputs, len(schema.returns))
        outputs = list(node.outputs())
        for output, returned in zip(outputs, schema.returns, strict=True):
            output.setType(returned.type)
        self._graph.appendNode(node)
        if node.schema() != str(schema):
            message = f"{op} resolved to {node.schema()}"
            raise UnsupportedProgramError(message)
        return outputs

    def _value(self, value: Any, argument: Any) -> Any:
        if isinstance(value, At):
            return self._tensors[value.index]
        if isinstance(value, SlotAt):
            self._slots[value.index].setType(argument.type)
            return self._slots[value.index]
        if isinstance(value, list):
            return self._list(value, argument)
        return self._constant(_as(value, _plain(argument.type)))

    def _list(self, items: list[Any], argument: Any) -> Any:
        kind = _plain(argument.type)
        if argument.alias_info is not None and argument.alias_info.is_write:
            return self._input([self._program.tensors[item.index] for item in items])
        element = _plain(kind.getElementType())
        values = [
            self._tensors[item.index] if isinstance(item, At) else self._constant(_as(item, element)) for item in items
        ]
        node = self._graph.create("prim::ListConstruct", values, 1)
        node.output().setType(kind)
        self._graph.appendNode(node)
        return node.output()

    def _unpacked(self, tensors: list[torch.Tensor]) -> list[Any]:
        node = self._graph.create("prim::ListUnpack", [self._input(tensors)], len(tensors))
        self._graph.appendNode(node)
        outputs = list(node.outputs())
        for output in outputs:
            output.setType(TensorType.get())
        return outputs

    def _input(self, tensors: list[torch.Tensor]) -> Any:
        value = self._graph.addInput(f"tensors_{len(self.lists)}")
        value.setType(ListType(TensorType.get()))
        self.lists.append(tensors)
        return value

    def _constant(self, value: Any) -> Any:
        key = (type(value), repr(value))  # by repr: 0.0 equals -0.0, and nan nothing
        if key not in self._constants:
            try:
                self._constants[key] = self._graph.insertConstant(value)
            except (TypeError, RuntimeError) as error:
                message = f"a constant of type {type(value).__name__}"
                raise UnsupportedProgramError(message) from error
        return self._constants[key]

    def _copy(self, result: Any, destination: Any) -> None:
        if isinstance(destination, At):
            self._node(aten.copy_.default, [self._tensors[destination.index], result, self._constant(False)])
        elif isinstance(destination, list):
            unpack = self._graph.create("prim::ListUnpack", [result], len(destination))
            self._graph.appendNode(unpack)
            for item, place in zip(unpack.outputs(), destination, strict=True):
                item.setType(TensorType.get())
                self._copy(item, place)


_compiling = threading.Lock()


def _as_written(function: Any) -> Any:
    """The function, to be run as it is written, for good.

    Profiling and specializing a graph whose every node writes memory gains nothing. A function takes its executor when
    it is first asked for one, by flags of the process: so it is asked now, and no flag matters in a replay. It takes
    another one under autocast, under which it is therefore never called.
    """
    with _compiling:
        optimizes = torch._C._get_graph_executor_optimize()
        profiles = torch._C._jit_set_profiling_mode(False)
        torch._C._set_graph_executor_optimize(False)
        try:
            function.get_debug_state()
        except RuntimeError:  # it has not run yet, so there is nothing to show
            pass
        finally:
            torch._C._set_graph_executor_optimize(optimizes)
            torch._C._jit_set_profiling_mode(profiles)
    return function


def _plain(kind: Any) -> Any:
    """The type inside an Optional."""
    return kind.getElementType() if kind.kind() == "OptionalType" else kind


def _as(value: Any, kind: Any) -> Any:
    """An integer where the schema says float, as a float: constants must have the exact type."""
    return float(value) if isinstance(value, int) and kind.kind() == "FloatType" else value
