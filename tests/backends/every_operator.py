"""Every operator that torch has sample inputs for, captured on the CPU and replayed on other values against eager.

    python tests/backends/every_operator.py

Each sample is recorded once and replayed in both ways: from C++, where it can be, and from Python.
A process of its own: importing torch's samples changes global flags of torch. It prints each difference; 1 if any.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from graphspec.backends.base import CaptureRequest
from graphspec.backends.cpu import CpuBackend
from graphspec.backends.cpu.backend import Replayer
from graphspec.backends.cpu.program import Program
from graphspec.backends.cpu.python_replayer import PythonReplayer
from graphspec.errors import CaptureError
from graphspec.plan import Bucket, Graph
from graphspec.recording.source import ModuleNames

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch_samples import samples_of

#: How many samples must at least be replayed in each way.
LEAST = 6_500
DTYPES = {torch.float32: 6, torch.int64: 2, torch.complex64: 2, torch.bfloat16: 2, torch.bool: 1}

#: Their samples draw random numbers (and seed within the call), or return what nobody wrote.
RANDOM = ("rand", "empty", "normal", "uniform", "dropout", "cauchy", "exponential", "geometric", "bernoulli")
SEEDED = {
    "multinomial", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention",
    "svd_lowrank", "pca_lowrank",
}  # fmt: skip


def samples() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    for operator in op_db:
        if operator.name in SEEDED or any(word in operator.name for word in RANDOM):
            continue
        for dtype, count in DTYPES.items():
            if dtype not in operator.supported_dtypes("cpu"):
                continue
            for sample in samples_of(operator, dtype, count):
                for function in (operator.op, operator.inplace_variant):
                    if function is not None:
                        yield operator.name, function, (sample.input, *sample.args), sample.kwargs


class BothWays(CpuBackend):
    """A backend that keeps, beside the replayer it takes, the plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.replayers: list[Replayer] = []

    def _choose(self, program: Program, region: str) -> Replayer:
        chosen = super()._choose(program, region)
        self.replayers = [chosen] if chosen.kind == "python" else [chosen, PythonReplayer(program)]
        return chosen


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def same(have: torch.Tensor, want: torch.Tensor) -> bool:
    """Up to the last bits: some kernels of linear algebra depend on where their memory begins."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return False
    if not (want.is_floating_point() or want.is_complex()):
        return torch.equal(have, want)
    return torch.allclose(have, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def differences(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, str | None]:
    """By way of replaying, what it gives otherwise than eager on values not captured; empty if eager fails."""
    inputs = tensors((args, kwargs))
    values = [tensor.clone() for tensor in inputs]

    def fill(factor: float) -> None:
        for tensor, value in zip(inputs, values, strict=True):
            number = value.is_floating_point() or value.is_complex()
            tensor.copy_(value * factor if number else value)

    def region() -> list[torch.Tensor]:
        before = torch.zeros(3)  # neighbours in the arena
        copies = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (args, kwargs))
        returned = tensors(function(*copies[0], **copies[1]))
        return [*returned, *tensors(copies), before, torch.ones(5)]

    try:
        fill(1)
        region()
    except (RuntimeError, TypeError, NotImplementedError, AssertionError):
        return {}  # not for these arguments
    backend = BothWays()
    forever = lambda _: float("inf")
    request = CaptureRequest(Graph("r", Bucket(), "pool", 0), region, forever, lambda _: (), ModuleNames(None))
    try:
        graph = backend.capture(request)
        backend.seal()
    except CaptureError:
        return {}  # refused, by name
    fill(0.75)
    wanted = [tensor.clone() for tensor in region()]
    found: dict[str, str | None] = {}
    for graph.replayer in backend.replayers:
        fill(0.75)
        backend.poison()  # nothing is left of the replay before
        graph.replay()
        wrong = [i for i, (have, want) in enumerate(zip(graph.outputs, wanted, strict=True)) if not same(have, want)]
        found[graph.replayer.kind] = f"results {wrong} of {len(wanted)}" if wrong else None
    return found


def main() -> int:
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    count, found, ways = 0, 0, Counter[str]()
    with torch.no_grad():
        for name, function, args, kwargs in samples():
            if any(tensor.layout is not torch.strided for tensor in tensors((args, kwargs))):
                continue
            count += 1
            replayed = differences(function, args, kwargs)
            ways.update(replayed.keys())
            for way, wrong in replayed.items():
                if wrong is not None:
                    found += 1
                    sys.stdout.write(f"{name} {[tuple(t.shape) for t in tensors(args)]}: from {way}, {wrong}\n")
    sys.stdout.write(f"{count} samples, replayed {dict(ways)}, {found} differ\n")
    return 1 if found or min(ways["interpreter"], ways["python"]) < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
