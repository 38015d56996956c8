"""A plan as plain data, and back: for `plan --format json`, for files, and for comparing ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from graphspec.plan import Bucket, BufferPlan, Graph, Plan, RegionPlan, Sequence, Span, Variant, Wire
from graphspec.spec import DimSize, Free, FromParam, FromSize, Loop, Shape, Update

#: Of the object that `to_json` returns: it changes when a key changes its meaning.
VERSION = 1


def to_json(plan: Plan) -> dict[str, Any]:
    """The whole plan as JSON types.

    A bucket is ``{dim: size}``, an axis a number or ``"2*batch"``. Wires are one list of
    ``{region, value, source, producer}``: the edges of the graph of regions. ``graphs`` are those of one of the
    ``variants``, each of which has them all.
    """
    return {
        "version": VERSION,
        "name": plan.name,
        "device": plan.device,
        "digest": plan.digest,
        "constants": dict(plan.constants),
        "buckets": [dict(bucket.sizes) for bucket in plan.buckets],
        "buffers": {
            name: _plain(buffer, "name", "declared") | {"shape": _axes(buffer.shape), "source": _source(buffer.source)}
            for name, buffer in plan.buffers.items()
        },
        "pools": {name: list(order) for name, order in plan.pools.items()},
        "regions": {
            name: _plain(region, "name", "reads", "declared", *(() if region.compiler else ("compiler",)))
            | {"updates": [_plain(update) for update in region.updates]}
            for name, region in plan.regions.items()
        },
        "wires": [{"region": name, **_plain(wire)} for name, region in plan.regions.items() for wire in region.reads],
        "graphs": [_plain(graph) for graph in plan.graphs],
        "spans": [_plain(span) for span in plan.spans],
        "sequences": {name: _sequence_as_data(sequence) for name, sequence in plan.sequences.items()},
        **_variants(plan),
    }


def _sequence_as_data(sequence: Sequence) -> dict[str, Any]:
    """Loops are there where a sequence has some, a limit to padding where a region has one."""
    loops = {"loops": [dict(vars(loop)) for loop in sequence.loops]} if sequence.loops else {}
    limit = {} if sequence.max_pad is None else {"max_pad": sequence.max_pad}
    return {**_plain(sequence, "name", "loops", "max_pad"), **limit, **loops}


def _variants(plan: Plan) -> dict[str, Any]:
    """Where nothing varies, as in most plans, there is nothing to say."""
    if plan.variants == (Variant(),) and not plan.unlisted:
        return {}
    listed = [
        {"special": {name: _value(value) for name, value in each.special}, "absent": sorted(each.absent)}
        for each in plan.variants
    ]
    return {"variants": listed, "unlisted": list(plan.unlisted), "when": plan.when}


def from_json(data: Mapping[str, Any]) -> Plan:
    """The plan that `to_json` was given.

    Raises:
        ValueError: ``data`` is of another version.
        KeyError, TypeError: it is no plan.
    """
    if data["version"] != VERSION:
        raise ValueError(f"this build reads version {VERSION} of a plan, not {data['version']!r}")
    wires: dict[str, list[Wire]] = {region: [] for region in data["regions"]}
    for wire in data["wires"]:
        wires[wire["region"]].append(Wire(wire["value"], wire["source"], wire["producer"]))
    return Plan(
        name=data["name"],
        device=data["device"],
        constants=dict(data["constants"]),
        buckets=tuple(map(_bucket, data["buckets"])),
        buffers={name: _buffer(name, entry) for name, entry in data["buffers"].items()},
        regions={name: _region(name, entry, wires[name]) for name, entry in data["regions"].items()},
        pools={name: tuple(order) for name, order in data["pools"].items()},
        graphs=tuple(Graph(**entry | {"bucket": _bucket(entry["bucket"])}) for entry in data["graphs"]),
        spans=tuple(Span(**entry | {"bucket": _bucket(entry["bucket"])}) for entry in data["spans"]),
        sequences={name: _sequence(name, entry) for name, entry in data["sequences"].items()},
        variants=tuple(_variant(**entry) for entry in data.get("variants", [{"special": {}, "absent": []}])),
        unlisted=tuple(data.get("unlisted", ())),
        when=data.get("when", "open"),
        digest=data["digest"],
    )


def digest(plan: Plan) -> str:
    """SHA-256, in hex, of what every rank must agree on.

    Equal for specs that differ only in name, comments, paths, or the order of keys where that order has no meaning.
    The device's index is not part of it, its kind is: ranks of one job use ``npu:0``, ``npu:1``, ...
    """
    import hashlib  # `validate` has no use for it

    data = to_json(plan)
    del data["digest"], data["name"]
    data["device"] = plan.device.partition(":")[0]
    data["wires"].sort(key=lambda wire: (wire["region"], wire["value"]))
    data["spans"].sort(key=lambda span: (span["pool"], span["first"], span["value"]))
    for group, unordered in _UNORDERED.items():
        for entry in data[group].values():
            entry |= {key: sorted(entry[key], key=_canonical) for key in unordered}
    return hashlib.sha256(_canonical(data).encode()).hexdigest()


#: The lists whose order says nothing: it is that of declarations.
_UNORDERED: Mapping[str, tuple[str, ...]] = {
    "buffers": ("dims",),
    "regions": ("dims", "outputs", "results", "write_back", "updates", "borrowed"),
    "sequences": ("dims", "inputs", "params", "results", "buckets"),
}


def _canonical(data: Any) -> str:
    return data if isinstance(data, str) else json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: object, *without: str) -> dict[str, Any]:
    """The fields of a flat dataclass, tuples as lists and buckets as mappings."""
    return {key: _plain_field(field) for key, field in vars(value).items() if key not in without}


def _plain_field(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_field(item) for item in value]
    return dict(value.sizes) if isinstance(value, Bucket) else value


def _axes(shape: Shape | None) -> list[int | str] | None:
    return None if shape is None else [axis if isinstance(axis, int) else str(axis) for axis in shape]


def _source(source: FromParam | FromSize | None) -> dict[str, str] | None:
    """As the language writes it: ``{"param": NAME}``, ``{"size": DIM}`` or ``{"bucket": DIM}``."""
    match source:
        case FromParam(param):
            return {"param": param}
        case FromSize(dim, bucket):
            return {"bucket" if bucket else "size": dim}
        case None:
            return None


def _bucket(sizes: Mapping[str, int]) -> Bucket:
    return Bucket(tuple(sizes.items()))


def _value(value: Any) -> Any:
    """A value of a param; JSON has no infinity."""
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _variant(special: Mapping[str, Any], absent: list[str]) -> Variant:
    values = ((name, float(each["float"]) if isinstance(each, dict) else each) for name, each in special.items())
    return Variant(frozenset(absent), tuple(values))


def _shape(axes: list[int | str] | None) -> Shape | None:
    return None if axes is None else tuple(axis if isinstance(axis, int) else _scaled(axis) for axis in axes)


def _scaled(axis: str) -> DimSize | Free:
    if axis == "_":
        return Free()
    factor, _, dim = axis.rpartition("*")
    return DimSize(dim, int(factor or 1))


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of an entry as tuples, as the dataclasses hold them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def _buffer(name: str, entry: Mapping[str, Any]) -> BufferPlan:
    source = None if entry["source"] is None else _read_source(**entry["source"])
    return BufferPlan(name=name, **_tuples(entry) | {"shape": _shape(entry["shape"]), "source": source})


def _read_source(param: str | None = None, size: str | None = None, bucket: str | None = None) -> FromParam | FromSize:
    return FromParam(param) if param is not None else FromSize(size or bucket or "", bucket=bucket is not None)


def _region(name: str, entry: Mapping[str, Any], reads: list[Wire]) -> RegionPlan:
    updates = tuple(Update(**_tuples(update)) for update in entry["updates"])
    return RegionPlan(name=name, reads=tuple(reads), **_tuples(entry) | {"updates": updates})


def _sequence(name: str, entry: Mapping[str, Any]) -> Sequence:
    loops = tuple(Loop(**loop) for loop in entry.get("loops", ()))
    return Sequence(name=name, **_tuples(entry) | {"buckets": tuple(map(_bucket, entry["buckets"])), "loops": loops})
