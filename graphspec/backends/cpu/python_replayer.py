"""The plain replayer: issues a program call by call from Python. Slower, and beyond doubt; the fallback."""

from __future__ import annotations

from typing import Any

import torch

from graphspec.backends.cpu.program import At, Program, SlotAt, Step


class PythonReplayer:
    """Replays by calling each operator overload."""

    kind = "python"

    def __init__(self, program: Program) -> None:
        self._program = program
        self._calls = [_prepare(step, program) for step in program.steps]

    def run(self) -> None:
        """Issue every call once, in order."""
        values = self._program.values
        for op, positional, keyword, slots, copies in self._calls:
            for holder, key, index in slots:
                holder[key] = values[index]
            result = op(*positional, **keyword)
            if op.namespace == "c10d":
                _wait(result)
            if copies:
                _copy(copies, result if isinstance(result, tuple) else (result,))


def _prepare(step: Step, program: Program) -> tuple[Any, list[Any], dict[str, Any], list[Any], tuple[Any, ...]]:
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    slots: list[tuple[Any, Any, int]] = []
    for argument, value in zip(step.op._schema.arguments, step.args, strict=True):
        holder: Any = keyword if argument.kwarg_only else positional
        key: Any = argument.name if argument.kwarg_only else len(positional)
        if isinstance(value, SlotAt):
            slots.append((holder, key, value.index))
        resolved = _resolve(value, program)
        if argument.kwarg_only:
            keyword[argument.name] = resolved
        else:
            positional.append(resolved)
    copies = tuple(_resolve(copy, program) for copy in step.copies)
    return step.op, positional, keyword, slots, copies if any(c is not None for c in copies) else ()


def _resolve(value: Any, program: Program) -> Any:
    if isinstance(value, At):
        return program.tensors[value.index]
    if isinstance(value, SlotAt):
        return program.values[value.index]
    if isinstance(value, list):
        return [_resolve(item, program) for item in value]
    return value


def _wait(result: Any) -> None:
    """Wait for a collective. In eager the model's own code did, after the call that was recorded."""
    for item in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(item, torch.ScriptObject):
            handle: Any = item
            handle.wait()


def _copy(destinations: Any, results: Any) -> None:
    for destination, result in zip(destinations, results, strict=True):
        if isinstance(destination, torch.Tensor):
            destination.copy_(result)
        elif destination is not None:
            _copy(destination, result)
