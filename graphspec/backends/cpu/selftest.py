"""Proof, once a process, that the C++ replayer computes what the plain one does on this torch.

The TorchScript route is private to torch. A small region with everything that a graph pass could get wrong is
recorded, replayed both ways on new data, and compared bit by bit.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from graphspec.backends.base import Inlet
from graphspec.backends.cpu.interpreter import Interpreter
from graphspec.backends.cpu.issue import issues
from graphspec.backends.cpu.out_kernels import OutKernels, TryingRecorder
from graphspec.backends.cpu.program import Program, link
from graphspec.backends.cpu.python_replayer import PythonReplayer


@lru_cache(maxsize=1)
def interpreter_fault() -> str | None:
    """None if the C++ replayer is right here, else one line that says what was wrong."""
    try:
        plain, fast = _outcome(PythonReplayer), _outcome(Interpreter)
        plain += _served_by_hand()
        fast += _served()
    except Exception as error:  # noqa: BLE001 - whatever a private route of some torch raises, the answer is the plain one
        return f"the self-test of the C++ replayer failed: {str(error).splitlines()[0]}"
    if not all(torch.equal(a, b) for a, b in zip(plain, fast, strict=True)):
        return "the self-test of the C++ replayer gave other numbers than the plain one"
    return None


def _outcome(replayer: type[PythonReplayer | Interpreter]) -> list[torch.Tensor]:
    """Record on one input, replay twice on another; everything the region wrote or returned."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.ones(3, 4), torch.ones(3, 4), torch.arange(3)]
    program = _program(inputs, generator)
    generator.manual_seed(7)
    inputs[0].copy_(torch.linspace(-2, 2, 12).view(3, 4))
    inputs[1].fill_(0.5)
    inputs[2].copy_(torch.tensor([2, 0, 1]))
    with torch.no_grad():
        replay = replayer(program)
        replay.run()
        replay.run()
    return [*inputs, *(output.clone() for output in program.outputs)]


def _served() -> list[torch.Tensor]:
    """Fill, replay and copy results in one call: one result twice, which must be two tensors."""
    program, inputs, given, target = _for_serving()
    inlets = [Inlet(inputs[0], target, 0.25), Inlet(inputs[1], inputs[1], 0), Inlet(inputs[2], inputs[2], 0)]
    with torch.no_grad():
        serve = Interpreter(program).serving(inlets, [*program.outputs, program.outputs[0]])
        serve(given)
        *results, again = serve(given)
    results[0].zero_()
    return [*inputs, again, *results[1:], *(output.clone() for output in program.outputs)]


def _served_by_hand() -> list[torch.Tensor]:
    program, inputs, given, target = _for_serving()
    with torch.no_grad():
        replay = PythonReplayer(program)
        for _ in range(2):
            inputs[0].fill_(0.25)
            target.copy_(given[0])
            inputs[1].copy_(given[1])
            inputs[2].copy_(given[2])
            replay.run()
    return [*inputs, *(output.clone() for output in program.outputs), *(output.clone() for output in program.outputs)]


def _for_serving() -> tuple[Program, list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.ones(3, 4), torch.ones(3, 4), torch.arange(3)]
    program = _program(inputs, generator)
    generator.manual_seed(5)
    given = [torch.linspace(-3, 1, 8).view(2, 4), torch.linspace(0, 1, 12).view(4, 3).t(), torch.tensor([1, 1, 2])]
    return program, inputs, given, inputs[0][:2]


def _program(inputs: list[torch.Tensor], generator: torch.Generator) -> Program:
    kernels = OutKernels()
    recorder = TryingRecorder("self-test", None, kernels)
    with torch.no_grad(), recorder:
        x, y, rows = inputs
        outputs = _region(x, y, rows, generator)
    recording = recorder.recording
    refs = [recording.ref(output) for output in outputs]
    arena = {index: torch.empty(size, dtype=torch.uint8) for index, size in enumerate(recording.bytes)}

    def locate(storage: int) -> tuple[torch.UntypedStorage, int]:
        outside = recording.outside.get(storage)
        return (outside.storage if outside else arena[storage].untyped_storage()), 0

    program, _ = link(issues(recording, refs, kernels), refs, locate, {})
    return program


def _region(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor, generator: torch.Generator) -> list[torch.Tensor]:
    torch._foreach_mul_([x, y], 0.5)  # in place on a list: dead code if the list is built inside the graph
    torch._foreach_add_([x, y], [y.clone(), x.clone()])
    view = x[1:].t()  # an alias that is written through
    view.add_(1)
    noise = torch.empty_like(x).uniform_(generator=generator)
    picked = y[None, rows, :2][0]  # a list with None inside
    normed = torch.nn.functional.layer_norm(x, (4,), None, None)  # None for a tensor
    same = x.mul(y)
    y.add_(same)  # a write between two equal calls, which must not be merged
    again = x.mul(y)
    flags = torch.where(x > 0, x, y).sum(dim=0, dtype=torch.float64)
    return [noise, picked, normed, same, again, flags, torch.cat([x, y, noise])]
