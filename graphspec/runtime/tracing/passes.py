"""One pass: every region of a spec called once, in replay order, on fake tensors of one bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from graphspec.errors import CaptureError, Diagnostic, ModelError
from graphspec.plan import Bucket
from graphspec.runtime import effects
from graphspec.runtime.capture import check_output
from graphspec.runtime.context import Context
from graphspec.runtime.hazards import TraceEnded, inside_capture, watch
from graphspec.runtime.hazards.fake import lacks_value
from graphspec.runtime.recording import Recorder, Recording
from graphspec.runtime.regions import attribute
from graphspec.runtime.samples import alternative_param
from graphspec.runtime.source import ModuleNames
from graphspec.runtime.tracing import findings
from graphspec.runtime.tracing.fake import FakeWorld
from graphspec.runtime.tracing.host import HostState
from graphspec.runtime.tracing.kernels import KernelMissingError
from graphspec.runtime.tracing.placement import Meeting, Placement
from graphspec.runtime.trees import UnknownTypeError, flatten
from graphspec.runtime.write_back import StaleViews, apart

#: ``warm-up`` reports nothing and lets the model create what it creates lazily; ``judge`` reports; ``again`` does not.
Purpose = Literal["warm-up", "judge", "again"]

_DEVICE = torch.ops.prim.device.default


@dataclass
class RegionTrace:
    """What one region did in one pass. ``ended``: a value or a kernel was missing before it returned.

    ``origins`` says, when the region began, which region made a storage.
    """

    recording: Recording
    origins: Mapping[int, str]
    outputs: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


@dataclass
class PassResult:
    """Every region that was called, the params they were called with, and what was found."""

    params: Mapping[str, Any]
    regions: dict[str, RegionTrace] = field(default_factory=dict)
    findings: list[Diagnostic] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every region returned."""
        return not any(region.ended for region in self.regions.values())


class _FakeRecorder(Recorder):  # type: ignore[no-untyped-call]
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
                Pass(self, bucket, purpose, result).run()
        finally:
            self.host.restore()
        return result

    def _params(self, bucket: Bucket, run: int) -> dict[str, Any]:
        context = self.context
        params = context.default_params(bucket, {})
        if run == 1:
            return params
        largest = dict(bucket.sizes) | dict(context.plan.constants)
        return {
            name: value
            if name in self.specialized
            else alternative_param(context.spec.params[name], value, largest)
            for name, value in params.items()
        }


