"""GS5xx: updates that can be told to be wrong without the model."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.errors import Diagnostic, KeyPath
from graphspec.finding import finding
from graphspec.spec import Spec, Update


def _updates(spec: Spec) -> Iterator[tuple[Update, KeyPath]]:
    for region in spec.regions.values():
        for index, update in enumerate(region.updates):
            yield update, ("regions", region.name, "updates", index)


def _is_operator(text: str) -> bool:
    namespace, _, name = text.partition("::")
    return namespace.isidentifier() and 1 <= len(parts := name.split(".")) <= 2 and all(map(str.isidentifier, parts))  # noqa: PLR2004  name, overload


def operators(spec: Spec) -> Iterator[Diagnostic]:
    """GS501: an operator is named as the dispatcher names it."""
    for update, path in _updates(spec):
        if not _is_operator(update.op):
            name = update.op.removeprefix("torch.ops.").replace("::", ".")
            parts = name.split(".")
            namespace, rest = (parts[0], ".".join(parts[1:])) if len(parts) > 1 else ("aten", name)
            message = f"'{update.op}' is no dispatcher name: `namespace::name` or `namespace::name.overload`"
            meant = f"{'aten' if namespace in {'torch', 'Tensor'} else namespace}::{rest}"
            hint = f"write {meant}" if _is_operator(meant) else "write, for example, aten::mul"
            yield finding(spec.document, "GS501", message, (*path, "op"), hint=hint)


def occurrences(spec: Spec) -> Iterator[Diagnostic]:
    """GS502: occurrences count from 0, each listed once."""
    for update, path in _updates(spec):
        seen: set[int] = set()
        for index, at in enumerate(update.at or ()):
            message = None
            if at < 0:
                message, hint = f"the occurrence {at} does not exist: they count from 0", "write 0 for the first call"
            elif at in seen:
                message, hint = f"the occurrence {at} is listed twice", "remove one"
            if message is not None:
                yield finding(spec.document, "GS502", message, (*path, "at", index), hint=hint)
            seen.add(at)


def spread(spec: Spec) -> Iterator[Diagnostic]:
    """GS503: only a param with a first axis can be spread over the calls."""
    for update, path in _updates(spec):
        param = spec.params.get(update.param)
        if update.each is not None and param is not None and not param.shape:
            message = f"`each: {update.each}` spreads the first axis of a param, and '{param.name}' has none"
            hint = f"give '{param.name}' a shape, or remove `each`"
            yield finding(spec.document, "GS503", message, (*path, "each"), hint=hint)


def overlaps(spec: Spec) -> Iterator[Diagnostic]:
    """GS504: one argument of one call refreshed from two places: the last would win in silence.

    Only where it is certain without the model; whatever else meets in one argument is refused at the capture.
    """
    seen: dict[tuple[str, str], list[Update]] = {}
    for update, path in _updates(spec):
        for other in (others := seen.setdefault((str(path[1]), update.arg), [])):
            if _meet(update, other):
                sources = " and ".join(f"'{each}'" for each in dict.fromkeys((other.param, update.param)))
                message = f"`{update.arg}` of {update.op} is refreshed twice, from {sources}"
                yield finding(spec.document, "GS504", message, path, hint="tell the calls apart with `at`, or keep one")
                break
        others.append(update)


def _meet(one: Update, other: Update) -> bool:
    """Whether both certainly refresh one call: either takes all that the other picks, or they pick by number alike."""
    if _takes_all(one, other) or _takes_all(other, one):
        return True
    alike = (one.op, one.within) == (other.op, other.within)
    return alike and bool(set(one.at or ()) & set(other.at or ()))


def _takes_all(one: Update, other: Update) -> bool:
    """Whether ``one`` picks every call that ``other`` picks. A name without an overload stands for all of them."""
    if one.at is not None or one.within not in {None, other.within}:
        return False
    return one.op in {other.op, other.op.partition(".")[0]}


def specialized(spec: Spec) -> Iterator[Diagnostic]:
    """GS505, a warning: a specialized param has one graph for each value, so there is nothing to refresh."""
    for update, path in _updates(spec):
        param = spec.params.get(update.param)
        if param is not None and param.specialize and update.strategy == "update":
            message = f"'{param.name}' is specialized: every value has a graph of its own, and nothing is refreshed"
            yield finding(spec.document, "GS505", message, path, severity="warning",
                          hint=f"remove the update, or `specialize` of '{param.name}'")  # fmt: skip
