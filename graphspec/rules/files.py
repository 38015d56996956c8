"""GS214 and GS215: the files a spec names exist. They are looked at, never run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graphspec.compilers import COMPILERS
from graphspec.errors import Diagnostic, KeyPath
from graphspec.files import INDEX, absolute, problem, read_index
from graphspec.finding import finding
from graphspec.nearest import did_you_mean
from graphspec.rules.walk import arguments, around_places
from graphspec.spec import Make, Spec

_WEIGHTS = (".safetensors", ".pt", INDEX)
_SAMPLES = (".npy", ".pt", ".safetensors")


def missing_functions(spec: Spec) -> Iterator[Diagnostic]:
    """GS214: a `FILE.py:NAME` whose file is missing, is no Python, or defines no such name. It is read, never run."""
    if spec.document is None:
        return
    names: dict[Path, set[str] | SyntaxError | None] = {}
    for text, path in _functions(spec):
        file, _, name = text.rpartition(":")
        if not file.endswith(".py"):
            continue  # a package: finding it could run its code
        place = spec.folder / file
        if (wrong := problem(place)) is not None:
            yield finding(spec.document, "GS214", wrong.about(place), path, hint=wrong.fix)
            continue
        if place not in names:
            names[place] = _defined(place)
        defined, first = names[place], name.partition(".")[0]
        if isinstance(defined, SyntaxError):
            message = f"{file} is not valid Python: line {defined.lineno or 1}: {defined.msg}"
            hint = f"correct it: {absolute(place)}:{defined.lineno or 1}"
            yield finding(spec.document, "GS214", message, path, hint=hint)
        elif defined is not None and first not in defined:
            message = f"{file} defines no '{first}'"
            hint = did_you_mean(first, defined, f"define it in {absolute(place)}")
            yield finding(spec.document, "GS214", message, path, hint=hint)


def _functions(spec: Spec) -> Iterator[tuple[str, KeyPath]]:
    yield spec.model.factory, ("model", "factory")
    if spec.sample is not None:
        yield spec.sample, ("sample", "make")
    for buffer in spec.buffers.values():
        if buffer.sample is not None and buffer.sample.kind == "make":
            yield buffer.sample.value, ("buffers", buffer.name, "sample", "make")
    yield from ((text, ("npu", "handlers", index)) for index, text in enumerate(spec.npu.handlers))
    for region in spec.regions.values():
        for value, path in arguments(region):
            if isinstance(value, Make):
                yield value.factory, (*path, "make")
        yield from (each for each in around_places(spec, region) if ":" in each[0])
        if region.compile is not None:
            known = COMPILERS[region.compile.backend].options
            for name, value in region.compile.options.items():
                if name in known and known[name].kind == "function" and known[name].wrong(value) is None:
                    yield value, ("regions", region.name, "compile", "options", name)


def _defined(path: Path) -> set[str] | SyntaxError | None:
    """The names a module defines at its top level, or why it cannot be read; None where its text cannot tell."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful escape in the model is none of our findings
            tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        return error
    except (OSError, ValueError, RecursionError):
        return None
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue  # its body is another scope
        if isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        pending.extend(ast.iter_child_nodes(node))
    return None if names & {"*", "__getattr__"} else names


def weights(spec: Spec) -> Iterator[Diagnostic]:
    """GS215: weights of a kind that cannot be read; a missing file is a warning, since CI has no weights."""
    name, path = spec.model.weights, ("model", "weights")
    if name is None or spec.document is None:
        return
    if not name.endswith(_WEIGHTS):
        message = f"weights '{name}' are neither .safetensors, {INDEX} nor .pt"
        yield finding(spec.document, "GS215", message, path, hint="save them with safetensors.torch.save_file")
        return
    for file in _weights_files(spec.folder / name):
        if (wrong := problem(file)) is not None:
            yield finding(spec.document, "GS215", wrong.about(file), path, severity="warning",
                          hint=f"`run` needs it; {wrong.fix}")  # fmt: skip
            return  # the shards of one checkpoint are fetched together


def _weights_files(path: Path) -> Iterator[Path]:
    """The file itself, and what it is an index of."""
    yield path
    if path.name.endswith(INDEX):
        try:
            yield from dict.fromkeys(path.parent / shard for shard in read_index(path).values())
        except (OSError, ValueError):
            return  # `run` says what is wrong with it


def samples(spec: Spec) -> Iterator[Diagnostic]:
    """GS214: a sample file that is missing, or of a kind that cannot be read."""
    for buffer in spec.buffers.values():
        if buffer.sample is None or buffer.sample.kind != "file" or spec.document is None:
            continue
        path, place = ("buffers", buffer.name, "sample", "file"), spec.folder / buffer.sample.value
        if not buffer.sample.value.endswith(_SAMPLES):
            message = f"the sample file '{buffer.sample.value}' is neither .npy, .pt nor .safetensors"
            yield finding(spec.document, "GS214", message, path, hint="save it with numpy.save")
        elif (wrong := problem(place)) is not None:
            yield finding(spec.document, "GS214", wrong.about(place), path, hint=wrong.fix)
