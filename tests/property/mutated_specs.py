"""Specs with something wrong, made from every spec of the project: bytes, words or structure of it changed at random.

    python tests/property/mutated_specs.py --count 100000          # seeds from the clock on
    python tests/property/mutated_specs.py --first 7 --count 1 -v  # one of them again, shown

Whatever a file holds, reading it ends in a spec or in findings: no exception, at once, at places that the file has.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from graphspec.compiler import compile_spec
from graphspec.errors import Diagnostic
from graphspec.loading import inspect
from graphspec.plan_json import from_json, to_json
from graphspec.reading.characters import lines_of
from graphspec.report import (
    findings_github,
    findings_json,
    findings_sarif,
    findings_text,
    plan_mermaid,
    plan_text,
)

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*ROOT.glob("specs/*/model.yaml"), *ROOT.glob("tests/**/*.yaml")])
#: Processor time that one file may take: a hundred times what it does.
MOST_SECONDS = 1.0
_HANGS_AFTER = 20.0

#: A bomb of aliases has more places than anybody can walk.
_MOST_PLACES = 1000

_WORDS = re.compile(rb"[\w.*]+|[ \t]+|.", re.DOTALL)
_NASTY = (
    b"~", b"", b"null", b"true", b"off", b"-1", b"0", b"1e400", b"-0.0", b".nan", b".inf", b"[]", b"{}", b"[[[", b"}",
    b"*a", b"&a ", b"<<: *a", b"!!int ", b"!x ", b"2*batch", b"0*n", b"x-", b"? ", b"- ", b": ", b"|\n", b">-\n", b"'",
    b'"', b"#", b"%", b"\t", b"\r", b"\x00", b"\x07", b"\x1b[31m", b"\xff", b"\xc2\xa0", b"\xe2\x80\x9c",
    b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80", b"9" * 30, b"9" * 500, b"a" * 300, b"--- ", b"...", b"${X}",
    b"\\u0000", b"\\e[31m", b"999999999999", b"0x7fffffffffffffff", b"1_000", b"{const: ~}", b"[1, [2]]", b"_",
    b"a.b:c", b"model.*", b"self.forward", b"batch", b"model",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**20, -(10**20), 0.5, -0.0, float("nan"), float("inf"), "", "x", "batch", "model",
    "~", "model.a", "model.*.b", "2*batch", "a b", "self", "input", "state", "output", "eager", "float32", "int64", [],
    {}, [1], ["x"], [[1]], {"x": 1}, {"const": 1}, {"attr": "model.a"}, {"list": ["x"]}, {"dict": {"x": "x"}},
    {"from": 1, "to": 3}, {"sizes": [1], "exact": True}, {"x-note": 1}, {1: 2}, "\ud7ff", "a\nb", "\u00a0", [None],
    {"size": "batch"}, [1, 2, 3], {"make": "model.py:build"}, ["batch", 4], "\x1b[31m",
)  # fmt: skip

Mutation = Callable[[random.Random, bytes], bytes]


def originals() -> list[bytes]:
    """The text of every spec of the project."""
    return [path.read_bytes() for path in SOURCES]


def _span(rng: random.Random, length: int) -> tuple[int, int]:
    start = rng.randrange(length + 1)
    return start, min(length, start + 1 + int(rng.expovariate(0.1)))


def change_bytes(rng: random.Random, text: bytes) -> bytes:
    """Some bytes deleted, doubled, replaced, or the rest of the file cut off."""
    start, stop = _span(rng, len(text))
    piece = text[start:stop]
    return rng.choice((
        lambda: text[:start] + text[stop:],
        lambda: text[:stop] + piece + text[stop:],
        lambda: text[:start],
        lambda: text[:start] + rng.choice(_NASTY) + text[stop:],
        lambda: text[:start] + bytes(rng.randrange(256) for _ in piece) + text[stop:],
        lambda: text[:start] + bytes([text[start] ^ 1 << rng.randrange(8)] if piece else b"") + text[start + 1 :],
    ))()  # fmt: skip


def change_words(rng: random.Random, text: bytes, other: bytes) -> bytes:
    """Words exchanged with each other, with those of another spec, or with words that mean something else in YAML."""
    words = _WORDS.findall(text) or [b""]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(words))
        words[at] = rng.choice((
            lambda: rng.choice(_NASTY),
            lambda: rng.choice(words),
            lambda: rng.choice(_WORDS.findall(other) or [b""]),
            lambda at=at: words[at] + rng.choice(_NASTY),
        ))()  # fmt: skip
    return b"".join(words)


def change_lines(rng: random.Random, text: bytes, other: bytes) -> bytes:
    """Lines deleted, doubled, moved, taken from another spec, or indented otherwise."""
    lines = text.splitlines(keepends=True) or [b""]
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(to, lines[at])
    elif kind == 2:
        lines[at], lines[to] = lines[to], lines[at]
    elif kind == 3:
        lines.insert(to, rng.choice(other.splitlines(keepends=True) or [b""]))
    else:
        lines[at] = b" " * rng.randrange(6) + lines[at].lstrip()
    return b"".join(lines)


def _places(data: Any, depth: int = 12) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys, as deep as specs are: an anchor may contain itself."""
    if isinstance(data, dict | list) and depth:
        keys = list(data) if isinstance(data, dict) else range(len(data))
        for key in keys:
            yield data, key
            yield from _places(data[key], depth - 1)


