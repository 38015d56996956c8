"""What a region writes, reads and hands on of memory that is not its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphspec.errors import Diagnostic
from graphspec.plan import BufferPlan, Plan, Sequence
from graphspec.recording.calls import Call, written_refs
from graphspec.runtime.laws.evidence import Facts
from graphspec.runtime.rehearsal.observation import EagerCall, Observation, Rehearsal


def written_inputs(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS724: eager would change the caller's tensor, a graph changes its own."""
    for name, call in _writes(seen, opened.inputs):
        message = (
            f"region '{seen.region}' writes into its input '{name}': {call.name} at {call.site}; eager would "
            "change the caller's tensor, a graph only its own copy"
        )
        yield _at(call, "GS724", message, f"work on {name}.clone(), or make '{name}' a state")


def reshaped_inputs(_: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS724: what a region reads gets another shape or memory in place (``t_``, ``resize_``, ``set_``)."""
    before, after = seen.layouts
    for name, layout in before.items():
        now = after.get(name)
        if now is None or now == layout:
            continue
        what = f"the shape of '{name}' in place, from {list(layout.shape)} to {list(now.shape)}"
        if now.shape == layout.shape:
            what = f"the strides of '{name}' in place, from {list(layout.strides)} to {list(now.strides)}"
        if now[1:3] == layout[1:3]:
            what = f"the memory of '{name}' in place"
        message = f"region '{seen.region}' changes {what}; a replay does not"
        yield Diagnostic("GS724", message, hint=f"work on {name}.clone()")


def written_eager_values(_: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS729: a graph has a copy of what an eager region made, and nobody else would see it written."""
    for name, call in _writes(seen, seen.copies):
        message = (
            f"region '{seen.region}' writes into '{name}', which an eager region made: {call.name} at {call.site}; a "
            "graph has a copy of it, and nobody else would see the change"
        )
        yield _at(call, "GS729", message, f"work on {name}.clone(), or write it in the eager region")


def written_originals(_: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS750: a region writes into memory in which an eager value lies that it has a copy of: the copy stays as it was.

    ``return self.count`` of an eager region, ``self.count += 1; return h`` of a captured one that is given it.
    """
    for name, call in _writes(seen, seen.originals):
        message = (
            f"region '{seen.region}' writes into the memory of '{name}', which an eager region made: {call.name} at "
            f"{call.site}; it reads a copy of '{name}', which does not show the change"
        )
        hint = f"return {name}.clone() from the eager region, or give '{seen.region}' the tensor of the model itself"
        yield _at(call, "GS750", message, hint)


def handed_eager_values(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS750: the copy that a graph has of an eager value is handed on: nobody would see the value change in place."""
    plan = opened.plan
    for output, shape in seen.outputs.items():
        found = sorted({seen.copies[storage] for storage in shape.storages if storage in seen.copies})
        layout = plan.buffers.get(output)
        lent = layout is not None and _is_lent(layout)
        readers = [region.name for region in plan.regions.values() if output in {wire.value for wire in region.reads}]
        for name in found if lent or readers else ():
            who = f"region '{readers[0]}' reads it" if readers else "it is lent (copy: false)"
            message = (
                f"region '{seen.region}' returns '{output}' in the memory of '{name}', which an eager region made, and "
                f"{who}: a graph has a copy of '{name}', which does not follow it"
            )
            hint = f"return {output}.clone() from region '{seen.region}'"
            yield Diagnostic("GS750", message, hint=f"{hint}, or give '{readers[0]}' {name!r}" if readers else hint)


def reshaped_by_eager(opened: Facts, run: Rehearsal) -> Iterator[Diagnostic]:
    """GS751: an eager region gives a value another shape or memory in place, and a captured one reads it afterwards."""
    for seen in run.seen:
        before, after = seen.layouts if isinstance(seen, EagerCall) else ({}, {})
        for name in [name for name, layout in before.items() if after.get(name, layout) != layout]:
            reader = _captured_reader(opened.plan, seen.region, name)
            if reader is not None:
                message = (
                    f"region '{seen.region}' changes the shape or the memory of '{name}' in place, and region "
                    f"'{reader}' reads it afterwards: a graph reads it as it was made"
                )
                yield Diagnostic("GS751", message, hint=f"work on a view of {name}, such as {name}.unsqueeze(-1)")


def _captured_reader(plan: Plan, region: str, value: str) -> str | None:
    """A captured region that reads ``value`` after an eager ``region`` was given it, and before it is made again."""
    maker = next((each.name for each in plan.regions.values() if value in each.outputs), None)
    for sequence in plan.sequences.values():
        given = maker is not None and maker not in sequence.steps and region not in sequence.steps  # by an earlier run
        for step in sequence.unrolled:
            reads = {wire.value for wire in plan.regions[step].reads}
            if given and value in reads and not plan.regions[step].eager:
                return step
            given = (given or step == region) and step != maker
    return None


def written_results(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS729: a result of another region was copied out before in the same run, eager would show the change."""
    plan, results = opened.plan, opened.plan.results
    roles = {name: buffer.role for name, buffer in plan.buffers.items()}
    for name, call in _writes(seen, seen.origins):
        if name in results and roles.get(name) != "state" and _follows(plan, seen.region, name):
            message = f"region '{seen.region}' writes into '{name}', a result of the run: {call.name} at {call.site}"
            yield _at(call, "GS729", message, f"work on {name}.clone(), or return the new value under another name")


def _follows(plan: Plan, region: str, value: str) -> bool:
    """Whether some sequence replays a region after the one that makes a value, or after itself."""
    makers = {each.name for each in plan.regions.values() if value in each.outputs}
    for sequence in plan.sequences.values():
        steps = sequence.unrolled
        made = [place for place, step in enumerate(steps) if step in makers]
        if made and region in steps[made[0] + (region not in makers) :]:
            return True
    return False


def stale_views(_: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS729: a view of a state is read after the state was written back."""
    for each in seen.stale:
        message = (
            f"region '{seen.region}' reads '{each.value}', a view of the state '{each.state}', after region "
            f"'{each.writer}' has written '{each.state}' back: the view shows the new content, eager would show the old"
        )
        hint = f"return {each.value}.clone() from the region that makes '{each.value}'"
        yield Diagnostic("GS729", message, hint=hint)


def overtaken_outputs(opened: Facts, seen: Observation) -> Iterator[Diagnostic]:
    """GS729: an output that lies in another value's memory is read after that memory was made anew.

    For the pool rule such an output is a value of the region that returns it, so the hold of its memory is extended to
    its last reader. What that rule cannot see is its maker replayed again before that reader, or the next run's input
    in the place of this one's: the memory then holds a new value, and eager would still have the old one.
    """
    plan = opened.plan
    makers = {value: other.name for other in plan.regions.values() for value in other.outputs}
    roles = {name: buffer.role for name, buffer in plan.buffers.items()}
    known = {**seen.origins, **opened.inputs}  # a view of an input is the input's, whoever returned it
    made = {name: output for name, output in seen.outputs.items() if roles.get(name) != "state"}
    for name, output in made.items():
        found = {known.get(storage) for storage in output.storages}
        for origin in sorted(each for each in found if each is not None and roles.get(each) != "state"):
            maker = None if roles.get(origin) == "input" else makers.get(origin, seen.region)
            if maker != seen.region:
                yield from _overtaken(plan, seen.region, name, (origin, maker))


def _overtaken(plan: Plan, region: str, value: str, origin: tuple[str, str | None]) -> Iterator[Diagnostic]:
    name, maker = origin
    readers = [_late_reader(plan, each, region, value, maker) for each in plan.sequences.values()]
    reader = next((each for each in readers if each is not None), None)
    layout = plan.buffers.get(value)
    hint = f"return {value}.clone() from region '{region}'"
    if reader is not None:
        what = f"region '{maker}' may have made that anew" if maker else "another run may have brought a new one"
        message = f"region '{reader}' reads '{value}', which lies in the memory of '{name}', after {what}"
        yield Diagnostic("GS729", message, hint=hint)
    elif maker is None and layout is not None and _is_lent(layout):
        message = f"the result '{value}' is lent (copy: false), and lies in the input '{name}', which the next run "
        yield Diagnostic("GS729", f"{message}overwrites", hint=f"{hint}, or remove `copy: false`")


def _is_lent(layout: BufferPlan) -> bool:
    """Whether a declared result is handed out on the memory of its graph."""
    return layout.role == "output" and not layout.static and not layout.declared.copy


def _late_reader(plan: Plan, sequence: Sequence, region: str, value: str, maker: str | None) -> str | None:
    """The first step that reads ``value`` although ``maker`` ran since ``region`` last returned it; None: the caller.

    Before the sequence begins, other sequences may have run: nothing is known to be fresh.
    """
    fresh = False
    for step in sequence.unrolled:
        if not fresh and any(wire.value == value for wire in plan.regions[step].reads):
            return step
        fresh = step == region or (fresh and step != maker)
    return None


def _writes(seen: Observation, names: Mapping[int, str]) -> Iterator[tuple[str, Call]]:
    """Each of these storages that the region writes, by name, and the first call that does."""
    recording = seen.recording
    for index in sorted(recording.written & recording.outside.keys()):
        name = names.get(recording.outside[index].storage._cdata)
        if name is not None:
            yield name, next(c for c in recording.calls if any(ref.storage == index for ref in written_refs(c)))


def _at(call: Call, code: str, message: str, hint: str) -> Diagnostic:
    return Diagnostic(code, message, file=call.site.file, line=call.site.line, hint=hint)
