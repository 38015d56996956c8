"""A path to a checked `Spec`: the one entry that every command and the Python interface use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphspec import document as documents
from graphspec import rules, schema
from graphspec.build_spec import build
from graphspec.errors import Diagnostic, SpecError
from graphspec.finding import in_order
from graphspec.spec import Spec, reads

if TYPE_CHECKING:
    from graphspec.plan import Plan


def load(path: Path | str) -> Spec:
    """The spec in the file at ``path``.

    Raises:
        SpecError: with every error of the file, sorted by position.
    """
    sources: dict[str, str] = {}
    spec, findings = inspect(path, sources=sources)
    errors = [each for each in findings if each.severity == "error"]
    if spec is None or errors:
        raise SpecError(errors, sources)
    return spec


def load_plan(path: Path | str) -> Plan:
    """The compiled spec in the file at ``path``, lowered once. Raises SpecError as `load` does."""
    sources: dict[str, str] = {}
    spec, plan, findings = _examined(path, None, sources)
    errors = [each for each in findings if each.severity == "error"]
    if spec is None or errors:
        raise SpecError(errors, sources)
    if plan is not None:
        return plan
    from graphspec.compiler import compile_spec

    return compile_spec(spec)


def inspect(
    path: Path | str, device: str | None = None, *, sources: dict[str, str] | None = None
) -> tuple[Spec | None, list[Diagnostic]]:
    """The spec, or None where it is too broken to have one, and everything found in it, warnings too, sorted.

    It is judged for its own device, or for ``device``. The text that was read is put into ``sources``, by the name of
    its file: what came through a pipe cannot be read again.
    """
    spec, _, findings = _examined(path, device, {} if sources is None else sources)
    return spec, findings


def _examined(
    path: Path | str, device: str | None, sources: dict[str, str]
) -> tuple[Spec | None, Plan | None, list[Diagnostic]]:
    with no_collections():
        try:
            document, findings = documents.examine(path)
        except SpecError as error:
            sources.update(error.sources)
            return None, None, list(error.diagnostics)
        sources[str(document.path)] = document.text
        refused = schema.check(document)
        if findings or refused:
            from graphspec.salvage import further_findings  # only for a spec with a mistake

            said = [*findings, *_unsaid(refused, findings), *further_findings(document, refused)]
            return None, None, in_order(said)
        spec = build(document)
        if device is not None:
            spec = replace(spec, device=device)
        found = rules.check(spec)
        plan, late = _lowered(spec, found)
        return spec, plan, in_order([*found, *late])


def _unsaid(refused: list[Diagnostic], said: list[Diagnostic]) -> list[Diagnostic]:
    """What the schema refused, without the places about which the reader has spoken already."""
    places = {(each.line, each.column) for each in said}
    return [each for each in refused if (each.line, each.column) not in places]


def _lowered(spec: Spec, found: list[Diagnostic]) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan and the findings of the compiler, which can lower only what the rules passed.

    No plan where none is needed to say that all is well: `validate` starts fast.
    """
    made = {name for region in spec.regions.values() for name in region.outputs}
    handed_on = any(name in made for region in spec.regions.values() for name in reads(region))
    lent = any(not buffer.copy for buffer in spec.buffers.values())
    if not (handed_on or lent or spec.loops) or any(each.severity == "error" for each in found):
        return None, []  # only a value that somebody reads after the region that makes it can come too late
    from graphspec.compiler import lower

    return lower(spec)


@contextmanager
def no_collections() -> Iterator[None]:
    """Hold the garbage collector: documents and traces are many small objects that stay; each pass would walk them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
