"""What a guard costs at replay: the ways to compare, and the whole check, for 50, 300 and 1,000 tensors.

Run ``python benchmarks/guards.py``. Times are the best of interleaved rounds, in microseconds, on one thread.
The budget is 8% of a replay of llama-decode, about 300 us: 24 us for its about 60 tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import getitem, is_, itemgetter
from typing import Any

import torch
from torch import nn

from graphspec.runtime.holdings.guards import Guard
from graphspec.runtime.holdings.reach import reach

ROUNDS = 15
SIZES = (50, 300, 1000)


def chain(tensors: int) -> nn.Module:
    """Half as many linear layers, so that weights and biases are this many tensors."""
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(tensors // 2))).eval()


def ways(model: nn.Module) -> dict[str, Callable[[], Any]]:
    """Each way to compare one thing over all parameters, and the guard that uses the fastest safe ones."""
    found = reach({"model": model})
    held = [tensor for _, tensor in found.tensors]
    slots = [slot for slot, _ in found.tensors]
    dicts, keys = [slot.holder() for slot in slots], [slot.key for slot in slots]
    groups = [(itemgetter("weight", "bias"), layer._parameters) for layer in model.children()]  # noqa: SLF001
    base = torch._C.TensorBase  # noqa: SLF001
    pointers, strides = [tensor.data_ptr() for tensor in held], [tensor.stride() for tensor in held]
    shapes, copies = [tensor.shape for tensor in held], [tensor.detach() for tensor in held]
    guard = Guard([((slot,), tensor) for slot, tensor in found.tensors], found.modules)
    return {
        "walk parameters()": lambda: [tensor.data_ptr() for tensor in model.parameters()] == pointers,
        "identity: is_ over dict.get": lambda: all(map(is_, map(dict.get, dicts, keys), held)),
        "identity: is_ over getitem": lambda: all(map(is_, map(getitem, dicts, keys), held)),
        "identity: list ==": lambda: list(map(getitem, dicts, keys)) == held,  # unsafe: equal scalars compare equal
        "identity: id": lambda: list(map(id, map(getitem, dicts, keys))) == [id(tensor) for tensor in held],
        "identity: grouped itemgetter": lambda: [item for get, entry in groups for item in get(entry)] == held,
        "address: data_ptr": lambda: list(map(base.data_ptr, held)) == pointers,
        "address: is_set_to": lambda: all(map(base.is_set_to, held, copies)),
        "layout: stride": lambda: list(map(base.stride, held)) == strides,
        "layout: shape": lambda: [tensor.shape for tensor in held] == shapes,
        "layout: as the guard does": guard._same_layout,  # noqa: SLF001
        "paths and identity: as the guard does": guard._identities.hold,  # noqa: SLF001
        "the whole guard": guard.check,
    }


def best(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Microseconds of each in its best round: on a busy machine, noise only adds."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(repeats):
                function()
            taken[name].append((time.perf_counter() - start) / repeats * 1e6)
    return {name: min(times) for name, times in taken.items()}


def main() -> None:
    """Print one line for each way, one column for each size."""
    torch.set_num_threads(1)
    columns = [best(ways(chain(size)), repeats=20_000 // size) for size in SIZES]
    print(f"{'microseconds for N tensors':<40}" + "".join(f"{size:>10}" for size in SIZES))
    for name in columns[0]:
        print(f"{name:<40}" + "".join(f"{column[name]:>10.1f}" for column in columns))


if __name__ == "__main__":
    main()
