"""Walks the model types of the transformers package: builds each small, captures it, compares it with eager.

    python benchmarks/transformers_walk                     # every type: a table for docs/
    python benchmarks/transformers_walk llama bert          # these types, and what went wrong in full
    python benchmarks/transformers_walk --decode            # causal language models, one token into a StaticCache

Each type is a process of its own, forked from one that has the libraries: what crashes or hangs is one line. Weights
are random, nothing is downloaded. What the walk itself cannot make small, or cannot call, is listed as not evaluated.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")

from rows import Row, table

from graphspec.runtime.building.devices import without_broken_torch_npu

MODEL_TYPES_LEFT_OUT = {"timm_backbone", "timm_wrapper"}  # need a package that is not installed


def main() -> int:
    """Walks, prints the table, and returns 1 where a type mismatched or failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--limit-s", type=float, default=120, help="processor seconds for one type")
    parser.add_argument("--json", type=Path, help="rows are added to this file, and those in it are not walked again")
    options = parser.parse_args()
    with without_broken_torch_npu():
        return walk(options)


def walk(options: argparse.Namespace) -> int:
    """The same, with the libraries importable."""
    import evaluate
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if options.decode else MODEL_MAPPING_NAMES
    types = options.types or [name for name in names if name not in MODEL_TYPES_LEFT_OUT]
    before = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    rows = [Row(**each) for each in before]
    known = {row.type for row in rows}
    for name in types:
        if name in known:
            continue
        row = in_its_own_process(name, evaluate.decode if options.decode else evaluate.once, options)
        rows.append(row)
        print(
            f"{row.type:32} {row.verdict:14} {row.code:6} {row.seconds:6.1f} s  {row.detail[:110]}",
            file=sys.stderr,
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps([asdict(each) for each in rows], indent=1))
    print(table(rows, "one token into a StaticCache" if options.decode else "one bucket"))
    return int(any(row.verdict in ("mismatch", "failed") for row in rows))


def in_its_own_process(name: str, judge: Any, options: argparse.Namespace) -> Row:
    """The row that ``judge`` makes in a child process, or one that says how the child ended."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.setitimer(signal.ITIMER_PROF, options.limit_s)  # SIGPROF ends a process that does not catch it
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            started = time.process_time()
            try:
                row = judge(name, Path(folder))
            except BaseException as error:  # noqa: BLE001 - one line in the table
                if options.types:
                    traceback.print_exc()
                row = Row(name, "failed", detail=f"{type(error).__name__}: {error}".replace("\n", " ")[:300])
            row = Row(**{**asdict(row), "seconds": time.process_time() - started})
        os.write(write, json.dumps(asdict(row)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        return Row(**json.loads(text))
    signal_number = status & 0x7F
    if signal_number == signal.SIGPROF:
        return Row(name, "timeout", detail=f"more than {options.limit_s:.0f} s of processor time")
    return Row(name, "failed", detail=f"the process ended by signal {signal_number}")


if __name__ == "__main__":
    sys.exit(main())
