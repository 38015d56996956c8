"""Build the emulated CANN against the installed torch_npu: ``python tests/cann/build.py OUT``.

The result is a folder of shared libraries with CANN's names.
All code is in ``libascendcl.so``; the others are empty and depend on it, because ``dlsym`` searches dependencies.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
DEFAULT_OUT = HERE / "_build"

MAIN = "ascendcl"
# What torch_npu links against or opens by name.
EMPTY = ("hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "opapi", "nnopbase", "atb", "ascend_hal")

JOBS = 2
FLAGS = ("-std=c++20", "-fPIC", "-Wall", "-Wextra", "-Wno-deprecated-declarations", "-fvisibility=hidden")
# Loops over numbers gain from vectorizing; everything else compiles twice as fast without.
OPTIMIZED = {"matmul", "conv", "attention", "strided"}

# Symbols of CANN that torch_npu needs at link time.
FOREIGN = re.compile(r"(acl|rt[A-Z]|Msprof|Hccl|Hcom)")

# Stubs that may report success, each with the reason. All others fail with their own name.
HARMLESS = {
    "MsprofGetHashId": "profiler: a name's hash, 0 for all",
    "MsprofRegisterCallback": "profiler: registration at import",
    "MsprofReportAdditionalInfo": "profiler: a report nobody reads",
    "MsprofReportApi": "profiler: a report nobody reads",
    "MsprofReportCompactInfo": "profiler: a report nobody reads",
    "MsprofSysCycleTime": "profiler: a time stamp",
    "aclmdlFinalizeDump": "dump: nothing was started, called at exit",
}


class BuildError(RuntimeError):
    """The emulator could not be built; the text says why."""


def build(out: Path = DEFAULT_OUT) -> Path:
    """Build into ``out`` unless it is up to date, and return it. Safe to call from several processes at once."""
    out = out.resolve()
    (out / "objects").mkdir(parents=True, exist_ok=True)
    with _locked(out / "lock"):
        key = _key(_inputs())
        stamp = out / "key"
        if stamp.exists() and stamp.read_text() == key:
            return out
        stamp.unlink(missing_ok=True)
        objects = _compile_all(out / "objects")
        objects.append(_compile_stubs(out / "objects", objects))
        _link(out, objects)
        stamp.write_text(key)
    return out


def package_folder(name: str) -> Path:
    """Folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"{name} is not installed: the emulated CANN is built against its headers")
    return Path(next(iter(spec.submodule_search_locations)))


def _inputs() -> Iterator[bytes]:
    yield importlib.metadata.version("torch_npu").encode()
    yield sysconfig.get_platform().encode()
    for path in [Path(__file__), *sorted(SOURCES.rglob("*.*"))]:
        yield str(path.relative_to(HERE)).encode()
        yield path.read_bytes()


def _key(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is needed to build the emulated CANN: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def _compile_all(objects: Path) -> list[Path]:
    headers = [path.read_bytes() for path in sorted(SOURCES.rglob("*.h"))]
    version = importlib.metadata.version("torch_npu").encode()
    include = package_folder("torch_npu") / "include"

    def compile_one(source: Path) -> Path:
        level = "-O3" if source.stem in OPTIMIZED else "-O1"
        flags = [*FLAGS, level]
        key = _key([source.read_bytes(), *headers, version, " ".join(flags).encode()])
        target = objects / f"{source.stem}-{key}.o"
        if not target.exists():
            for old in objects.glob(f"{source.stem}-*.o"):
                old.unlink()
            part = target.with_suffix(".part")
            _run(["g++", *flags, "-isystem", str(include), "-c", str(source), "-o", str(part)])
            part.rename(target)
        return target

    # The largest first, so that the last one running is short.
    sources = sorted(SOURCES.rglob("*.cpp"), key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(compile_one, sources))


def _symbols(files: Iterable[Path], *flags: str) -> set[str]:
    found = set()
    for path in files:
        for line in _run(["nm", *flags, str(path)]).splitlines():
            fields = line.split()
            weak = len(fields) > 1 and fields[-2] in ("w", "v")
            if fields and not weak:
                found.add(fields[-1].split("@")[0])
    return found


def missing_symbols(objects: Iterable[Path]) -> list[str]:
    """What torch_npu needs at link time and neither it, torch nor ``objects`` define."""
    npu = package_folder("torch_npu")
    libraries = [*(npu / "lib").glob("*.so"), *npu.glob("_C*.so")]
    needed = _symbols(libraries, "-D", "--undefined-only")
    defined = _symbols([*libraries, *(package_folder("torch") / "lib").glob("*.so")], "-D", "--defined-only")
    ours = _symbols(objects, "--defined-only")
    return sorted(name for name in needed - defined - ours if FOREIGN.match(name))


def stub_source(names: Iterable[str]) -> str:
    """C code for the missing symbols: all but the harmless ones fail with their own name."""
    lines = ["int emu_stub_called(const char* api);"]
    for name in names:
        body = f"return 0; /* {HARMLESS[name]} */" if name in HARMLESS else f'return emu_stub_called("{name}");'
        lines.append(f"long {name}(void) {{ {body} }}")
    return "\n".join(lines) + "\n"


def _compile_stubs(objects: Path, others: list[Path]) -> Path:
    source = objects / "stubs.c"
    source.write_text(stub_source(missing_symbols(others)))
    target = objects / "stubs.o"
    _run(["gcc", "-fPIC", "-fno-builtin", "-c", str(source), "-o", str(target)])
    return target


def _link(out: Path, objects: list[Path]) -> None:
    library = out / f"lib{MAIN}.so"
    _run(["g++", "-shared", f"-Wl,-soname,{library.name}", "-o", str(library), *map(str, objects), "-lpthread"])
    empty = out / "objects" / "empty.c"
    empty.write_text("int emu_empty;\n")
    for name in EMPTY:
        target = out / f"lib{name}.so"
        flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{target.name}"]
        _run(["gcc", *flags, str(empty), f"-L{out}", f"-l{MAIN}", "-o", str(target)])


def main(arguments: list[str]) -> int:
    """Command line: the output folder, printed when it is ready."""
    if len(arguments) > 1:
        sys.stderr.write(f"usage: {Path(__file__).name} [OUT]\n")
        return 2
    try:
        sys.stdout.write(f"{build(Path(arguments[0]) if arguments else DEFAULT_OUT)}\n")
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
