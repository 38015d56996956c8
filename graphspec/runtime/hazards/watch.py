"""One dry run under watch: what it reports, and how a finding is worded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from graphspec.errors import Diagnostic, Severity
from graphspec.hazards import (
    CODES,
    FUNCTIONS,
    GENERATOR,
    IN_A_LIBRARY,
    ON_HOST_NUMBERS,
    ON_HOST_TENSORS,
    OPERATORS,
    PARTS,
    PYTHON_KERNEL,
    REPEATED,
    REWRITTEN,
    SEEDED,
    TAGGED,
    UNSAFE,
    Hazard,
)
from graphspec.recording.python_kernels import has_python_kernel
from graphspec.recording.source import NOWHERE, ModuleNames, Site, module_stack, part_of_torch, site, within_torch
from graphspec.recording.unsafe import is_unsafe
from graphspec.runtime.hazards.capturing import inside_capture
from graphspec.runtime.hazards.conditions import (
    CONDITIONS,
    FunctionCall,
    function_name,
    makes_number,
    makes_on_host,
    tensors,
)
from graphspec.runtime.hazards.fake import TraceEnded, is_fake, lacks_value
from graphspec.runtime.hazards.generators import attribute_of, default_generators, drawn_from, same
from graphspec.runtime.hazards.modes import DispatchWatch, FunctionWatch
from graphspec.runtime.hazards.optimizer_hints import optimizer_hint
from graphspec.runtime.hazards.patches import CHECKPOINT, default_seeds, patched
from graphspec.runtime.hazards.streams import Streams
from graphspec.runtime.hazards.wording import advised, label, shown
from graphspec.runtime.holdings.parts import is_installed_file

if TYPE_CHECKING:
    from torch._ops import OpOverload

#: Reads a value to check it, on the CPU only (Onehot.cpp); its own row says when a device reads too.
_CHECKS_ON_CPU = frozenset({"nn.functional.one_hot"})


def _way_out(part: str) -> str | None:
    """Better advice where a part of torch reads a value for itself."""
    return PARTS.get(part) or (optimizer_hint() if part == "optim" else None)


@dataclass
class Outcome:
    """What a watched function returned."""

    result: Any = None


class Watch:
    """Collects the findings of one dry run. Made by `watch`."""

    def __init__(
        self,
        region: str,
        device_label: str,
        allowed_generators: Sequence[torch.Generator],
        name_of: Callable[[torch.Generator], str | None] | None,
        root: object,
        updated: Collection[str] = (),
        *,
        trains: bool = True,
    ) -> None:
        self.trains = trains
        self.restores_streams = False  # activation checkpointing saves the state of generators, to draw the same again
        self.region = region
        self.device_label = device_label.partition(":")[0]
        self.streams = Streams(self.report)
        self._allowed = (*default_generators(), *allowed_generators)
        self._name_of = name_of or partial(attribute_of, root)
        self._root = root
        self._updated = updated
        self._names: ModuleNames | None = None
        self._found: dict[tuple[str, Site, str], Diagnostic] = {}
        self._hosts: MutableMapping[Tensor, bool] = WeakIdKeyDictionary()
        self._function: FunctionCall | None = None
        self._muted: frozenset[str] = frozenset()  # codes already reported by the call that is running
        self._rows: dict[Any, tuple[str, tuple[Hazard, ...], bool]] = {}

    @property
    def findings(self) -> list[Diagnostic]:
        """Every finding so far, once for each source line and operator, in order of appearance."""
        return list(self._found.values())

    def is_host(self, tensor: Any) -> bool:
        """Whether a tensor was made on the host, of numbers: reading it waits for no device, and it is frozen."""
        return isinstance(tensor, Tensor) and tensor in self._hosts

    def report(self, hazard: Hazard, operator: str, at: Site | None = None) -> None:
        """Adds a finding, unless the running call has reported its kind, or it is known.

        On the CPU every device is judged: what one kind of device refuses is a warning, what both refuse an error.
        """
        device = self.device_label
        if hazard.code in self._muted or (device != "cpu" and device not in hazard.refused_by):
            return
        place = at or site()
        only_one = device == "cpu" and len(hazard.refused_by) == 1
        where = f" at {place}" if place.line else ""
        who = f"; a capture on {hazard.refused_by[0]} refuses it" if only_one else ""
        message = f"region {self.region!r} {hazard.does}: {operator}{where}{self._train_mode()}{who}"
        severity: Severity = "warning" if only_one or hazard.warns else "error"
        file, line = (place.file, place.line) if place.line else (None, None)
        hint = IN_A_LIBRARY if hazard.code in REWRITTEN and is_installed_file(place.file) else hazard.hint
        hint = (_way_out(part_of_torch()) or hint) if hazard.code == "GS701" else hint
        found = Diagnostic(hazard.code, message, severity, file, line, hint=hint)
        self._found.setdefault((hazard.code, place, operator), found)

    @contextmanager
    def function(self, call: FunctionCall) -> Iterator[Outcome]:
        """Judges a torch function before it runs, and is the place of every operator it calls."""
        name = function_name(call.target)
        outer = self._function, self._muted
        reported = self._judge_function(name, call)
        quiet = {*reported, "GS701"} if name in _CHECKS_ON_CPU else reported
        self._function, self._muted = call, self._muted.union(quiet)
        outcome = Outcome()
        try:
            yield outcome
            if makes_number(call, outcome.result) or makes_on_host(call, outcome.result):
                self._hosts[outcome.result] = True
        except Exception as error:
            if reported and any(is_fake(tensor) for tensor in tensors(call.args)):
                raise TraceEnded from error
            raise
        finally:
            self._function, self._muted = outer

    def operator(self, op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Judges an operator of the dispatcher, and runs it."""
        name, rows, draws = self._row(op)
        call = FunctionCall(op, args, kwargs, self.is_host, self._function)
        for row in rows:
            if self._applies(row, call):
                self.report(advised(row, name, call.function), label(name, call))
        if draws:
            self._judge_generator(name, call)
        if (
            self.restores_streams
            and (draws or torch.Tag.nondeterministic_seeded in op.tags)
            and within_torch(CHECKPOINT)
        ):
            self.report(REPEATED, label(name, call))
        try:
            result = op(*args, **kwargs)
        except Exception as error:
            if not lacks_value(error):
                raise
            if self._is_cpu_check(call):
                return 0  # passes both of its checks: 0 <= smallest, largest < num_classes
            if not any(self._applies(row, call) for row in rows):
                self.report(TAGGED["dynamic_output_shape"], label(name, call))
            raise TraceEnded from error
        self._follow_hosts(args, result)
        return result

    def inside(self) -> FunctionWatch:
        """To be entered around code of the user's that an operator calls: torch has left every mode by then."""
        return FunctionWatch(self)

    @contextmanager
    def python_call(self, hazard: Hazard, name: str) -> Iterator[None]:
        """Reports a Python call, and nothing of what it does inside."""
        self.report(hazard, name)
        outer, self._muted = self._muted, frozenset(CODES)
        try:
            yield
        finally:
            self._muted = outer

    def _judge_function(self, name: str, call: FunctionCall) -> frozenset[str]:
        rows = [row for table in (FUNCTIONS, ON_HOST_NUMBERS, ON_HOST_TENSORS) if (row := table.get(name)) is not None]
        reported = [row for row in rows if self._applies(row, call)]
        for row in reported:
            self.report(row, shown(name))
        return frozenset(row.code for row in reported)

    def _applies(self, row: Hazard, call: FunctionCall) -> bool:
        if row.code in ("GS701", "GS711"):
            read = list(tensors(call.args))
            if read and all(self.is_host(tensor) for tensor in read):
                return False  # a number of the host costs nothing to read there
        elif row.when in ("number_to_device", "host_to_device") and not self.is_host(call.args[0]):
            return False
        return row.when is None or CONDITIONS[row.when](call)

    def _is_cpu_check(self, call: FunctionCall) -> bool:
        """Whether a function reads a value here to check it, and reads nothing on a device."""
        if call.within is None or call.function not in _CHECKS_ON_CPU:
            return False
        return not self._applies(FUNCTIONS[call.function], call.within)

    def _row(self, op: OpOverload) -> tuple[str, tuple[Hazard, ...], bool]:
        known = self._rows.get(op)
        if known is None:
            name = str(op.name()).partition(".")[0]
            tagged = tuple(row for tag, row in TAGGED.items() if getattr(torch.Tag, tag) in op.tags)
            unsafe = (UNSAFE,) if is_unsafe(op) else ()
            if not unsafe and name not in self._updated and has_python_kernel(op):
                unsafe = (PYTHON_KERNEL,)
            draws = "Generator" in str(op._schema)
            known = (name, OPERATORS.get(name, tagged[:1]) or unsafe, draws)
            self._rows[op] = known
        return known

    def _judge_generator(self, operator: str, call: FunctionCall) -> None:
        for generator in drawn_from(call):
            if any(same(generator, known) for known in self._allowed):
                continue
            name = self._name_of(generator)
            row = GENERATOR
            if name is not None:
                row = replace(row, does=f"{row.does}, {name}", hint=row.hint.replace("model.NAME", name))
            self.report(row, label(operator, call))

    def _follow_hosts(self, args: tuple[Any, ...], result: Any) -> None:
        if self._hosts and isinstance(result, Tensor):
            read = list(tensors(args))
            if read and all(self.is_host(tensor) for tensor in read):
                self._hosts[result] = True

    def _train_mode(self) -> str:
        stack = module_stack()
        if not stack or not stack[-1].training:
            return ""
        if self._names is None:
            self._names = ModuleNames(self._root)
        name = next(iter(self._names.of(stack[-1])), type(stack[-1]).__name__)
        return f", which came from train mode of {name}"


