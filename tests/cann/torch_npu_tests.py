"""Run torch_npu's own graph tests on the emulated CANN: ``python tests/cann/torch_npu_tests.py FOLDER [FILE ...]``.

``FOLDER`` is the ``test`` folder of a checkout of torch_npu, which is not shipped here; ``FILE`` is a path in it, and
without one the files below run. Printed are two tables: how many tests of each file pass, and what the others need.
A test that ends its process or makes no progress counts as one that fails, and the rest of its file still runs.

The same file is the pytest plugin that notes the outcome of each test.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import build
import loader

# Environment: the files where the plugin writes, and where it finds the tests to leave out, one a line.
NOTES, DONE = "EMU_CANN_TEST_NOTES", "EMU_CANN_TESTS_DONE"
HERE = Path(__file__).resolve().parent

FILES = (
    *(f"npu/test_aclgraph_{name}.py" for name in ("update", "update_plan", "rng_state", "dfx", "multi_stream")),
    *(f"npu/test_aclgraph_{name}.py" for name in ("launch_host_func", "pin_memory", "conditional_nodes")),
    *(f"npu/test_aclgraph_{name}.py" for name in ("support_blocking", "super_kernel")),
    *("npu/test_graph_tree.py", "npu/test_npugraph_handler.py", "npu/test_compile_aclgraph_update.py"),
    *("npu/test_aclnn_random_aclgraph.py", "npu/test_stream.py", "npu/test_generators.py"),
    *("npu/test_optimizer_zero_grad.py", "npu/test_torch_npu.py", "npu/test_amp.py"),
    *("npu/test_multi_devices_single_process.py", "dynamo/test_npugraph_ex.py", "dynamo/test_npugraphs.py"),
)


# ---- the plugin


def note(entry: dict[str, Any]) -> None:
    path = os.environ.get(NOTES)
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(entry) + "\n")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    path = os.environ.get(DONE)
    done = set(Path(path).read_text().splitlines()) if path else set()
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    note({"test": nodeid, "outcome": "running"})


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        note({"test": report.nodeid, "outcome": report.outcome, "text": report.longreprtext})


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        note({"test": report.nodeid, "outcome": "failed", "text": report.longreprtext})


# ---- running one file


@dataclass
class Outcomes:
    """What became of each test of a file, and why those that did not pass failed."""

    of: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def read(self, notes: Path) -> None:
        for line in notes.read_text().splitlines():
            entry = json.loads(line)
            self.of[entry["test"]] = entry["outcome"]
            if entry["outcome"] in ("failed", "skipped"):
                self.why[entry["test"]] = reason(entry.get("text", ""))

    def end(self, how: str) -> None:
        """Settle what was running when the process ended."""
        for test in [test for test, outcome in self.of.items() if outcome == "running"]:
            self.of[test], self.why[test] = "failed", how


def reason(text: str) -> str:
    """One line: what the emulated CANN says, or else the last error."""
    said = re.findall(r"\[emulated CANN\] (?:(?:stream|graph) \d+[^:]*: )*(.*)", text)
    errors = re.findall(r"^E +(\w[\w.]*(?:Error|Exception|Failure|Warning)\b.*)$", text, re.MULTILINE)
    skips = re.findall(r"Skipped: (.*?)['\"]\)?$", text)
    lines = said[-1:] or skips or errors[-1:] or text.strip().splitlines()[-1:] or ["no message"]
    return re.sub(r"0x[0-9a-f]+|\d{5,}", "N", lines[0])[:160]


def run_file(folder: Path, file: str, environment: dict[str, str], patience: float) -> Outcomes:
    """Each failure ends a process, and the next one goes on behind it: a device that failed may spoil what follows."""
    outcomes = Outcomes()
    while True:
        before = Counter(outcomes.of.values())
        with tempfile.TemporaryDirectory() as scratch:
            notes, done = Path(scratch) / "notes", Path(scratch) / "done"
            notes.touch()
            done.write_text("\n".join(outcomes.of))
            command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-p", Path(__file__).stem]
            command += [f"--rootdir={folder}", str(folder / file)]
            how = run_process(command, {**environment, NOTES: str(notes), DONE: str(done)}, folder, patience)
            outcomes.read(notes)
        outcomes.end(how)
        if Counter(outcomes.of.values())["failed"] == before["failed"]:
            return outcomes


def run_process(command: list[str], environment: dict[str, str], folder: Path, patience: float) -> str:
    """Run it until it ends, or until its notes do not grow for ``patience`` seconds. Returns how it ended."""
    notes = Path(environment[NOTES])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True, **quiet) as process:
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            if notes.stat().st_size != size:
                size, since = notes.stat().st_size, time.monotonic()
            if time.monotonic() - since > patience:
                os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
                return f"no progress for {patience:g} s"
    return f"the process ended with {process.returncode}"


def settings(environment: dict[str, str], out: Path) -> dict[str, str]:
    """The environment of the tests: what they take for granted on a machine with an NPU."""
    home = out / "home"  # without one, torch_npu prints a warning, which some tests read as output
    for part in ("runtime", "compiler", "opp"):
        (home / part).mkdir(parents=True, exist_ok=True)
    made = {
        "EMU_CANN_TIMEOUT": "60",  # large matrices
        "EMU_CANN_MEMORY_MB": "16384",
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_OPP_PATH": str(home / "opp"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **environment,
    }
    made.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    made["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, made.get("PYTHONPATH", "").split(os.pathsep))])
    return made


# ---- tables


def tables(results: dict[str, Outcomes]) -> Iterator[str]:
    yield "| file | passed | failed | skipped |\n|---|---|---|---|"
    total: Counter[str] = Counter()
    for file, outcomes in results.items():
        counted = Counter(outcomes.of.values())
        total.update(counted)
        yield f"| {file} | {counted['passed']} | {counted['failed']} | {counted['skipped']} |"
    yield f"| all | {total['passed']} | {total['failed']} | {total['skipped']} |"
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for outcomes in results.values():
        for test, why in outcomes.why.items():
            grouped[outcomes.of[test], why].append(test.split("::")[-1])
    yield "\n| outcome | what it says | tests |\n|---|---|---|"
    for (outcome, why), tests in sorted(grouped.items(), key=lambda item: (item[0][0], -len(item[1]))):
        named = ", ".join(tests[:3]) + (f" and {len(tests) - 3} more" if len(tests) > 3 else "")
        yield f"| {outcome} | {why.replace('|', '/')} | {named} |"


def main() -> int:
    """Command line; 0 also when tests fail, since the tables say so."""
    parser = argparse.ArgumentParser(description="Run torch_npu's own tests on the emulated CANN.")
    parser.add_argument("folder", type=Path, help="the folder `test` of a checkout of torch_npu")
    parser.add_argument("files", nargs="*", default=FILES, help="paths in that folder (default: the graph tests)")
    parser.add_argument("--patience", type=float, default=300, help="seconds a test may take (default: %(default)s)")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    absent = [file for file in arguments.files if not (folder / file).is_file()]
    if absent:
        parser.error(f"{folder} has no {', '.join(absent)}")
    environment = settings(loader.environment(build.build()), build.DEFAULT_OUT)
    results = {}
    for file in arguments.files:
        results[file] = run_file(folder, file, environment, arguments.patience)
        counted = Counter(results[file].of.values())
        sys.stderr.write(f"{file}: {counted['passed']} of {len(results[file].of)} passed\n")
    sys.stdout.write("\n".join(tables(results)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
