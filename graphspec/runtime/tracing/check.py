"""`graphspec check`: a spec against its model, on fake tensors.

The largest bucket is traced like a capture: a warm-up, a judged dry run, and a second run with other params that must
call the same operators with the same arguments. Of the other buckets only the smallest is judged too, and for each
padded dim one more size is traced to see along which axes its rows lie: what holds at both ends holds in between.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from graphspec import plan as plans
from graphspec import spec as language
from graphspec.backends.updates import specialized
from graphspec.compiler import compile_spec
from graphspec.errors import Diagnostic, ModelError
from graphspec.plan import Bucket
from graphspec.recording.source import ModuleNames
from graphspec.report.check_values import CheckReport, TracedRegion, TracedValue
from graphspec.runtime.context import Context
from graphspec.runtime.devices import without_broken_torch_npu
from graphspec.runtime.hazards import hook_findings
from graphspec.runtime.regions import BoundRegion, bind_regions
from graphspec.runtime.tracing import findings
from graphspec.runtime.tracing.build import build_fake
from graphspec.runtime.tracing.fake import FakeWorld
from graphspec.runtime.tracing.host import HostState
from graphspec.runtime.tracing.judged import JudgedDevice
from graphspec.runtime.tracing.next_run import other_first_call, other_results
from graphspec.runtime.tracing.params import judge_params
from graphspec.runtime.tracing.passes import Tracer
from graphspec.runtime.tracing.placement import Placement
from graphspec.runtime.tracing.rows import padded_mixing
from graphspec.runtime.tracing.trace import PassResult
from graphspec.runtime.values.buffers import Buffers, owned_tensors
from graphspec.runtime.values.trees import flatten

Progress = Callable[[str], None]


def check_spec(spec: language.Spec, device: str | None = None, progress: Progress = lambda _: None) -> CheckReport:
    """Trace every region of ``spec`` and report what a capture on ``device`` would refuse.

    ``device`` is that of the spec, or another one; no device is used. Raises ModelError if the factory fails.
    """
    label = (device or spec.device).partition(":")[0]
    plan = compile_spec(spec)
    world, placement = FakeWorld(), Placement(active=label != "cpu")
    with _no_collections(), without_broken_torch_npu(), warnings.catch_warnings():
        # torch itself asks for it where a tensor is copied.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        progress(f"build {spec.model.factory}")
        model = build_fake(plan, world, placement)
        regions, unbound = _bound(plan, model)
        with world.entered():
            buffers = Buffers(plan, torch.device("cpu"))
        backend: Any = JudgedDevice(label, handlers=bool(spec.npu.handlers))
        context = Context(plan, model, regions, buffers, backend)
        host = HostState(context.roots)
        special = specialized(plan, backend.can_update)
        tracer = Tracer(context, world, placement, host, ModuleNames(model), label, special, progress)
        found = []
        if any(plan.regions[name].declared.hooks == "refuse" for name in regions if not plan.regions[name].eager):
            found += hook_findings(model)
        traced, judged = _judged(tracer)
        parameters = _parameters(model)
        return CheckReport(
            spec.name,
            label,
            sum(each.numel() for each in parameters),
            sum(each.numel() * each.dtype.itemsize for each in parameters),
            traced,
            _each_once([*found, *unbound, *judged]),
        )


def _judged(tracer: Tracer) -> tuple[list[TracedRegion], list[Diagnostic]]:
    plan = tracer.context.plan
    largest, smallest = plan.buckets[0], plan.buckets[-1]
    warm = tracer.run(largest, "warm-up", params=2)
    first = tracer.run(largest, "judge")
    found = [*first.findings, *_unmatched(tracer)]
    again = warm if _same_operators(first, warm) else tracer.run(largest, "again", params=2)
    if not any(each.severity == "error" for each in found):
        found += _first_call(tracer, largest, warm, first)
    found += judge_params(tracer, largest, first, again)
    found += other_results(tracer.context, first, again)
    last = tracer.run(smallest, "judge") if smallest != largest else first
    found += last.findings if last is not first else []
    for dim in _padded_dims(plan):
        found += _rows(tracer, dim, first, last)
    return [_summary(tracer, largest, name, first) for name in first.regions], found


def _first_call(tracer: Tracer, bucket: Bucket, warm: PassResult, first: PassResult) -> list[Diagnostic]:
    """What the very first call does otherwise than later ones, if they do so outside of a capture too."""
    if not any(other_first_call(tracer.context, warm, first)):
        return []
    return list(other_first_call(tracer.context, warm, tracer.run(bucket, "again")))


def _rows(tracer: Tracer, dim: str, first: PassResult, last: PassResult) -> Iterator[Diagnostic]:
    """What mixes the rows of one padded dim, by a trace in which only this dim has another size."""
    largest, smallest = tracer.context.plan.buckets[0], tracer.context.plan.buckets[-1]
    for size in _other_sizes(tracer.context.plan, dim, largest[dim]):
        bucket = Bucket(tuple((name, size if name == dim else old) for name, old in largest.sizes))
        other = last if bucket == smallest else tracer.run(bucket, "again")
        alike = [name for name in first.regions if _same_region(first, other, name)]
        for name in alike:
            if not tracer.context.plan.regions[name].eager:
                one, two = first.regions[name].recording, other.regions[name].recording
                yield from padded_mixing(name, dim, (largest[dim], size), one, two)
        if len(alike) == len(first.regions):
            return


def _other_sizes(plan: plans.Plan, dim: str, largest: int) -> list[int]:
    """Sizes to trace a dim at, until one calls the same operators: real buckets, else one row less."""
    sizes = plan.dims[dim]
    smaller = [size for size in sizes.sizes if size < largest] if isinstance(sizes, language.Buckets) else []
    return list(dict.fromkeys([*smaller[:1], *smaller[-1:]])) or ([largest - 1] if largest > 1 else [])


def _padded_dims(plan: plans.Plan) -> list[str]:
    used = {dim for region in plan.regions.values() if not region.eager for dim in region.dims}
    padded = {name for name, dim in plan.dims.items() if isinstance(dim, language.Buckets) and not dim.exact}
    return [name for name in plan.dims if name in used & padded]


def _same_operators(one: PassResult, other: PassResult) -> bool:
    return all(_same_region(one, other, name) for name in one.regions)


def _same_region(one: PassResult, other: PassResult, name: str) -> bool:
    first, second = one.regions[name], other.regions.get(name)
    if second is None or first.ended or second.ended:
        return False
    return [call.op for call in first.recording.calls] == [call.op for call in second.recording.calls]


def _bound(plan: plans.Plan, model: Any) -> tuple[dict[str, BoundRegion], list[Diagnostic]]:
    """Every region whose paths the model has, and a finding for each of the others."""
    bound: dict[str, BoundRegion] = {}
    found = []
    for name, region in plan.regions.items():
        try:
            bound |= bind_regions(replace(plan, regions={name: region}), model)
        except ModelError as error:  # noqa: PERF203 - every region has its say
            found.append(findings.unbound(plan, name, error, "call"))
    return bound, found


def _unmatched(tracer: Tracer) -> Iterator[Diagnostic]:
    """States of the model that are not there after the warm-up."""
    for name, buffer in tracer.context.plan.buffers.items():
        if buffer.declared.attr is not None:
            try:
                owned_tensors(tracer.context.model, buffer.declared)
            except ModelError as error:
                yield findings.unmatched(tracer.context.plan, name, error)


def _summary(tracer: Tracer, bucket: Bucket, name: str, result: PassResult) -> TracedRegion:
    trace, region = result.regions[name], tracer.context.plan.regions[name]
    outputs = [
        TracedValue(output, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        for output, value in trace.outputs.items()
        for leaf in flatten(value).leaves
    ]
    own = str(bucket.project(region.dims))
    return TracedRegion(name, own, len(trace.recording.calls), tuple(outputs), region.eager, trace.ended)


def _parameters(model: Any) -> list[torch.Tensor]:
    if isinstance(model, torch.nn.Module):
        return list(model.parameters())
    members = [value for value in getattr(model, "__dict__", {}).values() if isinstance(value, torch.nn.Module)]
    return list({id(each): each for member in members for each in member.parameters()}.values())


def _each_once(found: list[Diagnostic]) -> list[Diagnostic]:
    """Without what a second bucket repeats; in order of place, those of the spec and the model apart."""
    seen: dict[Any, Diagnostic] = {}
    for each in found:
        said = re.sub(r"\d+", "#", each.message)  # the sizes of the bucket
        seen.setdefault((each.code, each.file, each.line, each.column, said), each)
    return sorted(seen.values(), key=lambda each: (each.file or "", each.line or 0, each.column or 0, each.code))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Hold the garbage collector: a trace makes many small objects that live until its end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
