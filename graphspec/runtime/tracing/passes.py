"""One pass: every region of a spec called once, in replay order, on fake tensors of one bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from graphspec import spec as language
from graphspec.errors import CaptureError, Diagnostic, ModelError
from graphspec.hazards import CODES as HAZARDS
from graphspec.plan import Bucket
from graphspec.recording.calls import Recorder, Recording
from graphspec.recording.source import ModuleNames
from graphspec.runtime.capture import effects
from graphspec.runtime.capture.dry_run import declared_generators
from graphspec.runtime.context import Context
from graphspec.runtime.hazards import TraceEnded, inside_capture, watch
from graphspec.runtime.hazards.fake import lacks_value
from graphspec.runtime.holdings.code_names import CodeNames
from graphspec.runtime.holdings.objects import Change
from graphspec.runtime.holdings.storages import Layout
from graphspec.runtime.tracing import findings
from graphspec.runtime.tracing.fake import FakeWorld
from graphspec.runtime.tracing.host import HostState
from graphspec.runtime.tracing.kernels import KernelMissingError
from graphspec.runtime.tracing.next_run import other_next_run
from graphspec.runtime.tracing.placement import Placement
from graphspec.runtime.tracing.trace import PassResult, RegionTrace
from graphspec.runtime.tracing.values import Values
from graphspec.runtime.values.trees import flatten

#: ``warm-up`` reports nothing and lets the model create what it creates lazily; ``judge`` reports; ``again`` does not.
Purpose = Literal["warm-up", "judge", "again"]

_DEVICE = torch.ops.prim.device.default


class _FakeRecorder(Recorder):
    """Leaves out the question for its device that every operator asks a fake tensor."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


@dataclass(frozen=True)
class Tracer:
    """What all passes over one spec share. ``label`` is who is judged for: auto, cpu, cuda or npu.

    ``specialized`` are the params that have graphs of their own for each value.
    """

    context: Context
    world: FakeWorld
    placement: Placement
    host: HostState
    names: ModuleNames
    label: str
    specialized: frozenset[str]
    progress: Callable[[str], None]

    def order(self) -> list[str]:
        """Every region of a sequence once, in order of first appearance."""
        sequences = self.context.plan.sequences.values()
        return list(dict.fromkeys(name for sequence in sequences for name in sequence.steps))

    def run(self, bucket: Bucket, purpose: Purpose, *, params: int = 1) -> PassResult:
        """One pass. Python state is put back after it. ``params``: 1 for the defaults, 2 for others in their range."""
        result = PassResult(self._params(bucket, params))
        try:
            with self.world.entered(), self.placement.followed():
                judged = Pass(self, bucket, purpose, result)
                judged.run()
                if judged.leaves_something:
                    result.findings += self._next_run(bucket, result, judged.rebound)
        finally:
            self.host.restore()
        return result

    def _next_run(
        self, bucket: Bucket, result: PassResult, rebound: Sequence[tuple[str, Change]]
    ) -> Iterator[Diagnostic]:
        """What a run does otherwise that follows on ``result`` with no rewind between."""
        following = PassResult(result.params)
        after = Pass(self, bucket, "again", following)
        self.context.buffers.move_inputs(after.values.environment)
        after.run()
        return other_next_run(self.context, self.host, result, following, rebound)

    def _params(self, bucket: Bucket, run: int) -> dict[str, Any]:
        params = self.context.default_params(bucket, {})
        return params if run == 1 else self.context.other_params(params, bucket, self.specialized)


