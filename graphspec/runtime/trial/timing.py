"""How long runs take, replayed and eager, in turns: what slows the machine down meanwhile slows both."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

from graphspec.report.run_values import Timing
from graphspec.runtime.building.build import call_user_code
from graphspec.runtime.padding.cases import Case
from graphspec.runtime.trial.rounds import Rounds
from graphspec.runtime.trial.subject import Progress, Subject

#: At least so long, in seconds, for each sequence: short runs are repeated more often than asked for.
_AT_LEAST_S = 0.5
_WARMUP = 2

#: Nanoseconds of each sequence in one pass over all of them.
_Pass = dict[str, int]


def measure(
    subject: Subject, steps: int, progress: Progress, recorded: Subject | None = None
) -> tuple[Timing, tuple[Timing, ...]]:
    """End-to-end times at the largest bucket, or at the fixed sizes: all sequences in a row, and each on its own.

    Eager is the model's own code and nothing else; a run checks its inputs, copies them in and its results out.
    ``recorded`` is the same opened without compilers, timed in the same turns. ``steps`` passes at least; what runs
    carry over is put back.
    """
    with torch.no_grad():
        return _measure(_Runs(subject, recorded), steps, progress)


def _measure(runs: _Runs, steps: int, progress: Progress) -> tuple[Timing, tuple[Timing, ...]]:
    times: dict[str, list[_Pass]] = {way: [] for way in runs.rounds}
    for way, rounds in runs.rounds.items():
        for _ in range(_WARMUP):
            rounds(lambda way=way: runs.once(way))  # type: ignore[misc]
        rounds.restart()
    began = time.perf_counter()
    while len(times["replay"]) < steps or time.perf_counter() - began < _AT_LEAST_S * len(runs.cases):
        progress("time", min(len(times["replay"]), steps), steps)
        for way in times:
            times[way] += _round(runs, way)
            runs.rounds[way].restart()  # a model's states are those of every way
    each = tuple(_timing(name, str(case), times, (name,)) for name, case in runs.cases.items())
    return _timing("all sequences", "", times, tuple(runs.cases)), each


def _round(runs: _Runs, way: str) -> list[_Pass]:
    rounds = runs.rounds[way]
    rounds.restart()
    taken: list[_Pass] = []
    while len(taken) < rounds.limit:
        taken.append(rounds(lambda: runs.once(way)))
    return taken


class _Runs:
    """Every sequence once in declared order, on the same inputs every time. ``rounds`` has those of each way."""

    def __init__(self, subject: Subject, recorded: Subject | None) -> None:
        sequences = subject.runner.sequences
        self.cases: Mapping[str, Case] = {name: subject.largest(each) for name, each in sequences.items()}
        self._values = {name: subject.feed(each.plan, self.cases[name], 0) for name, each in sequences.items()}
        self._ways: Mapping[str, Mapping[str, Callable[[], object]]] = {
            "eager": {name: each.direct(self._values[name]) for name, each in sequences.items()},
            "replay": {name: partial(each.run, self._values[name]) for name, each in sequences.items()},
        }
        rounds = Rounds(subject.carried)
        self.rounds: Mapping[str, Rounds] = {"eager": rounds, "replay": rounds}
        if recorded is not None:
            others = recorded.runner.sequences
            ways = {name: partial(each.run, self._values[name]) for name, each in others.items()}
            self._ways = {**self._ways, "recorded": ways}
            self.rounds = {"eager": rounds, "recorded": Rounds(recorded.carried), "replay": rounds}
        self._synchronize = synchronizer(subject.runner.device)

    def once(self, way: str) -> _Pass:
        taken: _Pass = call_user_code(self._once, f"the {way} run", way)
        return taken

    def _once(self, way: str) -> _Pass:
        taken: _Pass = {}
        for name, run in self._ways[way].items():
            start = time.perf_counter_ns()
            run()
            self._synchronize()
            taken[name] = time.perf_counter_ns() - start
        return taken


def synchronizer(device: torch.device) -> Callable[[], None]:
    """What waits until the device is done; nothing on the CPU."""
    if device.type == "cpu":
        return lambda: None
    module = torch.get_device_module(device)
    return lambda: module.synchronize(device)


def _timing(what: str, sizes: str, times: Mapping[str, list[_Pass]], names: tuple[str, ...]) -> Timing:
    totals = {way: sorted(sum(one[name] for name in names) / 1_000 for one in taken) for way, taken in times.items()}
    replay = totals["replay"]
    return Timing(
        what=what,
        sizes=sizes,
        calls=len(replay),
        replay_us=statistics.median(replay),
        replay_p95_us=replay[math.ceil(0.95 * len(replay)) - 1],
        eager_us=statistics.median(totals["eager"]),
        recorded_us=statistics.median(totals["recorded"]) if "recorded" in totals else None,
    )