@contextmanager
def watch(
    region: str,
    *,
    device_label: str = "cpu",
    allowed_generators: Sequence[torch.Generator] = (),
    name_of: Callable[[torch.Generator], str | None] | None = None,
    root: object = None,
    dispatched: bool = True,
    updated: Collection[str] = (),
    trains: bool = True,
) -> Iterator[Watch]:
    """Watches one dry run of ``region`` in this thread; its findings are those of the `Watch` it gives.

    ``device_label`` is the device that the region is meant for: "cpu" (judged for every device), "cuda" or "npu".
    ``allowed_generators`` are the declared ones. ``root`` is what the factory returned, for the names of modules;
    ``name_of`` names the attribute that holds a generator, by default one of ``root``. Execution goes on after a
    finding, so that all come at once; on fake tensors, which have no values, it may end with `TraceEnded`.

    ``updated`` are operators that updates refresh. ``trains``: it may compute gradients of the model. Not
    ``dispatched``: operators are handed to `Watch.operator` by a `Recorder`, which sees them anyway.

    Open it inside of a FakeTensorMode, never around one. Other dispatch modes may be inside or outside of it.
    """
    session = Watch(region, device_label, allowed_generators, name_of, root, updated, trains=trains)
    seeds = default_seeds()
    dispatch = DispatchWatch(session) if dispatched else nullcontext()
    with inside_capture(region), patched(session), FunctionWatch(session), dispatch:
        try:
            yield session
        except Exception as error:
            if lacks_value(error):
                raise TraceEnded from error
            raise
        finally:
            session.streams.report_unjoined()
            if default_seeds() != seeds and not any(found.code == SEEDED.code for found in session.findings):
                session.report(SEEDED, "torch.manual_seed", NOWHERE)
