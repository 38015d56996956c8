"""What a person waits for before anything is captured: start-up of `validate`, large specs, `check` of a 70B model.

    python benchmarks/startup.py             # a table
    python benchmarks/startup.py --check     # exit code 1 where something takes longer than the project promises

Whole processes, best of several, in turns where two are compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPECS = ROOT / "specs"
HEAD = """graphspec: 1
name: large
model: {factory: model.py:build}
buffers:
  v0: {shape: [8], dtype: float32}
"""


def seconds(arguments: list[str], runs: int = 5) -> float:
    """The shortest wall time of a Python process with these arguments."""
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT)
        taken.append(time.perf_counter() - start)
    return min(taken)


def large(folder: Path, regions: int) -> str:
    """A spec with a chain of regions, each in a pool of fifty."""
    names = [f"r{i}" for i in range(regions)]
    lines = [f"  r{i}: {{call: model.layer, inputs: [v{i}], outputs: v{i + 1}}}" for i in range(regions)]
    pools = [f"  p{i}: [{', '.join(names[i : i + 50])}]" for i in range(0, regions, 50)]
    text = HEAD + "\n".join(["pools:", *pools, "regions:", *lines, f"replay: [{', '.join(names)}]"]) + "\n"
    (folder / "model.py").write_text("def build(): ...\n")
    path = folder / f"{regions}.yaml"
    path.write_text(text)
    return str(path)


def rows() -> list[tuple[str, float, str, float | None]]:
    """What is measured: name, value, unit, and the most it may be."""
    libraries = seconds(["-c", "import yaml, jsonschema, click"], 7)
    validate = seconds(["-m", "graphspec", "validate", str(SPECS / "mlp" / "model.yaml")], 7)
    with tempfile.TemporaryDirectory() as folder:
        small, big = (
            seconds(["-m", "graphspec", "plan", large(Path(folder), count), "--format", "json"], 3)
            for count in (100, 1000)
        )
    check = seconds(["-m", "graphspec", "check", str(SPECS / "llama-70b" / "model.yaml")], 1)
    return [
        ("validate over the import of its libraries", validate / libraries, "x", 1.6),
        ("validate and plan of 100 regions", small, "s", None),
        ("validate and plan of 1,000 regions", big, "s", 2.0),
        ("check of a Llama of 70B parameters", check, "s", 30.0),
    ]


def main() -> int:
    """Measures and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description="Times what happens before a capture.")
    parser.add_argument("--check", action="store_true", help="exit 1 when something takes longer than promised")
    chosen = parser.parse_args()
    found = rows()
    for name, value, unit, most in found:
        print(f"{name:<45}{value:>8.2f} {unit}" + (f"   at most {most:g} {unit}" if most is not None else ""))
    return int(chosen.check and any(most is not None and value > most for _, value, _, most in found))


if __name__ == "__main__":
    sys.exit(main())