def change_structure(rng: random.Random, text: bytes, other: bytes) -> bytes:
    """Values deleted, exchanged, nested, moved, or replaced by values of other kinds; the result is YAML again."""
    try:
        data, donor = yaml.safe_load(text), yaml.safe_load(other)
    except Exception:  # noqa: BLE001  PyYAML's own faults are none of ours
        return change_bytes(rng, text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places, others = (list(islice(_places(each), _MOST_PLACES)) for each in (data, donor))
        if not places:
            return change_bytes(rng, text)
        owner, key = rng.choice(places)
        home, there = rng.choice(others or places)
        kind = rng.randrange(6)
        if kind == 0 and isinstance(owner, dict):
            del owner[key]
        elif kind == 1:
            owner[key] = rng.choice(_VALUES)
        elif kind == 2:
            owner[key] = home[there]
        elif kind == 3 and isinstance(owner, dict):
            owner[there if isinstance(there, str) else "x"] = owner.pop(key)
        elif kind == 4:
            owner[key] = rng.choice(([owner[key]], {"const": owner[key]}, {"x": owner[key]}, [owner[key]] * 2))
        elif isinstance(owner, dict):
            owner[str(rng.choice(_VALUES))] = rng.choice(_VALUES)
    try:
        style = rng.choice((None, False, True))
        return yaml.safe_dump(data, default_flow_style=style, sort_keys=False, allow_unicode=True).encode()
    except Exception:  # noqa: BLE001
        return change_bytes(rng, text)


def mutated(seed: int, texts: list[bytes]) -> bytes:
    """The file that a seed stands for."""
    rng = random.Random(seed)  # noqa: S311  a seed that anybody may know
    text = rng.choice(texts)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        other = rng.choice(texts)
        text = rng.choice((
            lambda text=text: change_bytes(rng, text),
            lambda text=text, other=other: change_words(rng, text, other),
            lambda text=text, other=other: change_words(rng, text, other),
            lambda text=text, other=other: change_lines(rng, text, other),
            lambda text=text, other=other: change_structure(rng, text, other),
            lambda text=text, other=other: change_structure(rng, text, other),
        ))()  # fmt: skip
    return text


class Hang(Exception):  # noqa: N818  not a fault by itself
    """A file took far too long."""


def _stop(*_: object) -> None:
    raise Hang


def judge(path: Path, raw: bytes) -> str | None:
    """What is wrong with how the file ``path``, which gets the content ``raw``, is read; None where nothing is."""
    path.write_bytes(raw)
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, _HANGS_AFTER)
    started = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            findings = _read(path)
        taken = time.process_time() - started
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-12:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if taken > MOST_SECONDS:
        return f"it took {taken:.2f} s of processor time"
    return _misplaced(path, raw, findings)


def _read(path: Path) -> list[Diagnostic]:
    """Everything that `validate` and `plan` do with a file."""
    sources: dict[str, str] = {}
    spec, findings = inspect(path, sources=sources)
    for printer in (findings_text, findings_json, findings_github, findings_sarif):
        shown = printer.render(findings, sources)
        assert printer is findings_github or "\x1b" not in shown
    if spec is not None and not any(each.severity == "error" for each in findings):
        plan = compile_spec(spec)
        assert from_json(to_json(plan)) == plan
        plan_text.render(plan)
        plan_mermaid.render(plan)
    return findings


def _misplaced(path: Path, raw: bytes, findings: list[Diagnostic]) -> str | None:
    """A finding without a message and a fix, or at a place that the file does not have."""
    lines = lines_of(raw.decode(errors="replace").removeprefix("\ufeff"))
    if len(lines) > 1 and not lines[-1]:
        lines.pop()  # the end of the last line is no line
    for each in findings:
        if not each.message or not each.hint:
            return f"no message with a fix: {each}"
        if each.file != str(path):
            return f"a finding in another file: {each}"
        if each.line is None or each.column is None:
            if each.code not in {"GS001", "GS002"}:
                return f"no place: {each}"
        elif not (1 <= each.line <= len(lines) and 1 <= each.column <= len(lines[each.line - 1]) + 1):
            return f"a place that the file does not have: {each}"
    return None


def folder() -> Path:
    """A folder in which the specs find the files they name."""
    home = Path(tempfile.mkdtemp())
    (home / "model.py").write_text(
        "class Model:\n    def forward(self, x): return x\n\n\ndef build(**_): return Model()\n"
    )
    return home


def say(*lines: str) -> None:
    """Lines on stdout, at once."""
    sys.stdout.write("\n".join((*lines, "")))
    sys.stdout.flush()


def main() -> int:
    """Judge as many files as were asked for; the number of faults is said, and each of the first ones shown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=int(time.time()))
    parser.add_argument("-v", action="store_true", dest="shown")
    options = parser.parse_args()
    home, texts, faults, slowest = folder(), originals(), 0, 0.0
    say(f"seeds {options.first} to {options.first + options.count - 1}")
    for seed in range(options.first, options.first + options.count):
        raw = mutated(seed, texts)
        started = time.process_time()
        fault = judge(home / "spec.yaml", raw)
        slowest = max(slowest, time.process_time() - started)
        if options.shown:
            say(raw.decode(errors="backslashreplace"), *map(str, inspect(home / "spec.yaml")[1]))
        if fault is not None:
            faults += 1
            say(f"seed {seed}: {fault}")
    shutil.rmtree(home)
    say(f"{options.count:,} files, {faults} faults, the slowest took {slowest:.3f} s")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
