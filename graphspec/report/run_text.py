"""The report of `run` for a person: what was captured, whether it is right, how fast it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphspec.report.run_values import Check, Output, ReportedGraph, RunReport, Timing
from graphspec.report.tables import shortened, table
from graphspec.units import counted, human_bytes, microseconds, seconds

#: Longer lists leave their middle out.
_GRAPHS = 24
_SIZES = 8

#: Marks a piece of text as good, bad or a heading; the identity where there is no colour.
Paint = Callable[[str, str], str]


def plain(text: str, _: str) -> str:
    """No colour."""
    return text


def render(report: RunReport, paint: Paint = plain) -> str:
    """The report as text; a section that has nothing to say is left out. ``paint`` colours parts of it."""
    sections = (
        [_headline(report)],
        _captured((*report.graphs, *report.inline)),
        list(_check(report.check, paint)),
        list(_speed(report)),
        table("results", ("dtype", "shape", "mean"), (_output(*item) for item in report.outputs.items())),
        [warning if "warning[" in warning else f"warning: {warning}" for warning in report.warnings],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _headline(report: RunReport) -> str:
    graphs = (*report.graphs, *report.inline)
    pools = len({graph.pool for graph in graphs})
    taken = sum(graph.capture_s for graph in graphs)
    facts = f"{counted(len(graphs), 'graph')} in {counted(pools, 'pool')}, captured in {seconds(taken)}"
    return f"{report.spec} on {report.device}: {facts}"


def _captured(graphs: tuple[ReportedGraph, ...]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        (
            g.region,
            sizes(g.bucket),
            g.variant,
            g.pool,
            f"{g.operators:,}",
            human_bytes(g.bytes),
            seconds(g.capture_s),
            _compiled(g.compile_s),
        )
        for g in graphs
    ]
    if len(rows) > _GRAPHS:
        left_out = len(rows) - _GRAPHS
        rows = [*rows[: _GRAPHS // 2], (f"... {left_out:,} more", *[""] * 7), *rows[-(_GRAPHS // 2) :]]
    return table("captured", ("bucket", "variant", "pool", "operators", "memory", "time", "compiled"), rows)


def _compiled(taken: float | None) -> str:
    if taken is None:
        return ""
    return seconds(taken) if taken else "from the cache"


def _check(check: Check, paint: Paint) -> Iterator[str]:
    if check.status == "skipped":
        yield "check     skipped"
    elif check.failure is not None:
        diff = f", max abs diff {check.max_abs_diff:.3g}" if check.max_abs_diff is not None else ""
        yield f"check     {paint('MISMATCH', 'bad')} after {counted(check.steps, 'step')}{diff}"
        yield f"          {check.failure}"
    else:
        diff = f"{check.max_abs_diff:.2g}" if check.max_abs_diff is not None else "not finite"
        said = f"{counted(check.steps, 'step')}, max abs diff {diff} (rtol {check.rtol:g}, atol {check.atol:g})"
        yield f"check     {paint('replay matches eager', 'good')}: {said}"
        yield f"          {check.poisoned} are poisoned before every replay"
    for name, run in check.runs.items():
        of = f" of {name}" if len(check.runs) > 1 else ""
        yield f"          sizes{of}: {shortened(run, _SIZES, '; ')}"
    if check.proof is not None and check.failure is None:
        how = "bit by bit" if check.proof.bitwise else "within the tolerance"
        times = counted(len(check.proof.sizes), "padded size")
        yield f"          padded rows never reach real ones: {times}, two contents each, compared {how}"
    for note in check.notes:
        yield f"          note: {note}"


def _speed(report: RunReport) -> Iterator[str]:
    columns = ("eager", *(("recorded", "compiled") if report.total.recorded_us else ("replay",)), "p95", "", "runs")
    if len(report.sequences) == 1:
        (only,) = report.sequences
        yield from table("speed", columns, [(only.sizes or "one run", *_timing(only))])
        return
    rows = [(one.what, one.sizes, *_timing(one)) for one in report.sequences]
    if rows:
        rows.append(("all in a row", "", *_timing(report.total)))
    yield from table("speed", ("at", *columns), rows)


def _timing(timing: Timing) -> tuple[str, ...]:
    return (
        microseconds(timing.eager_us),
        *((microseconds(timing.recorded_us),) if timing.recorded_us else ()),
        microseconds(timing.replay_us),
        microseconds(timing.replay_p95_us),
        _ratio(timing),
        f"{timing.calls:,}",
    )


def _ratio(timing: Timing) -> str:
    if not timing.eager_us or not timing.replay_us:
        return ""
    against = f", {timing.recorded_us / timing.replay_us:.2f}x of recorded" if timing.recorded_us else ""
    return f"{timing.eager_us / timing.replay_us:.2f}x as fast{against}"


def _output(name: str, output: Output) -> tuple[str, ...]:
    mean = "" if output.mean is None else f"{output.mean:.6g}"
    return name, output.dtype, f"[{', '.join(map(str, output.shape))}]", mean


def sizes(bucket: Mapping[str, int]) -> str:
    """``batch=4, cache=64``."""
    return ", ".join(f"{dim}={size}" for dim, size in bucket.items())
