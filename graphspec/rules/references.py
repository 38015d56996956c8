"""GS2xx: every name stands for one thing, and that thing exists."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.nearest import did_you_mean
from graphspec.rules.walk import arguments, named_dims, output_places
from graphspec.spec import Buckets, Buffer, Constant, DimSize, FromParam, Name, Spec, reads


def unknown_values(spec: Spec) -> Iterator[Diagnostic]:
    """GS201: an argument names no buffer, param or region output."""
    known = {*spec.buffers, *spec.params, *(name for region in spec.regions.values() for name in region.outputs)}
    for region in spec.regions.values():
        for value, path in arguments(region):
            if isinstance(value, Name) and value.name not in known:
                message = f"region '{region.name}' reads '{value.name}', and no buffer, param or output bears that name"
                hint = did_you_mean(value.name, known, f"declare `{value.name}` under buffers or params")
                yield finding(spec.document, "GS201", message, path, hint=hint)


def model_owned_arguments(spec: Spec) -> Iterator[Diagnostic]:
    """GS227: an argument names a state whose tensors the model owns."""
    for region in spec.regions.values():
        for value, path in arguments(region):
            buffer = spec.buffers.get(value.name) if isinstance(value, Name) else None
            if buffer is not None and buffer.attr is not None and buffer.role == "state":
                message = f"region '{region.name}' is given '{buffer.name}', a state whose tensors the model owns"
                several = "one of its tensors, such as " if "*" in buffer.attr else ""
                hint = f"write {several}{{attr: {buffer.attr.replace('*', '0')}}}"
                yield finding(spec.document, "GS227", message, path, hint=hint)


def scratch_rows(spec: Spec) -> Iterator[Diagnostic]:
    """GS229: `pad_rows` names no state, or rows that it has not."""
    states = {name: buffer for name, buffer in spec.buffers.items() if buffer.role == "state"}
    for region in spec.regions.values():
        for name, rows in region.pad_rows.items():
            path: KeyPath = ("regions", region.name, "pad_rows", name)
            if name not in states:
                message = f"region '{region.name}': `pad_rows` names '{name}', and no state bears that name"
                hint = did_you_mean(name, states, f"declare it: {name}: {{role: state, attr: model.{name}}}")
                yield finding(spec.document, "GS229", message, path, key=True, hint=hint)
                continue
            count = _rows(spec, states[name])
            beyond = [row for row in rows if count is not None and row >= count]
            if beyond:
                message = (
                    f"region '{region.name}': `pad_rows` names row {beyond[0]} of '{name}', which has {count} rows"
                )
                hint = f"its rows are 0 to {int(count or 0) - 1}" if count else "a single number has no rows"
                yield finding(spec.document, "GS229", message, path, key=True, hint=hint)


def _rows(spec: Spec, state: Buffer) -> int | None:
    """How many rows a state has along its first axis; None where only the model knows."""
    if state.shape is None or state.attr is not None:  # one that the model owns may be longer
        return None
    if not state.shape:
        return 0
    axis = state.shape[0]
    if not isinstance(axis, DimSize):
        return axis if isinstance(axis, int) else None
    dim = spec.dims.get(axis.dim)
    if isinstance(dim, Buckets):
        return axis.factor * max(dim.sizes, default=0)
    return axis.factor * dim.value if isinstance(dim, Constant) else None


def names_with_two_meanings(spec: Spec) -> Iterator[Diagnostic]:
    """GS202: a name has two producers. Only a state may be written by several regions."""
    for name in spec.buffers.keys() & spec.params.keys():
        both = f"'{name}' is a param and a buffer; they share one namespace"
        yield finding(spec.document, "GS202", both, ("buffers", name), key=True, hint="rename one of them")
    made: dict[str, str] = {}
    for region in spec.regions.values():
        own: set[str] = set()
        for name, path, key in output_places(spec, region):
            buffer = spec.buffers.get(name)
            message: str | None = None
            if name in own:
                message = f"region '{region.name}' makes '{name}' twice"
            elif name in spec.params:
                message = f"region '{region.name}' makes '{name}', which is a param"
            elif name in made and (buffer is None or buffer.is_made):
                message = f"'{name}' is made by region '{made[name]}' and by region '{region.name}'"
            if message is not None:
                yield finding(spec.document, "GS202", message, path, key=key, hint="give one of them another name")
            own.add(name)
            made.setdefault(name, region.name)


def written_inputs(spec: Spec) -> Iterator[Diagnostic]:
    """GS203: a region writes what only the caller, or only the model, may write."""
    for region in spec.regions.values():
        for name, path, key in output_places(spec, region):
            buffer = spec.buffers.get(name)
            if buffer is None or buffer.is_made:
                continue
            if buffer.role == "input":
                message = f"region '{region.name}' writes '{name}', an input that only the caller writes"
                hint = f"give `{name}` the role state, or name the output differently"
            elif buffer.attr is not None:
                message = f"region '{region.name}' writes '{name}', whose tensors the model owns"
                hint = "let the model write them itself, or declare a state with a shape"
            else:
                continue
            yield finding(spec.document, "GS203", message, path, key=key, hint=hint)


def unmade_outputs(spec: Spec) -> Iterator[Diagnostic]:
    """GS204: a declared output that no region makes."""
    made = {name for region in spec.regions.values() for name in region.outputs}
    for buffer in spec.buffers.values():
        if buffer.is_made and buffer.name not in made:
            intermediates = made - spec.buffers.keys()
            message = f"no region makes the {buffer.role} '{buffer.name}'"
            hint = did_you_mean(buffer.name, intermediates, "name it under the outputs of the region that makes it")
            yield finding(spec.document, "GS204", message, ("buffers", buffer.name), key=True, hint=hint)


def unknown_dims(spec: Spec) -> Iterator[Diagnostic]:
    """GS210: a shape, bound, source or argument names no dim."""
    for dim, path in named_dims(spec):
        if dim not in spec.dims:
            hint = did_you_mean(dim, spec.dims, f"declare it: `dims: {{{dim}: 64}}`")
            yield finding(spec.document, "GS210", f"there is no dim '{dim}'", path, hint=hint)


def unknown_params(spec: Spec) -> Iterator[Diagnostic]:
    """GS211: something is refreshed from a param that does not exist."""
    for param, path in _named_params(spec):
        if param not in spec.params:
            message = f"there is no param '{param}'"
            if param in spec.buffers:
                message += ": it is a buffer, and only a host value can be used here"
            hint = did_you_mean(param, spec.params, f"declare it: `params: {{{param}: {{type: int}}}}`")
            yield finding(spec.document, "GS211", message, path, hint=hint)


def _named_params(spec: Spec) -> Iterator[tuple[str, KeyPath]]:
    for buffer in spec.buffers.values():
        if isinstance(buffer.source, FromParam):
            yield buffer.source.param, ("buffers", buffer.name, "from")
    for region in spec.regions.values():
        start: KeyPath = ("regions", region.name)
        yield from ((each.param, (*start, "updates", index, "from")) for index, each in enumerate(region.updates))
        yield from ((param, (*start, "bind", path)) for path, param in region.bind.items())


def unused(spec: Spec) -> Iterator[Diagnostic]:
    """GS220, a warning: a declared name that nothing uses."""
    used = {name for region in spec.regions.values() for name in (*reads(region), *region.outputs)}
    params = used | {param for param, _ in _named_params(spec)}
    dims = {dim for dim, _ in named_dims(spec)}
    dims.update(*(spec.buckets or ()))
    unread = (
        *(("buffers", name) for name, each in spec.buffers.items()
          if each.role in ("input", "state") and each.attr is None and name not in used),
        *(("params", name) for name in spec.params if name not in params),
        *(("dims", name) for name in spec.dims if name not in dims),
    )  # fmt: skip
    for section, name in unread:
        message = f"nothing uses '{name}', declared under {section}"
        yield finding(spec.document, "GS220", message, (section, name), key=True, severity="warning",
                      hint="use it, or remove it")  # fmt: skip
