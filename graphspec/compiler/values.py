"""What the names of a spec stand for: static buffers, host values, and what regions make."""

from __future__ import annotations

from graphspec.spec import Buffer, FromParam, Region, Spec, producers, reads


def made_values(spec: Spec) -> dict[str, str]:
    """The region that makes each value: intermediates and declared outputs, not what is written back into a buffer."""
    return {value: region for value, region in producers(spec).items() if not is_written_back(spec, value)}


def is_written_back(spec: Spec, value: str) -> bool:
    """Whether a region output of this name is copied into the static buffer that bears the name."""
    buffer = spec.buffers.get(value)
    return buffer is not None and not buffer.is_made


def is_given(buffer: Buffer) -> bool:
    """Whether the caller writes it: an input that is no copy of a param or a size."""
    return buffer.role == "input" and buffer.source is None


def unnamed_inputs(spec: Spec) -> set[str]:
    """The inputs that no region is given: the model reads them where they lie, in its own tensors."""
    owned = {each.name for each in spec.buffers.values() if each.role == "input" and each.attr is not None}
    return owned and owned - {name for region in spec.regions.values() for name in reads(region)}


def is_static(spec: Spec, value: str) -> bool:
    """Whether a region output is copied, inside the graph, into one allocation outside every pool."""
    buffer = spec.buffers.get(value)
    return buffer is not None and buffer.is_made and buffer.static


def is_held(spec: Spec, value: str) -> bool:
    """Whether a result is handed out without a copy, so that its memory is never given to another value."""
    buffer = spec.buffers.get(value)
    return buffer is not None and buffer.role == "output" and not buffer.copy


def params_of(spec: Spec, region: Region) -> set[str]:
    """The params a region uses: read directly, through `from` buffers, in updates or in binds."""
    names = reads(region)
    sources = (spec.buffers[name].source for name in names if name in spec.buffers)
    copied = (source.param for source in sources if isinstance(source, FromParam))
    updated = (update.param for update in region.updates)
    return {*(name for name in names if name in spec.params), *copied, *updated, *region.bind.values()}
