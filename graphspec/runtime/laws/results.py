"""Calls that did not return, and results that are not what the spec declares."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic, ModelError
from graphspec.hazards import CODES as HAZARDS
from graphspec.plan import BufferPlan, Plan
from graphspec.recording.calls import UncapturableError
from graphspec.recording.source import NOWHERE, Site, site_of
from graphspec.runtime.hazards import TraceEnded
from graphspec.runtime.hazards.fake import AddressAskedError, KernelMissingError
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.rehearsal.observation import EagerCall, NothingToReplayError, Observation, Rehearsal, Skipped
from graphspec.runtime.values.outputs import MisfitError
from graphspec.spec import Free

#: What the watch finds while a region is called: the table of hazards.
HAZARD_CODES = tuple(HAZARDS)


def hazards(_: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS701 to GS712: what a capture on a device refuses, or would freeze."""
    yield from seen.hazards


def ended_calls(opened: Facts, run: Rehearsal) -> Iterator[Diagnostic]:
    """GS740 to GS744 and GS748: why a region did not return, or was not called."""
    for seen in run.seen:
        if isinstance(seen, Skipped):
            names = " and ".join(map(repr, seen.missing))
            message = f"region '{seen.region}' was not traced: the shape of {names} is not known"
            yield Diagnostic("GS744", message, "warning", path=("regions", seen.region))
        elif seen.ended is not None:
            hazards = seen.hazards if isinstance(seen, Observation) else ()
            yield from _ended(opened.plan, seen, seen.ended, refused=any(each.code in HAZARDS for each in hazards))


def misfits(_: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS742: a result is not what the spec declares, where the pass went on all the same."""
    yield from (_misfit(seen.region, each) for each in seen.misfits)


def _ended(plan: Plan, seen: Observation | EagerCall, error: BaseException, *, refused: bool) -> Iterator[Diagnostic]:
    """Why a call did not return, unless a finding of it says so already: it is ``refused``."""
    region = seen.region
    if isinstance(error, KernelMissingError):
        yield _missing_kernel(region, error)
    elif isinstance(error, TraceEnded):
        if isinstance(seen, EagerCall):
            yield _needs_values(plan, region)
    elif isinstance(error, ModelError) and error.__cause__ is None:
        yield Diagnostic("GS740", error.message, path=("regions", region), hint=error.hint)
    elif refused:
        return
    elif isinstance(error, ModelError):
        place = site_of(error.__cause__) if error.__cause__ is not None else NOWHERE
        message = error.message.rstrip(".") + (f", at {seen.bucket}" if seen.bucket.sizes else "")
        yield _in_the_model("GS741", region, message, place, error.hint)
    elif isinstance(error, UncapturableError):
        yield _in_the_model("GS749", region, error.message, error.site, error.hint)
    elif isinstance(error, NothingToReplayError):
        yield Diagnostic("GS748", error.message, path=("regions", region), hint=error.hint)
    elif isinstance(error, MisfitError):
        yield _misfit(region, error)
    else:
        yield Diagnostic("GS742", str(error), path=("regions", region))


def _in_the_model(code: str, region: str, message: str, place: Site, hint: str | None) -> Diagnostic:
    """At a line of the model, or at the region where none is known."""
    if place.line:
        return Diagnostic(code, message, file=place.file, line=place.line, hint=hint)
    return Diagnostic(code, message, path=("regions", region), hint=hint)


def _misfit(region: str, error: MisfitError) -> Diagnostic:
    path = ("buffers", error.output) if error.declared else ("regions", region, "outputs")
    return Diagnostic("GS742", error.message, path=path, hint=error.hint)


def _missing_kernel(region: str, ended: KernelMissingError) -> Diagnostic:
    """The trace of a region ends where a fake kernel is missing."""
    place = ended.place
    if isinstance(ended, AddressAskedError):
        what = f"the address of a tensor is asked for at {place}, and a fake tensor has none"
        hint = "make what takes it an operator, with torch.library.custom_op and register_fake"
    else:
        what = f"the fake kernel of {ended.operator} is missing or refuses what it is given, at {place}"
        what += f" ({ended.reason})"
        hint = f'register one: @torch.library.register_fake("{ended.operator}")'
    return Diagnostic(
        "GS743",
        f"region '{region}': {what}; nothing after it was checked",
        "warning",
        place.file if place.line else None,
        place.line or None,
        hint=f"{hint}; what follows uses declared shapes",
    )


def _needs_values(plan: Plan, region: str) -> Diagnostic:
    """An eager region that reads values: only its declared outputs are known."""
    unknown = [name for name in plan.regions[region].outputs if not _is_declared(plan.buffers.get(name))]
    if not unknown:
        message = f"the eager region '{region}' reads values, so its outputs were taken as they are declared"
        return Diagnostic("GS744", message, "warning", path=("regions", region))
    names = ", ".join(map(repr, unknown))
    message = f"the eager region '{region}' reads values, and nothing says the shape of its output {names}"
    hint = f"declare it under buffers: {unknown[0]}: {{role: intermediate, shape: [...], dtype: ...}}"
    return Diagnostic("GS744", message, "warning", path=("regions", region), hint=hint)


def _is_declared(buffer: BufferPlan | None) -> bool:
    if buffer is None or buffer.role == "state":
        return buffer is not None
    return buffer.dtype is not None and buffer.shape is not None and not any(isinstance(a, Free) for a in buffer.shape)
