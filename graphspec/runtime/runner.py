"""An opened spec: captured graphs over one model, run sequence by sequence."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch

from graphspec import plan as plans
from graphspec.compiler import compile_spec
from graphspec.errors import DeviceError, InputError, MismatchError, ReplayError, WeightsError
from graphspec.loading import load_plan
from graphspec.plan import Bucket
from graphspec.runtime.building.build import build_model, refuse_other_devices, refuse_other_modes
from graphspec.runtime.building.devices import open_backend, without_broken_torch_npu
from graphspec.runtime.building.weights import load_weights, read_weights
from graphspec.runtime.hazards import capturing
from graphspec.runtime.holdings.storages import outside_inference
from graphspec.runtime.inline.applied import Applied
from graphspec.runtime.laws.registry import unbound
from graphspec.runtime.opened.collections import no_full_collections
from graphspec.runtime.opened.compilers import compiled_on, uncompiled
from graphspec.runtime.opened.context import CapturedRegion, Context, GraphInfo, Progress
from graphspec.runtime.opened.regions import UnboundError, bind_regions
from graphspec.runtime.opened.states import States
from graphspec.runtime.padding.law import padded_runs
from graphspec.runtime.ranks import agree
from graphspec.runtime.replay.commons import Commons
from graphspec.runtime.replay.failures import device_failures
from graphspec.runtime.replay.gate import Gate
from graphspec.runtime.replay.request import Remembered
from graphspec.runtime.replay.sequence import BoundSequence, Opened
from graphspec.runtime.replay.stats import Stats
from graphspec.runtime.replay.variants import Variants
from graphspec.runtime.values.buffers import Buffers
from graphspec.runtime.values.memory import Memory
from graphspec.runtime.verify.net import Net
from graphspec.spec import Spec


def open_spec(
    path: str | Path | Spec | plans.Plan,
    *,
    model: Any = None,
    device: str | None = None,
    capture: bool = True,
    pool: Runner | None = None,
    progress: Progress | None = None,
    compile: bool = True,
    compiling: Callable[[plans.Graph], None] | None = None,
) -> Runner:
    """Open a spec: build (or take) the model, allocate every buffer, and capture every graph.

    ``model`` replaces what the factory would return. ``device`` overrides the spec's. With ``capture=False`` nothing
    is captured until `Runner.capture`. With ``compile=False`` regions that name a compiler are captured as they are;
    ``compiling`` is called with each graph that has to be compiled, which takes minutes.
    ``pool`` is a runner whose pools are shared: those of the same name are one, and
    the others are taken in order. The two take turns, and closing one leaves the other as it is.

    Raises SpecError (the file), ModelError (the user's code), WeightsError, HazardError (what a graph cannot repeat),
    CaptureError and DeviceError.
    """
    if (region := capturing()) is not None:
        raise ReplayError(f"a spec cannot be opened while region '{region}' is being captured")
    plan = _compiled(path)
    if pool is not None:
        _refuse_no_runner(pool)
    backend = open_backend(device or _device_of(plan, pool), plan)
    plan, warnings = compiled_on(plan, backend.name) if compile else (uncompiled(plan), [])
    try:
        with without_broken_torch_npu(), outside_inference(), device_failures(backend), no_full_collections():
            built = build_model(plan, backend.device) if model is None else model
            buffers = Buffers(plan, backend.device)
            refuse_other_devices(built, backend.device)
            refuse_other_modes(model, plan)
            regions, wrong = bind_regions(plan, built)
            _refuse_unbound(plan, wrong)
            buffers.adopt_inputs(built)
            turn = None if pool is None else pool._context.shared.turn
            context = Context(
                plan, built, regions, buffers, backend, warnings, turn=turn, compiling=compiling or (lambda _: None)
            )
            runner = Runner(context, progress)
            if pool is not None:
                runner._share(pool)
        if capture:
            runner.capture()
    except BaseException:
        with contextlib.suppress(Exception):  # a second failure would only hide the first
            backend.close()
        raise
    return runner


def _refuse_no_runner(pool: Any) -> None:
    if not isinstance(pool, Runner):
        message = f"pool takes a runner, and a {type(pool).__name__} came"
        raise InputError(message, hint="give what graphspec.open returned for the other spec")
    pool._gate.refuse_other_process()
    if pool._gate.closed:
        raise ReplayError(
            "the runner whose pools are to be shared is closed", hint="open it again, or leave `pool` out"
        )


def _device_of(plan: plans.Plan, pool: Runner | None) -> str:
    """The spec's device; where it leaves that open, that of the runner with which pools are shared."""
    return plan.device if pool is None or plan.device != "auto" else str(pool.device)


def _refuse_unbound(plan: plans.Plan, wrong: list[UnboundError]) -> None:
    if wrong:
        raise MismatchError(unbound(plan, wrong))


def _compiled(path: str | Path | Spec | plans.Plan) -> plans.Plan:
    if isinstance(path, plans.Plan):
        return path
    return compile_spec(path) if isinstance(path, Spec) else load_plan(Path(path))


class Runner:
    """Runs the sequences of an opened spec by replaying captured graphs. A context manager.

    Runs from several threads follow each other. A runner belongs to its process, and is neither copied nor pickled.
    """

    def __init__(self, context: Context, progress: Progress | None = None) -> None:
        self._context = context
        self._gate = Gate(context.backend, context.shared)
        self._memory = Memory(context.plan, context.buffers, context.shared.clock)
        self.stats = Stats()
        self._variants = Variants(context, self._memory, self.stats, progress, padded_runs)
        self._gate.leave = self._variants.leave
        self.state = States(context.plan, context.buffers, self._memory, context.shared)
        net = Net(context, self.state, self._gate, self.stats)
        inline = any(region.declared.inline for region in context.plan.regions.values())
        #: The inline regions of the spec, at work on the model until the runner is closed; None where it has none.
        self.inline = Applied(context.plan, context.model, context.backend, own=False) if inline else None
        plainly = contextlib.nullcontext if self.inline is None else self.inline.paused
        opened = Opened(context, self._memory, self._gate, self._variants, Remembered(), self.stats, net, plainly)
        self.sequences: Mapping[str, BoundSequence] = {
            name: BoundSequence(opened, sequence) for name, sequence in context.plan.sequences.items()
        }
        self._single = next(iter(self.sequences.values())) if len(self.sequences) == 1 else None

    # -- running

    def run(self, **inputs: Any) -> dict[str, Any]:
        """Run the spec's one sequence.

        Takes the input buffers as tensors and the params as Python values, by name; returns the results by name.
        ``sizes={"batch": 8}`` states sizes that no input has, or larger ones than those of the inputs, for whose bucket
        the run then pads; results still have the sizes of the inputs.
        Raises InputError (nothing was run), GuardError (something was moved: see `recapture`), OrderError.
        """
        return (self._single or self._only()).served(inputs)

    def verify(self, **inputs: Any) -> dict[str, Any]:
        """Run the spec's one sequence twice: by the model's own code, which leaves no trace, and by its graphs.

        Both begin from the same inputs, params, states and random numbers, and must give the same within the tolerances
        of `check`. Results and states are those of the graphs. Raises CheckError naming what differs, where and by how
        much; states are then as before. ``check: {every: N}`` does this on every N-th run of a sequence, and `stats`
        has what it cost.
        """
        return self._only().verify(**inputs)

    def __getitem__(self, name: str) -> BoundSequence:
        """A named sequence, to be called with its inputs. Raises ReplayError for another name."""
        if name in self.sequences:
            return self.sequences[name]
        have = ", ".join(self.sequences)
        close = difflib.get_close_matches(str(name), self.sequences, 1)
        also = f"'{name}' is a region; " if name in self._context.plan.regions else ""
        hint = f"{also}the sequences are {have}" + (f"; did you mean '{close[0]}'?" if close else "")
        raise ReplayError(f"there is no sequence '{name}'", hint=hint)

    def sample(self, sequence: str, sizes: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, Any]:
        """Inputs and params of a sequence as the spec's `sample` and `default` say, the same for the same seed.

        ``sizes`` gives the bucketed dims; without it they are the largest.
        """
        context, plan = self._context, self[sequence].plan
        full = {**dict(plan.buckets[-1].sizes), **(sizes or {})}
        made: dict[str, Any] = dict(context.sample_inputs(plan.inputs, full, seed))
        params = context.default_params(Bucket(tuple(full.items())), {}, seed)
        return made | {name: params[name] for name in plan.params}

    @property
    def exemplary(self) -> frozenset[str]:
        """The params that samples take from an example of the spec (`sample: {make: ...}`), with what fits them."""
        return frozenset(self._context.examples.params)

    def reset(self) -> None:
        """Put every state back to its initial content."""
        with self.entered(captured=not self._gate.released):
            self.state.reset()

    # -- capture

    def capture(self, *, padding: bool = True) -> None:
        """Capture every graph that has not been captured yet, or was released.

        ``padding``: show that padded rows reach nothing. Without it nobody does: `graphspec run` does so by itself.
        """
        self._variants.asked = padded_runs if padding else None
        with self.entered(captured=False), without_broken_torch_npu():
            if not self._gate.captured:
                agree(self._context.plan)
                self._variants.capture()
                self._gate.captured, self._gate.released = True, False

    def release(self) -> None:
        """Give the memory of all graphs and pools back, and keep buffers, states and what runs remember.

        A run is an error until `capture` makes the graphs again. Lent results and values that a later run may read keep
        their content. Releasing twice is fine.
        """
        with self.entered(captured=False):
            if self._gate.captured:
                self._gate.captured, self._gate.released = False, True
                self._variants.release()
                self._context.backend.give_back()

    def recapture(self) -> None:
        """Capture everything anew, over the tensors the model has now. States keep their content."""
        with self.entered():
            self._variants.recapture()
            if self.inline is not None:
                self.inline.recapture()

    def load_weights(self, weights: str | Path | Mapping[str, torch.Tensor]) -> None:
        """Copy new weights into the model, in place, all or nothing; the captured graphs use them.

        Raises WeightsError naming every tensor that does not fit; then the old weights are untouched.
        """
        with self.entered(captured=not self._gate.released):
            kinds: Any = (str, Path, Mapping)  # what the types promise is not what comes
            if not isinstance(weights, kinds):
                message = f"load_weights takes a file or a mapping of tensors, and a {type(weights).__name__} came"
                raise WeightsError(message, hint="give a path, or what state_dict() returns")
            given = weights if isinstance(weights, Mapping) else read_weights(Path(weights))
            load_weights(self._context.model, given)

    # -- what is there

    @property
    def plan(self) -> plans.Plan:
        """The compiled spec."""
        return self._context.plan

    @property
    def model(self) -> Any:
        """What the factory returned."""
        return self._context.model

    @property
    def device(self) -> torch.device:
        """Where the model, the buffers and the graphs are."""
        return self._context.device

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was noticed at capture and is no error."""
        inline = () if self.inline is None else self.inline.warnings
        return tuple(dict.fromkeys((*self._context.warnings, *self._context.backend.notes, *inline)))

    @property
    def graphs(self) -> tuple[GraphInfo, ...]:
        """Every captured graph of a sequence, in capture order."""
        return tuple(captured.info(variant) for variant, captured in self._variants.all_regions())

    def graph(self, region: str, sizes: Mapping[str, int] | None = None) -> CapturedRegion:
        """One captured graph, for measuring a bare replay: ``runner.graph("decode", {"batch": 1}).replay()``."""
        self._gate.admit()
        graphs = next(iter(self._variants))
        for (name, bucket), captured in graphs.regions.items():
            if name == region and dict(bucket.sizes) == dict(sizes or {}):
                return captured
        have = ", ".join(f"{name} ({bucket})" for name, bucket in graphs.regions)
        raise ReplayError(f"there is no graph of region '{region}' at {dict(sizes or {})}", hint=f"there are {have}")

    def poison(self) -> None:
        """Overwrite static inputs and graph memory that no later run may read, to bring stale reads to light."""
        with self.entered(), torch.no_grad():
            self._memory.clock.tick(self._memory.poisoned)
            self._context.buffers.poison()
            if len(self.sequences) == 1:
                self._context.backend.poison()

    # -- life

    def close(self) -> None:
        """Free every graph, pool and buffer. Closing twice is fine; running afterwards is an error.

        Raises DeviceError if the device failed meanwhile; everything is freed also then.
        """
        self._gate.closed = True
        with device_failures(self._context.backend), contextlib.ExitStack() as stack:
            stack.callback(self._context.backend.close)
            if self._gate.commons is not None:
                stack.callback(self._gate.commons.forget, self._gate)
            stack.callback(self._variants.clear)
            if self.inline is not None:
                self.inline.undo()

    def __enter__(self) -> Runner:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(DeviceError):  # it would only hide the error that ends the block
            self.close()

    def __copy__(self) -> NoReturn:
        raise ReplayError("a runner cannot be copied: its graphs hold addresses", hint="open the spec again")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise ReplayError("a runner cannot be pickled: its graphs hold addresses", hint="open the spec again there")

    def _share(self, other: Runner) -> None:
        """Capture into the pools of another runner. Before anything is captured."""
        with other._gate.turn():
            commons = other._gate.commons
            if commons is None:
                commons = other._gate.commons = Commons(other.plan.pools)
                other._context.backend.share(None, {name: name for name in other.plan.pools})
                commons.members.add(other._gate)
            self._context.backend.share(other._context.backend, commons.places(self.plan.pools))
            self._gate.commons = commons
            commons.members.add(self._gate)
            commons.enter(other._gate)

    def _only(self) -> BoundSequence:
        if self._single is not None:
            return self._single
        names = ", ".join(f'runner["{name}"](...)' for name in self.sequences)
        raise InputError("this spec has several sequences", hint=f"call one of them: {names}")

    def entered(self, *, captured: bool = True) -> AbstractContextManager[None]:
        """Around anything that uses the graphs: one thread at a time, and alone with the model."""
        return self._gate.entered(captured=captured)
