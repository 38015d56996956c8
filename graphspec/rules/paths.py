"""GS213: attribute paths begin at the model, and only some of them may hold a glob."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import dotted, finding
from graphspec.nearest import nearest
from graphspec.rules.walk import arguments, around_places, data_at
from graphspec.spec import Attr, Region, Spec

#: What code calls the object that a spec calls `model`.
_SELF = frozenset({"self", "cls"})

Place = tuple[str, KeyPath, bool]  # the path as text, where it is written, whether it is the key there


def outside_model(spec: Spec) -> Iterator[Diagnostic]:
    """GS213: a path that does not begin with `model`, the only name there is."""
    for text, path, key in (*_exact(spec), *_globs(spec)):
        if text.partition(".")[0] != "model":
            message = f"`{dotted(path)}` is '{text}', and a path begins with `model`: what the factory returned"
            yield finding(spec.document, "GS213", message, path, key=key, hint=f"write {_meant(text)}")


def _meant(text: str) -> str:
    """A path as it is said of the model: `self` is its own word for itself, and `forward` what calling it runs."""
    first, _, rest = text.partition(".")
    inside = rest if first in _SELF or nearest(first, ("model",)) is not None else text
    return ".".join(["model", *(part for part in inside.split(".") if part)]).removesuffix(".forward")


def stray_globs(spec: Spec) -> Iterator[Diagnostic]:
    """GS213: a `*` where one object is wanted."""
    for text, path, key in _exact(spec):
        if "*" in text:
            message = f"`{dotted(path)}` is '{text}', and `*` cannot stand for one object"
            hint = "name one object; globs are for `attr` of a state, `bind`, `within`, and `call` of inline regions"
            yield finding(spec.document, "GS213", message, path, key=key, hint=hint)


def _exact(spec: Spec) -> Iterator[Place]:
    """Paths that must lead to one object."""
    for index, text in enumerate(data_at(spec, ("generators",)) or ()):
        yield text, ("generators", index), False
    for buffer in spec.buffers.values():
        if buffer.attr is not None and buffer.role == "input":
            yield buffer.attr, ("buffers", buffer.name, "attr"), False
    for region in spec.regions.values():
        yield from _exact_of(spec, region)


def _exact_of(spec: Spec, region: Region) -> Iterator[Place]:
    start: KeyPath = ("regions", region.name)
    if not region.inline:
        yield region.call, (*start, "call"), False
    for text, path in around_places(spec, region):
        if ":" not in text:
            yield text, path, False
    for value, path in arguments(region):
        if isinstance(value, Attr):
            yield value.path, (*path, "attr"), False
    one = isinstance(data_at(spec, (*start, "optimizer")), str)
    for index, text in enumerate(region.optimizer):
        yield text, (*start, "optimizer") if one else (*start, "optimizer", index), False
    for index, text in enumerate(data_at(spec, (*start, "generators")) or ()):
        yield text, (*start, "generators", index), False


def _globs(spec: Spec) -> Iterator[Place]:
    """Paths that may lead to several objects."""
    for buffer in spec.buffers.values():
        if buffer.attr is not None and buffer.role == "state":
            yield buffer.attr, ("buffers", buffer.name, "attr"), False
    for region in spec.regions.values():
        yield from ((text, ("regions", region.name, "bind", text), True) for text in region.bind)
        if region.inline:
            yield region.call, ("regions", region.name, "call"), False
        for index, update in enumerate(region.updates):
            if update.within is not None:
                yield update.within, ("regions", region.name, "updates", index, "within"), False
