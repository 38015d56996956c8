"""A sequence run by the model's own code: the reference that replays are compared with, and the fallback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphspec import plan as plans
from graphspec import spec as language
from graphspec.errors import InputError
from graphspec.plan import concrete
from graphspec.runtime.context import Context
from graphspec.runtime.replay.request import Request
from graphspec.runtime.sharing import SharedModel
from graphspec.runtime.values.buffers import strides_of
from graphspec.runtime.values.outputs import check_output
from graphspec.runtime.values.trees import flatten
from graphspec.runtime.values.write_back import apart


def run_eagerly(context: Context, sequence: plans.Sequence, request: Request) -> dict[str, Any]:
    """Call the regions of a sequence in order on the given tensors, at the real sizes.

    States are the real ones, and are advanced. Raises InputError if a state has fewer rows than the run.
    """
    sizes = {**context.plan.constants, **dict(_sizes(sequence, request))}
    env: dict[str, Any] = dict(request.params)
    for name, tensor in request.tensors.items():
        env[name] = _placed(tensor, context.plan.buffers[name].declared, context.device)
    values = _Lookup(context, env, request, sizes)
    for name in sequence.steps:
        with SharedModel.inside():
            returned = context.regions[name](values)
        written = {output: values.state(output) for output in context.plan.regions[name].write_back}
        outputs = apart(returned, written) if written else returned
        for output, value in outputs.items():
            env[output] = values.write_back(name, output, value)
    return {name: _own(env[name], context, name) for name in sequence.results}


def directly(context: Context, sequence: plans.Sequence, request: Request) -> Callable[[], None]:
    """What a user would call without graphspec: the regions in order, on inputs that are in place; for measuring."""
    sizes = {**context.plan.constants, **dict(_sizes(sequence, request))}
    env: dict[str, Any] = dict(request.params)
    for name, tensor in request.tensors.items():
        env[name] = _placed(tensor, context.plan.buffers[name].declared, context.device)
    values = _Lookup(context, env, request, sizes)
    regions = [context.regions[name] for name in sequence.steps]
    wires = [wire for name in dict.fromkeys(sequence.steps) for wire in context.plan.regions[name].reads]
    env |= {wire.value: values[wire.value] for wire in wires if wire.source in ("buffer", "param")}
    states = {name: env[name] for name in env if name in context.buffers.static}

    def call() -> None:
        found = dict(env)
        for region in regions:
            for name, value in region.direct(found).items():
                found[name] = states[name].copy_(value) if name in states else value

    return call


class _Lookup(Mapping[str, Any]):
    """Named values at real sizes: given, made by a region, or read from a state when it is asked for."""

    def __init__(self, context: Context, env: dict[str, Any], request: Request, sizes: Mapping[str, int]) -> None:
        self._context = context
        self._env = env
        self._request = request
        self._sizes = sizes

    def __getitem__(self, name: str) -> Any:
        if name in self._env:
            return self._env[name]
        buffer = self._context.plan.buffers.get(name)
        if buffer is not None and buffer.role == "state":
            return self.state(name)
        if buffer is not None and buffer.source is not None:
            return self._derived(buffer, buffer.source)
        if buffer is not None and buffer.declared.optional:
            return None
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter(self._env)

    def __len__(self) -> int:
        return len(self._env)

    def state(self, name: str) -> torch.Tensor:
        """The real rows of a state, as a view."""
        buffer, whole = self._context.plan.buffers[name], self._context.buffers.static[name].largest
        shape = concrete(buffer.shape or (), self._sizes)
        if any(want > have for want, have in zip(shape, whole.shape, strict=True)):
            raise InputError(f"state '{name}' has the shape {list(whole.shape)}, and this run needs {list(shape)}")
        return whole[tuple(slice(0, size) for size in shape)]

    def write_back(self, region: str, name: str, value: Any) -> Any:
        """Store an output that bears the name of a state; check one that is declared."""
        buffer = self._context.plan.buffers.get(name)
        if buffer is None:
            return value
        check_output(region, buffer, value, concrete(buffer.shape or (), self._sizes))
        return self.state(name).copy_(value) if buffer.role == "state" else value

    def _derived(self, buffer: plans.BufferPlan, source: language.FromParam | language.FromSize) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, str(buffer.dtype))
        shape = concrete(buffer.shape or (), self._sizes)
        value = self._sizes[source.dim] if isinstance(source, language.FromSize) else self._request.params[source.param]
        return torch.as_tensor(value, dtype=dtype, device=self._context.device).expand(shape)


def _sizes(sequence: plans.Sequence, request: Request) -> dict[str, int]:
    bucket = dict(request.bucket.sizes) if request.bucket is not None else {}
    return {**bucket, **{dim: size for dim, size in request.sizes.items() if dim in sequence.dims}}


def _placed(tensor: torch.Tensor, buffer: language.Buffer, device: torch.device) -> torch.Tensor:
    """An input as eager would get it: on the device, in the declared layout."""
    strides = strides_of(tuple(tensor.shape), buffer.layout)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=device).copy_(tensor)


def _own(value: Any, context: Context, name: str) -> Any:
    """A result; one that is a view of a state is copied, since the state moves on."""
    if name not in context.buffers.static:
        return value
    tree = flatten(value)
    return tree.rebuild([leaf.clone() for leaf in tree.leaves])