class Pass:
    """Calls every region once. Inside the fake world."""

    def __init__(self, tracer: Tracer, bucket: Bucket, purpose: Purpose, result: PassResult) -> None:
        self._tracer = tracer
        self._context = tracer.context
        self._bucket = bucket
        self._purpose = purpose
        self._result = result
        self._code, self._eager_code = CodeNames(), CodeNames()
        self._changes: dict[str, effects.HostChanges] = {}
        self._seen: set[str] = set()  # changes of the host that are reported, or no region's to answer for
        self.values = Values(tracer.context, bucket, result.params, self._found)

    def run(self) -> None:
        """Call every region, or make its outputs as declared where it cannot be called."""
        for name in self._tracer.order():
            if name not in self._context.regions:
                self.values.use_declared(name)
            elif missing := self.values.missing(name):
                self._found(findings.untraced(self._context, name, missing))
                self.values.use_declared(name)
            else:
                if self._purpose == "judge":
                    self._tracer.progress(f"trace {name}" + (f" {self._bucket}" if self._bucket.sizes else ""))
                self._region(name, self._context.plan.regions[name].declared)
        self._judge_host_changes()

    @property
    def rebound(self) -> list[tuple[str, Change]]:
        """What captured regions put anew on the host, by region."""
        return [each for changes in self._changes.values() for each in changes.rebound]

    @property
    def leaves_something(self) -> bool:
        """Whether all is well so far, and a next run could find something on the host that this one did not."""
        refused = any(each.severity == "error" for each in self._result.findings)
        return self._purpose == "judge" and bool(self._seen) and not refused

    def _region(self, name: str, region: language.Region) -> None:
        within = any(update.within is not None for update in region.updates)
        recorder = _FakeRecorder(name, self._tracer.names if within else None)
        trace = self._result.regions[name] = RegionTrace(recorder.recording, dict(self.values.origins))
        call = self._watched if self._purpose == "judge" and not region.eager else self._quietly
        try:
            with self._names_of(region):
                trace.outputs = call(name, recorder)
        except (TraceEnded, ModelError, CaptureError) as error:
            trace.ended = True
            self._found(*self._reasons(name, error, eager=region.eager))
            self.values.use_declared(name)
        if region.eager:
            host: Any = self._tracer.host
            self._seen |= effects.changed_names(host)
        self.values.note_origins(trace.outputs)

    def _judge_host_changes(self) -> None:
        """At the end, since a later eager region may read what an earlier one changed."""
        eager = self._eager_code.loaded()
        for name, changes in self._changes.items():
            errors, warnings = changes.judged(eager)
            noticed = [Diagnostic("GS745", text, "warning") for text in warnings]
            self._found(*(findings.in_region(self._context.plan, name, each) for each in (*errors, *noticed)))

    def _names_of(self, region: language.Region) -> AbstractContextManager[None]:
        if self._purpose != "judge":
            return nullcontext()
        return (self._eager_code if region.eager else self._code).watching()

    def _reasons(
        self, name: str, error: TraceEnded | ModelError | CaptureError, *, eager: bool
    ) -> Iterator[Diagnostic]:
        """Why a region did not return, unless its findings say so."""
        refused = any(each.code in HAZARDS and f"'{name}'" in each.message for each in self._result.findings)
        if isinstance(error, KernelMissingError):
            yield findings.missing_kernel(name, error)
        elif isinstance(error, TraceEnded) and eager:
            yield findings.needs_values(self._context, name)
        elif isinstance(error, ModelError) and error.__cause__ is None:
            yield findings.unbound(self._context.plan, name, error)
        elif isinstance(error, ModelError) and not refused:
            yield findings.failed_call(self._context, name, error, str(self._bucket))
        elif isinstance(error, CaptureError) and not refused:
            yield findings.other_result(self._context, name, error)

    def _watched(self, name: str, recorder: Recorder) -> dict[str, Any]:
        context, tracer = self._context, self._tracer
        region = context.plan.regions[name].declared
        generators = declared_generators(context.model, region)
        before = effects.layouts(context, name, self.values.environment)
        with (
            tracer.placement.judged() as met,
            watch(
                name, device_label=context.backend.name, allowed_generators=generators, root=context.model
            ) as watched,
        ):
            try:
                with recorder:
                    outputs = self.values.call(name)
                if not recorder.recording.calls and not any(flatten(value).leaves for value in outputs.values()):
                    raise CaptureError(f"region '{name}' records no operator and returns no tensor: nothing to replay")
                return outputs
            finally:
                self._found(*watched.findings, *self._effects(name, recorder.recording, before))
                self._found(*findings.host_tensors(name, met, tracer.host, tracer.label))

    def _effects(self, name: str, recording: Recording, before: Mapping[str, Layout]) -> list[Diagnostic]:
        context = self._context
        region = context.plan.regions[name].declared
        found = effects.input_writes(context, region, recording)
        found += effects.input_shapes(name, before, effects.layouts(context, name, self.values.environment))
        eager = {each for other in context.plan.regions.values() if other.eager for each in other.outputs}
        copies = {storage: made for storage, made in self.values.origins.items() if made in eager}
        found += effects.copy_writes(name, recording, copies)
        found += effects.result_writes(context, region, recording, self.values.origins, context.plan.results)
        host: Any = self._tracer.host
        traced = self._result.regions.items()
        readers = {each: trace.recording for each, trace in traced if not context.plan.regions[each].eager}
        self._changes[name] = effects.host_changes(name, host, readers, self._seen, self._code.loaded())
        return [findings.in_region(context.plan, name, each) for each in found]

    def _quietly(self, name: str, recorder: Recorder) -> dict[str, Any]:
        """Call a region whose hazards are nobody's concern; still as a capture would, if it reads values otherwise."""
        if self._context.plan.regions[name].eager:
            with watch(name, device_label=self._context.backend.name, root=self._context.model), recorder:
                return self.values.call(name)
        try:
            with recorder:
                return self.values.call(name)
        except ModelError as error:
            if not lacks_value(error.__cause__ or error):
                raise
            recorder.recording = self._result.regions[name].recording = Recording()
        with inside_capture(name), recorder:
            return self.values.call(name)

    def _found(self, *found: Diagnostic) -> None:
        if self._purpose == "judge":
            self._result.findings.extend(found)
