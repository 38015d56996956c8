"""What `graphspec run` found out, as finished values: printed by `run_text` and `run_json`, made by the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class ReportedGraph:
    """One graph: what was captured, in which pool, at what cost. ``capture_s`` in seconds.

    ``variant`` is the text of the plan's variant it belongs to; empty where a spec has one. ``compile_s`` are the
    seconds its compilation took, 0 from a cache; None where it is not compiled.
    """

    region: str
    bucket: Mapping[str, int]
    pool: str
    operators: int
    bytes: int
    capture_s: float
    variant: str = ""
    compile_s: float | None = None


@dataclass(frozen=True)
class Mismatch:
    """The worst place at which two runs differ: ``what`` (an output or state) at ``index``, and both values."""

    what: str
    index: tuple[int, ...] | None
    expected: str
    came: str
    reason: str


@dataclass(frozen=True)
class PaddingProof:
    """Whether padded rows reach real rows. ``sizes`` are the padded runs it was shown for.

    ``bitwise``: the bucket repeats itself exactly, so real rows were compared bit by bit, else with the tolerance.
    """

    sizes: tuple[str, ...]
    bitwise: bool = True


@dataclass(frozen=True)
class Check:
    """Replay against eager. ``max_abs_diff`` is None where nothing was compared or a difference is not finite.

    ``poisoned`` says what was overwritten before every replay, ``runs`` the sizes of each sequence that were run;
    ``failure`` is one message, and ``fix`` its fix.
    """

    status: Literal["match", "mismatch", "skipped"]
    rtol: float
    atol: float
    max_abs_diff: float | None = None
    steps: int = 0
    poisoned: str = ""
    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    proof: PaddingProof | None = None
    notes: tuple[str, ...] = ()
    failure: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Timing:
    """End-to-end times of one sequence, or of all in a row, in microseconds; None where nothing was timed.

    ``recorded_us``: the same regions, captured uncompiled; None where no region is compiled.
    """

    what: str
    sizes: str
    calls: int
    replay_us: float | None
    replay_p95_us: float | None
    eager_us: float | None
    recorded_us: float | None = None


@dataclass(frozen=True)
class Output:
    """One result of the first run. ``mean`` is None where it is not a finite number."""

    shape: tuple[int, ...]
    dtype: str
    mean: float | None


@dataclass(frozen=True)
class Counts:
    """What the runner counted: replayed runs, runs a bucket, the share of padded rows, runs that went to eager."""

    replays: int
    bucket_hits: Mapping[str, int]
    padded_fraction: float
    fallbacks: int


@dataclass(frozen=True)
class RunReport:
    """Everything one `run` has to say. ``total`` is every sequence in a row, ``sequences`` each on its own.

    ``graphs`` are those of the plan; ``inline`` those of modules, which are known when the model has called them.
    """

    version: str
    spec: str
    device: str
    graphs: tuple[ReportedGraph, ...]
    check: Check
    steps: int
    total: Timing
    sequences: tuple[Timing, ...]
    outputs: Mapping[str, Output]
    counts: Counts
    warnings: tuple[str, ...] = ()
    inline: tuple[ReportedGraph, ...] = ()
