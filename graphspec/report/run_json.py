"""The report of `run` for a program: one JSON object, every number finite, null where there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from graphspec.report.run_values import ReportedGraph, RunReport


def to_json(report: RunReport) -> dict[str, Any]:
    """The object as plain data. Times are in microseconds, capture times in seconds."""
    total = report.total
    recorded = {} if total.recorded_us is None else {"recorded": {"median_us": total.recorded_us}}
    return {
        "graphspec": report.version,
        "spec": report.spec,
        "device": report.device,
        "graphs": _graphs(report.graphs),
        "check": {"status": report.check.status, "max_abs_diff": report.check.max_abs_diff},
        "replay": {"steps": report.steps, "median_us": total.replay_us, "p95_us": total.replay_p95_us},
        "eager": {"median_us": total.eager_us},
        **recorded,
        "outputs": {name: {**asdict(output), "shape": list(output.shape)} for name, output in report.outputs.items()},
        "stats": asdict(report.counts),
    }


def _graphs(graphs: Sequence[ReportedGraph]) -> list[dict[str, Any]]:
    """Each graph; with its variant where there are several, with its compilation where some are compiled."""
    left_out = set() if any(graph.variant for graph in graphs) else {"variant"}
    if all(graph.compile_s is None for graph in graphs):
        left_out.add("compile_s")
    return [{key: value for key, value in asdict(graph).items() if key not in left_out} for graph in graphs]


def render(report: RunReport) -> str:
    """The object as text."""
    return json.dumps(to_json(report), indent=2, allow_nan=False) + "\n"
