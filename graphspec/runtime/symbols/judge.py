"""What a trace on symbols says of a region: every use of a param that a graph would freeze, its line and the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphspec import spec as language
from graphspec.errors import Diagnostic
from graphspec.recording.calls import Call, Ref
from graphspec.recording.source import Site
from graphspec.runtime.symbols.declared import calls_of, decides_shape, is_view, picked, suggestion
from graphspec.runtime.symbols.node import Node, Origin
from graphspec.runtime.symbols.trace import Passed, SymbolRead, Trace
from graphspec.runtime.symbols.tree import exactly, moved, nodes_in, part


@dataclass(frozen=True)
class Judged:
    """``findings``, one a line and param, and the ``passed`` numbers that only a second value can judge."""

    findings: list[Diagnostic]
    passed: list[Passed]


def judge(
    region: language.Region, trace: Trace, params: Mapping[str, Any], others: Mapping[str, Sequence[Any]]
) -> Judged:
    """Judge one trace. ``params`` are the values it was made with, ``others`` further values in their ranges."""
    judge = _Judge(region, trace, params, others)
    passed = [one for one in trace.passed if judge.may_be_exact(one)]
    lost = [one for one in trace.passed if one not in passed]
    found: dict[tuple[Site, frozenset[str], str], Diagnostic] = {}
    for site, params_of, finding in (*judge.reads(), *judge.lost(lost), *judge.arguments(), *judge.tensors()):
        found.setdefault((site, params_of, "" if finding.code == "GS512" else finding.message), finding)
    return Judged(list(found.values()), passed)


_Found = Iterator[tuple[Site, frozenset[str], Diagnostic]]


class _Judge:
    def __init__(
        self, region: language.Region, trace: Trace, params: Mapping[str, Any], others: Mapping[str, Sequence[Any]]
    ) -> None:
        self._region = region
        self._trace = trace
        self._calls = trace.recorder.recording.calls
        self._params = params
        self._others = others
        self._declared = picked(region, trace.recorder.recording)

    def reads(self) -> _Found:
        """GS512: a number of the host was made from a param, and what happens with it cannot be followed."""
        for read in self._trace.reads:
            said, hint = _READS[read.kind]
            what = said.format(text=read.node.text, where=_within(read))
            yield read.site, read.node.params, self._finding("GS512", what, read.node, read.site, hint)

    def lost(self, passed: Sequence[Passed]) -> _Found:
        """GS722: a function of torch took a number, and no operator it called was given just that."""
        for one in passed:
            what = f"{one.function} computes with `{one.node.text}` on the host"
            yield one.site, one.node.params, self._finding("GS722", what, one.node, one.site, _OUTSIDE)

    def may_be_exact(self, passed: Passed) -> bool:
        """Whether some operator was given the number as it is, or none was called; a second value tells whether."""
        first, last = passed.calls
        if first == last:
            return True
        values = (value for call in self._calls[first:last] for value in given(call))
        return passed.node.origin is not None and any(holds(value, passed.node.value) for value in values)

    def arguments(self) -> _Found:
        """GS511, GS513 and GS722: what operators were given."""
        for (index, position), argument in self._trace.arguments.items():
            call = self._calls[index]
            name = call.op._schema.arguments[position].name
            of = f"{call.name} '{name}'"
            parts = nodes_in(argument)
            node, params = parts[0], frozenset[str]().union(*(part.params for part in parts))
            origin = exactly(argument, self._params)
            update = self._declared.get((index, position))
            if is_view(call) or self._decides_shape(call, position, argument, origin):
                what = f"{of} is {_shown(argument)}, which decides a size or a view"
                finding = self._finding("GS513", what, node, call.site, _SIZE)
            elif origin is None:
                what = f"{of} is {_shown(argument)}, and a graph would freeze it"
                finding = self._finding("GS722", what, node, call.site, _OUTSIDE)
            elif update is None:
                finding = self._undeclared(index, position, of, origin)
            elif update != origin:
                what = f"{of} is {_shown(argument)}, and an update refreshes it from '{_text(update)}'"
                hint = f"declare `from: {origin[0]}`, or pick other occurrences with `at`"
                finding = self._finding("GS510", what, node, call.site, hint)
            else:
                continue
            yield call.site, params, finding

    def tensors(self) -> _Found:
        """GS510: an update picks a call that is given a tensor, where another one is given the param."""
        for (index, position), (name, _) in self._declared.items():
            call = self._calls[index]
            argument = call.op._schema.arguments[position].name
            if name not in self._trace.params or not isinstance(call.arguments()[argument], Ref):
                continue
            same = calls_of(self._trace.recorder.recording, call.name)
            exact = [exactly(self._trace.arguments.get((other, position)), self._params) for other in same]
            fits = [number for number, one in enumerate(exact) if one is not None and one[0] == name]
            what = f"an update refreshes {call.name} '{argument}' from '{name}', and the model passes a tensor there"
            hint = f"pick the calls that are given '{name}': at: {fits}" if fits else f"pass '{name}' itself"
            message = f"region '{self._region.name}': {what}, at {call.site}"
            found = Diagnostic("GS510", message, file=call.site.file, line=call.site.line, hint=hint)
            yield call.site, frozenset({name}), found

    def _undeclared(self, index: int, position: int, of: str, origin: Origin) -> Diagnostic:
        call, (name, path) = self._calls[index], origin
        argument = call.op._schema.arguments[position].name
        same = calls_of(self._trace.recorder.recording, call.name)
        exact = [exactly(self._trace.arguments.get((other, position)), self._params) for other in same]
        what = f"{of} is the param '{_text(origin)}', and a graph would freeze it"
        if not path:
            at = None if all(one == origin for one in exact) else [i for i, one in enumerate(exact) if one == origin]
            hint = f"declare it: {suggestion(call.name, argument, name, at=at)}"
        elif exact == [(name, (item,)) for item in range(len(self._params[name]))]:
            hint = f"declare it: {suggestion(call.name, argument, name, each=True)}"
        else:
            hint = f"declare the item as a param of its own, or make it a buffer `from: {name}` and take it from there"
        message = f"region '{self._region.name}': {what}, at {call.site}"
        return Diagnostic("GS511", message, file=call.site.file, line=call.site.line, hint=hint)

    def _decides_shape(self, call: Call, position: int, argument: Any, origin: Origin | None) -> bool:
        if origin is not None:
            values = [part({origin[0]: value}, origin) for value in self._others.get(origin[0], ())]
        else:
            values = [moved(argument, by) for by in (-1, 1, 2, 8)]
        return decides_shape(call, position, values)

    def _finding(self, code: str, what: str, node: Node, site: Site, hint: str) -> Diagnostic:
        names = sorted(node.params)
        made = "" if node.origin is not None else f" (made from {' and '.join(repr(name) for name in names)})"
        message = f"region '{self._region.name}': {what}{made}, at {site}"
        return Diagnostic(code, message, file=site.file, line=site.line, hint=hint.format(name=names[0]))


_OUTSIDE = "compute it outside and declare it as a param of its own, or compute with a tensor: a buffer `from: {name}`"
_SIZE = "make the size a bucketed dim, or the param `specialize: true`"
_BRANCH = (
    "use torch.where (torch.clamp for min and max) on a buffer `from: {name}`, or declare `specialize: true`, or a "
    "`min` and `max` that leave one answer"
)
_READS: Mapping[str, tuple[str, str]] = {
    "branch": ("takes a branch on `{text}`{where}", _BRANCH),
    "int": ("needs `{text}` as a Python int{where}", f"{_OUTSIDE}; or declare the param `specialize: true`"),
    "float": ("needs `{text}` as a Python float{where}", f"{_OUTSIDE}; or declare the param `specialize: true`"),
    "text": ("makes text of `{text}`{where}", "leave it out, or declare the param `specialize: true`"),
    "tensor": ("makes a tensor of `{text}`", "pass it in instead: a buffer `from: {name}` is its copy on the device"),
}


def _within(read: SymbolRead) -> str:
    return f" in {read.function}" if read.function else ""


def _text(origin: Origin) -> str:
    return origin[0] + "".join(f"[{index}]" for index in origin[1])


def _shown(argument: Any) -> str:
    return f"`{_plainly(argument)}`"


def _plainly(argument: Any) -> str:
    if isinstance(argument, Node):
        return argument.text
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(map(_plainly, argument[:8]))}{', ...' if len(argument) > 8 else ''}]"  # noqa: PLR2004
    return repr(argument)


def given(call: Call) -> tuple[Any, ...]:
    """What a recorded call was given, without what it left at its default."""
    return (*call.args, *call.kwargs.values())


def holds(argument: Any, value: Any) -> bool:
    """Whether a recorded argument is this number, or a list that has it."""
    if isinstance(argument, tuple):
        return any(holds(item, value) for item in argument)
    return not isinstance(argument, Ref) and isinstance(argument, (int, float)) and argument == value
