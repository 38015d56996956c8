"""GS2xx: every key stands where it has a meaning. A key without effect would promise something that never happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphspec.errors import Diagnostic, KeyPath, Severity
from graphspec.examples import flow, own
from graphspec.finding import finding
from graphspec.rules.sizes import padded_dims
from graphspec.rules.walk import data_at
from graphspec.spec import Buffer, DimSize, FromSize, Shape, Spec

_ROLES: Mapping[str, tuple[str, ...]] = {
    "init": ("state",),
    "attr": ("state", "input"),
    "from": ("input",),
    "optional": ("input",),
    "hold": ("input",),
    "cast": ("input",),
    "pad": ("input",),
    "sample": ("input",),
    "layout": ("input", "state"),
    "static": ("output", "intermediate"),
    "copy": ("output",),
}
_NOT_COMPUTED = ("optional", "hold", "cast", "sample")
_NOT_OWNED = ("dtype", "init", "layout")  # a shape may be declared: it says which axes are bucketed
_NOT_OF_THE_MODEL = ("from", "layout", "optional")
_NOT_EAGER: Mapping[str, str] = {
    "updates": "an eager region takes the values of its params as they are",
    "on_miss": "an eager region runs at any size",
    "max_pad": "an eager region runs at any size",
    "warmup": "an eager region is never captured",
    "backward": "an eager region is never captured",
    "inline": "an eager region is never captured",
    "compile": "an eager region calls the model as it is",
    "grads": "an eager region is never captured",
    "break": "all of it runs eagerly",
}
_NOT_INLINE: Mapping[str, str] = {
    "inputs": "it is given what its caller gives it",
    "outputs": "its caller gets what it returns",
    "updates": "its caller gives every value anew",
    "around": "it runs inside of what its caller entered",
    "mode": "it runs in the mode that its caller set",
    "autocast": "it runs under the autocast of its caller",
    "optimizer": "its caller steps the optimizer",
    "allow_unused": "what gets no gradient is found when it is captured",
    "bind": "its caller gives every value anew",
    "break": "name the modules around what stays eager, each a region of its own",
}
_FOUND = frozenset({"inputs", "outputs"})  # what they say is found when the module is called
_HARMLESS = frozenset({"warmup", "on_miss"})  # without them the region would do the same
_RANKS: Mapping[str, int] = {"channels_last": 4, "channels_last_3d": 5}


def _keys(spec: Spec, path: KeyPath) -> Mapping[str, object]:
    written = data_at(spec, path)
    return written if isinstance(written, Mapping) else {}


def keys_of_other_roles(spec: Spec) -> Iterator[Diagnostic]:
    """GS212: a key of another role."""
    for buffer in spec.buffers.values():
        for key in _keys(spec, ("buffers", buffer.name)):
            roles = _ROLES.get(key)
            if roles is not None and buffer.role not in roles:
                message = f"`{key}` belongs to the role {' or '.join(roles)}, and '{buffer.name}' is an {buffer.role}"
                message = message.replace("an state", "a state")
                hint = f"remove it, or write `role: {roles[0]}`"
                yield finding(spec.document, "GS212", message, ("buffers", buffer.name, key), key=True, hint=hint)


def missing_keys(spec: Spec) -> Iterator[Diagnostic]:
    """GS216: an allocation without shape or dtype. A result has one of its own where it is `static`."""
    for buffer in spec.buffers.values():
        if (buffer.is_made and not buffer.static) or buffer.source is not None:
            continue
        if buffer.attr is not None and buffer.role == "state":
            continue
        shape = flow(own(["batch", 64], spec.document.data if spec.document is not None else None))
        for key, value, example in (("shape", buffer.shape, shape), ("dtype", buffer.dtype, "float32")):
            if value is None:
                message = f"the {buffer.role} '{buffer.name}' has no `{key}`, so it cannot be allocated"
                path = ("buffers", buffer.name)
                yield finding(spec.document, "GS216", message, path, key=True, hint=f"add `{key}: {example}`")


def model_owned(spec: Spec) -> Iterator[Diagnostic]:
    """GS212: a state whose tensors the model owns has their shapes, dtypes and values."""
    for buffer in spec.buffers.values():
        if buffer.attr is None or buffer.role != "state":
            continue
        for key in _keys(spec, ("buffers", buffer.name)):
            if key in _NOT_OWNED:
                message = f"'{buffer.name}' is `attr`, tensors the model owns: `{key}` is theirs"
                path = ("buffers", buffer.name, key)
                yield finding(spec.document, "GS212", message, path, key=True, hint=f"remove `{key}`")


def contradictions(spec: Spec) -> Iterator[Diagnostic]:
    """GS224: keys of one input that exclude each other."""
    for buffer in spec.buffers.values():
        if buffer.role != "input":
            continue
        if buffer.attr is not None:
            yield from _of_the_model(spec, buffer)
        if buffer.optional and buffer.hold:
            message = f"'{buffer.name}' is optional (absent is None) and held (absent is its last value)"
            path: KeyPath = ("buffers", buffer.name, "hold")
            yield finding(spec.document, "GS224", message, path, key=True, hint="keep one of the two")
        if buffer.source is not None:
            yield from _computed(spec, buffer)


def _of_the_model(spec: Spec, buffer: Buffer) -> Iterator[Diagnostic]:
    for key in _keys(spec, ("buffers", buffer.name)):
        if key in _NOT_OF_THE_MODEL:
            message = f"'{buffer.name}' lies in a tensor of the model's own (`attr`), of which `{key}` cannot be said"
            path = ("buffers", buffer.name, key)
            yield finding(spec.document, "GS224", message, path, key=True, hint=f"remove `{key}` or `attr`")


def _computed(spec: Spec, buffer: Buffer) -> Iterator[Diagnostic]:
    for key in _keys(spec, ("buffers", buffer.name)):
        if key in _NOT_COMPUTED:
            message = f"'{buffer.name}' is filled by `from`, so no caller gives it and `{key}` has no effect"
            path = ("buffers", buffer.name, key)
            yield finding(spec.document, "GS224", message, path, key=True, hint=f"remove `{key}` or `from`")


def region_keys(spec: Spec) -> Iterator[Diagnostic]:
    """GS224: keys of captured regions on an eager one, and the other way round."""
    for region in spec.regions.values():
        for key, value in _keys(spec, ("regions", region.name)).items():
            path = ("regions", region.name, key)
            severity: Severity
            if region.eager and key in _NOT_EAGER and value not in (False, []):
                message = f"`{key}` has no effect in region '{region.name}': {_NOT_EAGER[key]}"
                severity = "warning" if key in _HARMLESS else "error"
                hint = f"remove `{key}` or `eager`"
                yield finding(spec.document, "GS224", message, path, key=True, hint=hint, severity=severity)
            if region.inline and key in _NOT_INLINE and value not in (False, []):
                message = f"`{key}` has no effect in region '{region.name}', which is inline: {_NOT_INLINE[key]}"
                severity = "warning" if key in _FOUND else "error"
                hint = f"remove `{key}` or `inline`"
                yield finding(spec.document, "GS224", message, path, key=True, hint=hint, severity=severity)
            if key == "grads" and region.inline and value == "overwrite":
                message = f"region '{region.name}' is inline, and autograd itself adds to `.grad`: it cannot overwrite"
                hint = "remove `grads`, and call `zero_grad()` in the loop"
                yield finding(spec.document, "GS224", message, path, key=True, hint=hint)
            if key == "backward" and value and not region.inline and not region.eager:
                message = f"`backward` is for inline regions, and '{region.name}' is none: a run gives no gradients"
                hint = "add `inline: true`, or let the callable do forward and backward"
                yield finding(spec.document, "GS224", message, path, key=True, hint=hint)
            if key == "break" and (region.compile is not None or region.trains):
                other = "compile" if region.compile is not None else "optimizer"
                message = f"`break` and `{other}` are both asked of region '{region.name}', which is one graph for that"
                yield finding(spec.document, "GS224", message, path, key=True, hint=f"remove `break` or `{other}`")
            if key == "max_pad" and region.on_miss != "eager":
                message = f"`max_pad` has no effect in region '{region.name}': every run takes its bucket"
                hint = "add `on_miss: eager`, or remove `max_pad`"
                yield finding(spec.document, "GS224", message, path, key=True, hint=hint)
            if key == "rows" and not region.eager:
                message = f"`rows` has no effect in region '{region.name}': a captured region sees its bucket"
                hint = "remove `rows`, or add `eager: true`"
                yield finding(spec.document, "GS224", message, path, key=True, hint=hint, severity="warning")


def pads(spec: Spec) -> Iterator[Diagnostic]:
    """GS224, a warning: `pad` where a bucket adds no rows."""
    for buffer in spec.buffers.values():
        if buffer.role != "input" or buffer.pad is None:
            continue
        if isinstance(buffer.source, FromSize):
            why = "it holds one size"
        elif _never_padded(spec, buffer.shape):
            why = "its shape has no bucketed dim that is padded"
        else:
            continue
        yield _padless(spec, "buffers", buffer.name, why)
    for param in spec.params.values():
        if param.pad is not None and _never_padded(spec, param.shape):
            why = "its shape has no bucketed dim that is padded" if param.shape else "it is one value"
            yield _padless(spec, "params", param.name, why)


def _never_padded(spec: Spec, shape: Shape | None) -> bool:
    """Whether no bucket adds rows; a dim that is missing is another finding."""
    known = all(axis.dim in spec.dims for axis in shape or () if isinstance(axis, DimSize))
    return known and not padded_dims(spec, shape)


def _padless(spec: Spec, section: str, name: str, why: str) -> Diagnostic:
    message = f"`pad` of '{name}' has no effect: {why}"
    path = (section, name, "pad")
    return finding(spec.document, "GS224", message, path, key=True, hint="remove `pad`", severity="warning")


def layouts(spec: Spec) -> Iterator[Diagnostic]:
    """GS225: a memory format for another number of axes."""
    for buffer in spec.buffers.values():
        rank = _RANKS.get(buffer.layout or "")
        if rank is not None and buffer.shape is not None and len(buffer.shape) != rank:
            message = f"`layout: {buffer.layout}` is for {rank} axes, and '{buffer.name}' has {len(buffer.shape)}"
            yield finding(spec.document, "GS225", message, ("buffers", buffer.name, "layout"),
                          hint="give the shape the axes of the layout, or remove the layout")  # fmt: skip
