"""Inline regions applied to a model: who answers its modules' calls, by graphs, by lessons, or by their own code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from graphspec.backends.base import Backend
from graphspec.errors import CaptureError, DeviceError, HazardError, InputError, MismatchError, ModelError, ReplayError
from graphspec.finding import placed
from graphspec.plan import Bucket, Plan
from graphspec.runtime.hazards import capturing
from graphspec.runtime.hazards.surroundings import transform
from graphspec.runtime.inline.arguments import Arguments
from graphspec.runtime.inline.capturing import Captured, capture_pass
from graphspec.runtime.inline.found import find_modules, inner_hooks
from graphspec.runtime.inline.installed import Installed
from graphspec.runtime.inline.lessons import Call, Lesson, Pass, School
from graphspec.runtime.inline.signature import Outline, Signature
from graphspec.runtime.inline.units import Claims, Filling, Unit
from graphspec.runtime.laws.registry import unbound
from graphspec.runtime.opened.context import GraphInfo
from graphspec.runtime.opened.process import Forks
from graphspec.runtime.opened.sharing import SharedModel
from graphspec.runtime.replay.failures import device_failures

if TYPE_CHECKING:
    from typing_extensions import Self

#: How many passes are captured; beyond, calls of other signatures run eagerly.
MOST_PASSES = 16
#: How often a further pass runs eagerly before it is captured: the last batch of an epoch comes once.
PATIENCE = 2


@dataclass
class InlineStats:
    """Counts over all modules.

    ``replays`` are calls served by graphs, ``fallbacks`` calls that ran eagerly although their region has graphs: of
    another signature, or inside of something that a replay takes no part in. ``captures`` counts passes captured.
    """

    replays: int = 0
    fallbacks: int = 0
    captures: int = 0
    why: dict[str, int] = field(default_factory=dict)


class Applied:
    """Inline regions at work on a model, until `undo`. A context manager."""

    def __init__(self, plan: Plan, model: Any, backend: Backend, *, own: bool = True) -> None:
        self.plan = plan
        self.model = model
        self.stats = InlineStats()
        self._backend = backend
        self._own = own
        self._shared = SharedModel.of(model)
        self._forks = Forks.count
        self._paused = False
        self._undone = False
        self._school = School()
        self._units: dict[Call, list[Unit]] = {}
        self._captured: list[Captured] = []
        self._refused: set[Call] = set()
        self._warned: list[str] = []
        found, wrong = find_modules(plan, model)
        if wrong:
            raise MismatchError(unbound(plan, wrong))
        self._regions = [region for region, _, _ in found]
        self._installed = [
            Installed(module, name, partial(self._called, number)) for number, (_, name, module) in enumerate(found)
        ]
        self._outlines = [Outline(module) for _, _, module in found]
        self._refuse_hooks()
        with contextlib.ExitStack() as stack:
            for installed in self._installed:
                installed.install()
                stack.callback(installed.undo)
            stack.pop_all()

    # -- what a caller does with it

    @property
    def modules(self) -> tuple[str, ...]:
        """The paths of the modules whose calls are served."""
        return tuple(installed.name for installed in self._installed)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was noticed at capture and is no error."""
        found = [message for captured in self._captured for message in captured.context.warnings]
        return tuple(dict.fromkeys((*found, *self._warned, *self._backend.notes)))

    @property
    def graphs(self) -> tuple[GraphInfo, ...]:
        """Every captured graph, in capture order: the forwards of a pass, then the backwards."""
        sets = [each.graphs for each in self._captured]
        return tuple(captured.info(graphs.variant) for graphs in sets for captured in graphs.regions.values())

    def recapture(self) -> None:
        """Forget all graphs: the next calls teach anew, and are captured over the tensors the model has then."""
        self._drop()
        self._outlines = [Outline(installed.module) for installed in self._installed]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, modules run their own code, and nothing is learned."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def undo(self) -> None:
        """Give every module its class back and free every graph. Doing it twice is fine."""
        if self._undone:
            return
        self._undone = True
        for installed in reversed(self._installed):
            installed.undo()
        self._drop()
        if self._own:
            with device_failures(self._backend):
                self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.undo()
            return
        with contextlib.suppress(DeviceError):  # it would only hide the error that ends the block
            self.undo()

    def __copy__(self) -> NoReturn:
        raise ReplayError("what was applied cannot be copied: its graphs hold addresses", hint="apply the spec again")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()

    # -- one call

    def _called(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer to a call of module ``number``."""
        forward = self._installed[number].forward
        if self._paused or self._undone or capturing() is not None:
            return forward(*args, **kwargs)
        declared = self.plan.regions[self._regions[number]].declared
        why = _outside()
        given = Arguments(args, kwargs)
        signature = self._outlines[number].signature(given, self._backend.device)
        call = number, signature
        why = why or self._unfit(given, signature, backward=declared.backward)
        if why is None:
            with self._shared.lock:
                units = self._units.get(call)
                if units is None and (due := self._due(call)) is not None:
                    self._capture_all(due)
                    units = self._units.get(call)
                if units is not None:
                    self.stats.replays += 1
                    return next((unit for unit in units if unit.free), units[0])(given)
        if self._captured:
            if declared.on_miss == "error":
                raise self._refusal(number, signature, why)
            self.stats.fallbacks += 1
            why = why or "another signature"
            self.stats.why[why] = self.stats.why.get(why, 0) + 1
        if why is not None and why != "another signature":
            return forward(*args, **kwargs)
        lesson = self._school.learn(call, given, backward=declared.backward and signature.differentiates)
        try:
            result = forward(*args, **kwargs)
        except BaseException:
            self._school.forget()  # a call that failed is no part of a pass
            raise
        self._school.returned(lesson, result)
        return result

    def _unfit(self, given: Arguments, signature: Signature, *, backward: bool) -> str | None:
        """Why no graph can serve a call, whatever was learned."""
        if signature.differentiates and not backward:
            return "gradients are wanted, and the region does not say `backward: true`"
        if any(leaf.device != self._backend.device for leaf in given.leaves):
            return "an argument lies on another device"
        if any(leaf.layout is not torch.strided or type(leaf) not in _PLAIN for leaf in given.leaves):
            return "an argument is no plain tensor"
        if Forks.count != self._forks:
            return "graphs belong to the parent process"
        return None

    def _due(self, call: Call) -> Pass | None:
        """The pass to capture now: the first there is; a further one when it comes again and again."""
        if len(self._captured) >= MOST_PASSES or call in self._refused:
            return None
        due = self._school.due(call, PATIENCE if self._captured else 1)
        return due if due is not None and all(self._is_as_taught(lesson) for lesson in due.lessons) else None

    def _is_as_taught(self, lesson: Lesson) -> bool:
        """Whether a module is still in the mode of its lesson, with the same parameters frozen."""
        now = self._outlines[lesson.module]
        return lesson.signature.parameters == now.thawed() and lesson.signature.training == now.modes()

    def _refusal(self, number: int, signature: Signature, why: str | None) -> InputError:
        known = [other for (module, other) in self._units if module == number]
        if why is None and known:
            why = signature.difference(known[-1])
        name = f"region '{self._regions[number]}' ({self._installed[number].name})"
        message = f"{name} is called as it was not captured: {why or 'it was not called before the capture'}"
        return InputError(message, hint="`on_miss: eager` runs such calls eagerly, and counts them")

    # -- capture

    def _capture_all(self, due: Pass) -> None:
        """Capture a pass. A further one that cannot be is warned of, and goes on as every other signature does."""
        if not self._captured:
            self._capture(due)
            return
        try:
            self._capture(due)
        except (HazardError, CaptureError, ModelError) as error:
            self._refused.update(lesson.call for lesson in due.lessons)
            self._warned.append(f"a further signature runs eagerly, since it cannot be captured: {error}")

    def _capture(self, due: Pass) -> None:
        for number in dict.fromkeys(lesson.module for lesson in due.lessons):
            self._outlines[number] = Outline(self._installed[number].module)
        self._refuse_hooks()
        try:
            with device_failures(self._backend):
                captured = capture_pass(
                    self.plan,
                    self.model,
                    self._backend,
                    due,
                    self._installed,
                    self._regions,
                    f"inline {self.stats.captures + 1}" if self.stats.captures else "inline",
                )
        except HazardError as error:
            found = [placed(self.plan.document, each) for each in error.diagnostics]
            raise type(error)(found) from error.__cause__
        self._captured.append(captured)
        self.stats.captures += 1
        claims = Claims()
        for call, unit in _units(captured, claims):
            self._units.setdefault(call, []).append(unit)

    def _drop(self) -> None:
        self._units.clear()
        self._refused.clear()
        self._school.forget()
        captured, self._captured = self._captured, []
        with device_failures(self._backend):
            for each in captured:
                each.graphs.release(self._backend)

    def _refuse_hooks(self) -> None:
        """Raise HazardError for hooks inside of the modules. Their own are run by their callers, around a replay."""
        found = [
            finding
            for region, installed in zip(self._regions, self._installed, strict=True)
            if self.plan.regions[region].declared.hooks != "allow"
            for finding in inner_hooks(installed.name, installed.module)
        ]
        if found:
            raise HazardError(dict.fromkeys(found))


_PLAIN = (torch.Tensor, nn.Parameter)


def _outside() -> str | None:
    """What is going on around a call that a replay would take no part in."""
    if torch._C._current_graph_task_id() != -1:
        return "it is called inside of a backward, as checkpoints do"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "hooks on saved tensors are on, as checkpoints have them"
    if torch.compiler.is_compiling():
        return "it is being compiled"
    return transform()


def _units(captured: Captured, claims: Claims) -> Iterator[tuple[Call, Unit]]:
    context, bucket = captured.context, Bucket()
    for part in context.parts:
        slots = part.inputs, tuple(part.gradients.values())
        inputs, gradients = (
            [Filling(slot, buffer := context.buffers.view(slot.name, bucket), slot.view(buffer)) for slot in each]
            for each in slots
        )
        forward = captured.graphs.regions[part.name, bucket]
        backward = captured.graphs.regions.get((part.backward, bucket))
        unit = Unit(part, forward, backward, captured.joints[part.name], (inputs, gradients), captured.guard, claims)
        yield part.lesson.call, unit
