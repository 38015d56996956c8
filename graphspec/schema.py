"""The published JSON Schema, and what a document breaks of it, as diagnostics (GS1xx).

jsonschema is the checker, and the file that editors use is what it checks with. Its ``$ref`` are replaced by their
targets first, since following one costs more than most checks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema.validators import extend

from graphspec.document import Document
from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.published import published

#: Of one run of sizes: each of them is a graph.
MOST_SIZES = 4096
_ANNOTATIONS = frozenset({"description", "examples", "default", "$defs", "$schema", "$id"})


def check(document: Document) -> list[Diagnostic]:
    """Every finding of the schema: one for each mistake, at its place. Not sorted."""
    findings: list[Diagnostic] = []
    judged: set[tuple[object, KeyPath]] = set()
    for error in _validator().iter_errors(document.data):
        # A value that is wrong in two ways is one mistake; unknown and missing keys are mistakes of their own.
        about_keys = error.validator in {"additionalProperties", "required", "dependentRequired"}
        mistake = (error.validator if about_keys else None, tuple(error.absolute_path))
        if mistake not in judged:
            from graphspec.schema_messages import findings_of  # only for a spec with a mistake

            judged.add(mistake)
            findings.extend(findings_of(error, document))
    return findings or list(_long_runs(document))


def _long_runs(document: Document) -> Iterator[Diagnostic]:
    """GS106: a run of sizes that would fill the memory when it is expanded, which JSON Schema cannot say."""
    for name, dim in document.data.get("dims", {}).items():
        sizes = dim.get("sizes", dim) if isinstance(dim, dict) else dim
        for run in sizes if isinstance(sizes, list) else [sizes]:
            count = (run["to"] - run["from"]) // run.get("step", 1) + 1 if isinstance(run, dict) and "to" in run else 0
            if count > MOST_SIZES:
                message = f"a run of dim '{name}' stands for {count:,} sizes; at most {MOST_SIZES:,} are supported"
                path = ("dims", name)
                yield finding(document, "GS106", message, path, hint="write a larger `step`, or fewer sizes")


@functools.cache
def _validator() -> Any:
    base = jsonschema.Draft202012Validator
    # YAML knows what an integer is: 4.0 is not one, though JSON Schema says so.
    strict = base.TYPE_CHECKER.redefine("integer", lambda _, value: isinstance(value, int) and value is not True
                                        and value is not False)  # fmt: skip
    return extend(base, type_checker=strict)(_Inliner(published()).schema)  # type: ignore[no-untyped-call]


class _Inliner:
    """The schema without ``$ref`` and without most annotations; a recursive one becomes a cyclic object."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._sources = schema["$defs"]
        self._done: dict[str, dict[str, Any]] = {}
        self.schema = self._schema(schema)

    def _schema(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            return self._target(schema["$ref"].rpartition("/")[2])
        return dict(self._keywords(schema))

    def _target(self, name: str) -> dict[str, Any]:
        if name not in self._done:
            self._done[name] = {}  # in place before its content, for a schema that holds itself
            self._done[name].update(self._keywords(self._sources[name]))
        return self._done[name]

    def _keywords(self, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for keyword, value in schema.items():
            if keyword == "examples":
                yield "x-examples", value  # for messages; no keyword of the checker
            elif keyword in _ANNOTATIONS:
                continue
            elif keyword in {"properties", "patternProperties", "dependentSchemas"}:
                yield keyword, {key: self._schema(each) for key, each in value.items()}
            else:
                yield keyword, self._schema(value)
