"""Replay from C++: the program as one TorchScript graph, run by the interpreter that ships inside torch.

The graph is built node by node and never comes from Python source, so no compiler is needed and the calls are the
recorded ones, one node each. Three things keep torch's graph passes from changing what it computes:

- every tensor comes out of one input list, so the passes must assume that any two of them alias;
- a tensor list that an operator writes to is an input of its own: a list built inside the graph would make
  in-place foreach calls look dead, and they would be removed;
- the schema each node resolved to is compared with the recorded operator, one by one.

This is a private route of torch. `selftest` proves it on this torch before it is used.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch._C import Graph, ListType, TensorType

from graphspec.backends.cpu.below_autograd import all_below_autograd
from graphspec.backends.cpu.program import At, Program, SlotAt, Step
from graphspec.levers import pulled


class UnsupportedProgramError(Exception):
    """This program cannot be written as a TorchScript graph. The plain replayer runs it."""


class Interpreter:
    """Replays with one call into C++."""

    kind = "interpreter"

    def __init__(self, program: Program) -> None:
        builder = _Builder(program)
        for step in program.steps:
            builder.add(step)
        self._function = builder.finish()
        self._values = program.values
        below = pulled("below_autograd") and all_below_autograd(step.op for step in program.steps)
        self._around: Any = torch._C._AutoDispatchBelowADInplaceOrView if below else nullcontext
        self._tensors, *self._written_lists = (torch._C.ScriptList(tensors) for tensors in builder.lists)

    def run(self) -> None:
        """Issue every call once, in order."""
        # Unoptimized: profiling and specializing a graph whose every node writes memory gains nothing.
        optimize = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)
        try:
            with self._around():
                self._function(self._tensors, *self._values, *self._written_lists)
        finally:
            torch._C._set_graph_executor_optimize(optimize)


class _Builder:
    """Writes one node a call into a fresh graph."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._graph: Any = Graph()  # its stub knows half of it
        self._constants: dict[tuple[type, Any], Any] = {}
        self.lists: list[list[torch.Tensor]] = []
        self._tensors = self._unpacked(list(program.tensors))
        # Inputs are in order of creation: the tensors, the update slots, then each list that is written.
        self._slots = [self._graph.addInput(f"slot_{index}") for index in range(len(program.values))]

    def add(self, step: Step) -> None:
        schema = step.op._schema
        if step.op.namespace == "c10d":
            message = f"{schema.name} returns a handle that must be waited for"
            raise UnsupportedProgramError(message)
        inputs = [self._value(value, argument) for argument, value in zip(schema.arguments, step.args, strict=True)]
        node = self._graph.create(schema.name, inputs, len(schema.returns))
        outputs = list(node.outputs())
        for output, returned in zip(outputs, schema.returns, strict=True):
            output.setType(returned.type)
        self._graph.appendNode(node)
        if node.schema() != str(schema):
            message = f"{step.op} resolved to {node.schema()}"
            raise UnsupportedProgramError(message)
        for output, copy in zip(outputs, step.copies, strict=False):
            self._copy(output, copy)

    def finish(self) -> Any:
        graph = self._graph
        graph.registerOutput(self._constant(None))
        graph.lint()
        return torch._C._create_function_from_graph("replay", graph)

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
            inputs = [self._tensors[destination.index], result, self._constant(False)]
            node = self._graph.create("aten::copy_", inputs, 1)
            self._graph.appendNode(node)
        elif isinstance(destination, list):
            unpack = self._graph.create("prim::ListUnpack", [result], len(destination))
            self._graph.appendNode(unpack)
            for item, place in zip(unpack.outputs(), destination, strict=True):
                item.setType(TensorType.get())
                self._copy(item, place)


def _plain(kind: Any) -> Any:
    """The type inside an Optional."""
    return kind.getElementType() if kind.kind() == "OptionalType" else kind


def _as(value: Any, kind: Any) -> Any:
    """An integer where the schema says float, as a float: constants must have the exact type."""
    return float(value) if isinstance(value, int) and kind.kind() == "FloatType" else value
