"""One region of a checked document, as a value of the language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphspec.spec import Around, Attr, Compile, Const, DictOf, ListOf, Make, Name, Region, Update, Value


def build_region(name: str, data: Mapping[str, Any], spec: Mapping[str, Any]) -> Region:
    """The region ``name``. ``spec`` is the whole document, whose `generators` and `hooks` are the defaults."""
    fields = dict(data)
    positional, keyword = _inputs(fields.pop("inputs", []))
    around = fields.pop("around", None)
    optimizer = fields.pop("optimizer", ())
    compiler = fields.pop("compile", None)
    on_miss = fields.pop("on_miss", "eager" if fields.get("inline") else "error")
    return Region(
        name,
        positional=positional,
        keyword=keyword,
        around=None if around is None else _around(around),
        outputs=_outputs(fields.pop("outputs", {})),
        updates=tuple(map(_update, fields.pop("updates", ()))),
        pad_rows={state: tuple(rows) for state, rows in fields.pop("pad_rows", {}).items()},
        breaks=tuple(fields.pop("break", ())),
        optimizer=(optimizer,) if isinstance(optimizer, str) else tuple(optimizer),
        bind=dict(fields.pop("bind", {})),
        generators=tuple(fields.pop("generators", spec.get("generators", ()))),
        hooks=fields.pop("hooks", spec.get("hooks", "refuse")),
        on_miss=on_miss,
        compile=None if compiler is None else _compiler(compiler),
        **fields,
    )


def _inputs(data: list[Any] | Mapping[str, Any]) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """The positional arguments of a list, the keywords of a mapping."""
    if isinstance(data, list):
        return tuple(map(argument, data)), {}
    return (), {key: argument(each) for key, each in data.items()}


def _around(data: str | Mapping[str, Any]) -> Around:
    """Both forms of the key `around`; the short one is a path, called with the region's inputs."""
    if isinstance(data, str):
        return Around(data)
    positional, keyword = _inputs(data["inputs"]) if "inputs" in data else (None, None)
    return Around(data["call"], positional, keyword, data.get("after"))


def argument(data: str | Mapping[str, Any]) -> Value:
    """An argument of a call: a name, or one of the kinds that are written as a mapping."""
    if isinstance(data, str):
        return Name(data)
    match data:
        case {"const": value}:
            return Const(value)
        case {"attr": path}:
            return Attr(path)
        case {"list": items}:
            return ListOf(tuple(map(argument, items)))
        case {"dict": items}:
            return DictOf({key: argument(each) for key, each in items.items()})
        case _:
            return Make(data["make"], {key: argument(each) for key, each in data.get("with", {}).items()})


def _outputs(data: str | list[str] | Mapping[str, str | int]) -> dict[str, str]:
    """Value names to paths: a lone name is the return value itself, a list takes its items in order."""
    if isinstance(data, str):
        return {data: ""}
    if isinstance(data, list):
        return {name: str(index) for index, name in enumerate(data)}
    return {name: str(path) for name, path in data.items()}


def _update(data: Mapping[str, Any]) -> Update:
    fields = dict(data)
    at = fields.pop("at", None)
    return Update(param=fields.pop("from"), at=None if at is None else tuple(at), **fields)


def _compiler(data: Mapping[str, Any]) -> Compile:
    return Compile(**data)