class Pass:
    """The named values of one pass, and the calls on them."""

    def __init__(self, tracer: Tracer, bucket: Bucket, purpose: Purpose, result: PassResult) -> None:
        self._tracer = tracer
        self._context = tracer.context
        self._bucket = bucket
        self._purpose = purpose
        self._result = result
        self.environment: dict[str, Any] = dict(self._start())
        self._origins: dict[int, str] = {}
        self._stale = StaleViews()
        self._seen: set[str] = set()  # changes of the host that are reported, or no region's to answer for

    def run(self) -> None:
        """Call every region, or make its outputs as declared where it cannot be called."""
        for name in self._tracer.order():
            region = self._context.spec.regions[name]
            reads = self._context.plan.regions[name].reads
            missing = [wire.value for wire in reads if wire.value not in self.environment]
            if name not in self._context.regions:
                self.use_declared(name)
            elif missing:
                self._found(findings.untraced(self._context, name, missing))
                self.use_declared(name)
            else:
                if self._purpose == "judge":
                    self._tracer.progress(f"trace {name}" + (f" {self._bucket}" if self._bucket.sizes else ""))
                self._region(name, eager=region.eager)

    def _start(self) -> Iterator[tuple[str, Any]]:
        yield from self._result.params.items()
        for name, buffer in self._context.spec.buffers.items():
            if buffer.role != "output" and buffer.attr is None:
                # An alias: a region that transposes or resizes it in place changes its own.
                yield name, self._context.buffers.view(name, self._bucket).detach()

    def _region(self, name: str, *, eager: bool) -> None:
        region = self._context.spec.regions[name]
        within = any(update.within is not None for update in region.updates)
        recorder = _FakeRecorder(name, self._tracer.names if within else None)
        trace = RegionTrace(recorder.recording, dict(self._origins))
        self._result.regions[name] = trace
        call = self._quietly if eager or self._purpose != "judge" else self._watched
        try:
            trace.outputs = call(name, recorder)
        except TraceEnded as ended:
            trace.ended = True
            if isinstance(ended, KernelMissingError):
                self._found(findings.missing_kernel(name, ended))
            elif eager:
                self._found(findings.needs_values(self._context, name))
        except ModelError as error:
            trace.ended = True
            if not self._refused(name):  # what it did before it failed explains more than how it failed
                self._found(findings.failed_call(self._context, name, error))
        except CaptureError as error:
            trace.ended = True
            self._found(findings.other_result(self._context, name, error))
        if eager:
            host: Any = self._tracer.host
            self._seen |= effects.changed_names(host)
        if trace.ended:
            self.use_declared(name)
        self._note_origins(trace)

    def _watched(self, name: str, recorder: Recorder) -> dict[str, Any]:
        context, tracer = self._context, self._tracer
        region = context.spec.regions[name]
        generators = [attribute(context.model, path, f"region '{name}'") for path in region.generators]
        met: list[Meeting] = []
        watched = None
        try:
            with ExitStack() as stack:
                met = stack.enter_context(tracer.placement.judged())
                watched = stack.enter_context(
                    watch(name, device_label=context.backend.name, allowed_generators=generators, root=context.model)
                )
                stack.enter_context(recorder)
                return self.call(name)
        finally:
            if watched is not None:
                self._found(*watched.findings)
                self._found(*self._effects(name, recorder.recording))
            self._found(*findings.host_tensors(name, met, tracer.host, tracer.label))

    def _effects(self, name: str, recording: Recording) -> list[Diagnostic]:
        context = self._context
        region = context.spec.regions[name]
        results = {each for sequence in context.plan.sequences.values() for each in sequence.results}
        found = effects.input_writes(context, region, recording)
        found += effects.input_shapes(context, name, self._bucket, self.environment)
        found += effects.result_writes(context, region, recording, self._origins, results)
        host: Any = self._tracer.host
        errors, warnings = effects.host_changes(name, host, recording, self._seen)
        noticed = [Diagnostic("GS745", text, "warning") for text in warnings]
        return [findings.in_region(context.spec, name, each) for each in (*found, *errors, *noticed)]

    def _quietly(self, name: str, recorder: Recorder) -> dict[str, Any]:
        """Call a region whose hazards are nobody's concern; still as a capture would, if it reads values otherwise."""
        if self._context.spec.regions[name].eager:
            with watch(name, device_label=self._context.backend.name, root=self._context.model), recorder:
                return self.call(name)
        try:
            with recorder:
                return self.call(name)
        except ModelError as error:
            if not lacks_value(error.__cause__ or error):
                raise
            recorder.recording = self._result.regions[name].recording = Recording()
        with inside_capture(name), recorder:
            try:
                return self.call(name)
            except ModelError as error:
                if lacks_value(error.__cause__ or error):
                    raise TraceEnded from error
                raise

    def call(self, name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a region on named values, write back its states, and make its outputs known.

        ``given`` are values that differ from those of the pass.
        """
        context = self._context
        reads = [wire.value for wire in context.plan.regions[name].reads]
        self._found(*(findings.in_region(context.spec, name, each) for each in self._stale.findings(name, reads)))
        returned = context.regions[name]({**self.environment, **(given or {})})
        static = [output for output in returned if output in context.buffers.static]
        written = {output: context.buffers.view(output, self._bucket) for output in static}
        outputs = apart(returned, written)
        for output, value in outputs.items():
            self._take(name, output, value, written.get(output))
        self._stale.note(name, outputs.keys(), written, self.environment)
        return outputs

    def _take(self, name: str, output: str, value: Any, view: torch.Tensor | None) -> None:
        """Make one output known, if it is as declared; else as it is declared."""
        context, buffer = self._context, self._context.spec.buffers.get(output)
        self.environment[output] = value
        if buffer is None:
            try:
                flatten(value, place=f"output '{output}'")
            except UnknownTypeError as error:
                raise CaptureError(f"region '{name}': {error}") from None
            return
        try:
            check_output(name, buffer, value, context.shape(buffer.shape or (), self._bucket))
        except CaptureError as error:
            self._found(findings.other_result(context, name, error, output))
            self._declare(output)
            return
        if view is not None:
            self.environment[output] = view.copy_(value)

    def use_declared(self, name: str) -> None:
        """Make the outputs of a region known that are not, as far as they are declared."""
        for output in self._context.spec.regions[name].outputs:
            if output not in self.environment:
                self._declare(output)

    def _declare(self, output: str) -> None:
        """A fake tensor of the declared shape and dtype, if they are declared."""
        buffer = self._context.spec.buffers.get(output)
        self.environment.pop(output, None)
        if output in self._context.buffers.static:
            self.environment[output] = self._context.buffers.view(output, self._bucket)
        elif buffer is not None and buffer.shape is not None and buffer.dtype is not None:
            shape = self._context.shape(buffer.shape, self._bucket)
            dtype = getattr(torch, buffer.dtype)
            self.environment[output] = torch.empty(shape, dtype=dtype, device=self._context.device)

    def _note_origins(self, trace: RegionTrace) -> None:
        for name, value in trace.outputs.items():
            for leaf in flatten(value).leaves:
                self._origins.setdefault(leaf.untyped_storage()._cdata, name)

    def _refused(self, name: str) -> bool:
        return any(each.code.startswith("GS70") and f"'{name}'" in each.message for each in self._result.findings)

    def _found(self, *found: Diagnostic) -> None:
        if self._purpose == "judge":
            self._result.findings.extend(found)
