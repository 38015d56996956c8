"""From a lowered recording to a library: found in the cache, or compiled by Inductor."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphspec.backends.cpu.compiling.cache import LIBRARY, LibraryCache, UnwritableCacheError, cache_folder, reason
from graphspec.backends.cpu.compiling.cxx import cxx, missing
from graphspec.backends.cpu.compiling.library import Library
from graphspec.backends.cpu.compiling.lowering import Lowered
from graphspec.errors import CaptureError
from graphspec.spec import Compile

#: What a mode stands for, as in `torch.compile`.
_MODES: Mapping[str, Mapping[str, Any]] = {"max-autotune-no-cudagraphs": {"max_autotune": True}}
_FULL = re.compile(r"No space left on device|Disk quota exceeded")


@dataclass(frozen=True)
class Built:
    """A library that is loaded. ``seconds`` is what its compilation took, 0 where it came from the cache.

    ``note`` is what should be said of it.
    """

    library: Library
    seconds: float
    note: str | None = None


def find(lowered: Lowered, compiler: Compile) -> Built | None:
    """The library from the cache; None where it has to be compiled. Imports no compiler."""
    path = LibraryCache(cache_folder()).find(_digest(lowered, compiler))
    if path is None:
        return None
    try:
        return Built(Library(path), 0.0)
    except RuntimeError:  # it does not load here: made anew, it may
        return None


def build(lowered: Lowered, compiler: Compile, region: str) -> Built:
    """Compile a library and put it into the cache; where that cannot be written, for this process only.

    Raises CaptureError: no C++ compiler, a full disk, something that Inductor cannot compile.
    """
    if cxx() is None:
        raise CaptureError(
            f"region '{region}' has `compile: {{backend: inductor}}`, and {missing()}",
            hint="install one (g++), or name one in CXX; `--no-compile` runs the region uncompiled",
        )
    began = time.perf_counter()
    cache = LibraryCache(cache_folder())
    try:
        with cache.building() as folder:
            _compile(lowered, compiler, region, folder)
            path = cache.publish(_digest(lowered, compiler), folder / "built")
            return Built(_loaded(path, region), time.perf_counter() - began)
    except UnwritableCacheError as error:
        with tempfile.TemporaryDirectory(prefix="graphspec-") as temporary:
            _compile(lowered, compiler, region, Path(temporary))
            library = _loaded(Path(temporary) / "built" / LIBRARY, region)
        note = f"region '{region}' was compiled for this process only: {cache.folder} cannot be written ({error})"
        return Built(library, time.perf_counter() - began, note)
    except OSError as error:
        raise _failed(region, f"{cache.folder}: {reason(error)}", full=error.errno == errno.ENOSPC) from error


def _loaded(path: Path, region: str) -> Library:
    try:
        return Library(path)
    except RuntimeError as error:
        raise _failed(region, f"the library does not load: {str(error).splitlines()[0]}") from error


def _compile(lowered: Lowered, compiler: Compile, region: str, folder: Path) -> None:
    """Write the library to ``folder/built``."""
    built = folder / "built"
    built.mkdir(mode=0o700)
    options = {
        **_MODES.get(compiler.mode or "", {}),
        **compiler.options,
        "aot_inductor.output_path": str(folder / "work" / LIBRARY),
        "aot_inductor.precompile_headers": False,  # made for many libraries: it costs more than one
        "compile_threads": 1,  # no processes that stay
        "cpp.cxx": (None, cxx()),
    }
    # Their content is never read; memory that nobody writes takes none.
    like = [torch.empty_strided(ref.size, ref.stride, dtype=ref.dtype) for ref in lowered.arguments]
    (folder / "work").mkdir()
    try:
        with _inductor_in(folder), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch import _inductor

            _inductor.aot_compile(lowered.module, tuple(like), options=options)
    except Exception as error:  # whatever a compiler raises, its reason is one line of it
        text = str(error)
        raise _failed(region, _line_of(text) or type(error).__name__, full=bool(_FULL.search(text))) from error
    for suffix in (".so", ".json"):  # the second says which operators of others it calls
        made = (folder / "work" / LIBRARY).with_suffix(suffix)
        if made.exists():
            made.rename(built / made.name)


@contextmanager
def _inductor_in(folder: Path) -> Iterator[None]:
    """Inductor's own files in a private folder, its random numbers its own, and the environment as it was."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(name)
    os.environ[name] = str(folder / "inductor")
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def _failed(region: str, why: str, *, full: bool = False) -> CaptureError:
    if full:
        where = cache_folder()
        hint = f"free some space, or set XDG_CACHE_HOME to another disk; {where} can be removed at any time"
        return CaptureError(f"region '{region}' could not be compiled: the disk is full ({why})", hint=hint)
    hint = "`--no-compile` runs the region uncompiled, and so does leaving `compile` out of it"
    return CaptureError(f"region '{region}' could not be compiled by inductor: {why}", hint=hint)


def _line_of(text: str) -> str:
    """The line of an error that says what is wrong: that of the C++ compiler, else the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if " error: " in line or "fatal error:" in line), lines[0] if lines else "")


def _digest(lowered: Lowered, compiler: Compile) -> str:
    """What a library depends on: the recording, the options, torch, and the processor it is compiled for."""
    parts = (
        lowered.text,
        repr(compiler.mode),
        repr(sorted(compiler.options.items())),
        torch.__version__,
        str(torch.version.git_version),
        str(torch.get_num_threads()),
        _processor(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _processor() -> str:
    """The instructions of this processor: a library uses all of them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return torch.backends.cpu.get_cpu_capability()
