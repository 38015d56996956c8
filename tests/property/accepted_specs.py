"""Examples changed at random that `validate` still accepts, through `plan`, `check` and `run`.

    python tests/property/accepted_specs.py --count 300            # seeds from the clock on
    python tests/property/accepted_specs.py --first 7 --count 1 -v  # one of them again, shown

Each ends with an exit code of graphspec's and without a frame of graphspec in any traceback, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import mutated_specs

from graphspec.loading import inspect

ROOT = mutated_specs.ROOT
EXAMPLES = ("mlp", "pipeline", "recurrent", "paged-decode")
COMMANDS = (("plan",), ("check",), ("run", "--device", "cpu", "--steps", "2"))
LIMIT_S = 60
_GOOD_CODES = (0, 1, 2, 3)
_OUR_FRAME = re.compile(r'File "[^"]*/graphspec/(?!specs/|tests/)[^"]*", line')


def main() -> int:
    """Walks seeds until enough were accepted; says how many ended otherwise than they may, and shows each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=int(time.time()))
    parser.add_argument("-v", action="store_true", dest="shown")
    options = parser.parse_args()
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    import graphspec.cli
    import graphspec.runtime.check
    import graphspec.runtime.runner  # noqa: F401

    ended: Counter[str] = Counter()
    accepted, faults, seed = 0, 0, options.first
    while accepted < options.count:
        fault = judge(seed, ended, shown=options.shown)
        accepted += fault is not None
        if fault:
            faults += 1
            mutated_specs.say(f"seed {seed}: {fault}")
        seed += 1
    mutated_specs.say(f"seeds {options.first} to {seed - 1}: {accepted} accepted specs, {faults} faults")
    mutated_specs.say(*(f"{count:6} x {how}" for how, count in sorted(ended.items())))
    return min(faults, 1)


def judge(seed: int, ended: Counter[str], *, shown: bool = False) -> str | None:
    """None for a spec that `validate` refuses, "" for one that ends as it may, or what is wrong."""
    texts = {name: (ROOT / "specs" / name / "model.yaml").read_bytes() for name in EXAMPLES}
    name = EXAMPLES[seed % len(EXAMPLES)]
    home = Path(tempfile.mkdtemp())
    try:
        for file in (ROOT / "specs" / name).glob("*.py"):
            shutil.copy(file, home)
        path = home / "model.yaml"
        path.write_bytes(mutated_specs.mutated(seed, [texts[name]]))
        if path.read_bytes() == texts[name] or any(each.severity == "error" for each in inspect(path)[1]):
            return None
        if shown:
            mutated_specs.say(path.read_text())
        for command in COMMANDS:
            if fault := _ended(path, command, ended, shown=shown):
                return fault
        return ""
    finally:
        shutil.rmtree(home)


def _ended(path: Path, command: tuple[str, ...], ended: Counter[str], *, shown: bool) -> str | None:
    output = path.with_suffix(".out")
    child = os.fork()
    if child == 0:
        file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        code = 70
        try:
            from graphspec.cli import main as graphspec

            sys.argv = ["graphspec", command[0], str(path), *command[1:]]
            code = graphspec()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:  # noqa: BLE001 - shown below
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    said = output.read_text(errors="replace")
    if shown:
        mutated_specs.say(f"{command[0]}: {said}")
    code = os.waitstatus_to_exitcode(status)
    ended[f"{command[0]} ended with {code}"] += 1
    if code == -signal.SIGXCPU:
        return f"{command[0]} took more than {LIMIT_S} s of processor time"
    if code not in _GOOD_CODES or _OUR_FRAME.search(said):
        return f"{command[0]} ended with {code}:\n{said[-3000:]}"
    return None


if __name__ == "__main__":
    sys.exit(main())
