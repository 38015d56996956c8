"""The NPU backend on the unmodified torch_npu and the emulated CANN of tests/cann.

This process has a torch without torch_npu (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), so everything that needs the device
runs in processes of its own: commands of graphspec, and the test modules in ``device/`` under a pytest of their own.
Without torch_npu, or with an emulator that does not build, these tests fail: the test set-up installs both.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CANN = HERE.parent / "cann"


@pytest.fixture(scope="session")
def environment():
    """What a process needs to see the emulated device: the libraries, built now if need be, and long time-outs."""
    try:
        importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        pytest.fail("torch_npu is not installed: the NPU backend is tested on it (pip install -e '.[dev,npu]')")
    made = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    built = subprocess.run(
        [sys.executable, str(CANN / "build.py")],
        capture_output=True,
        text=True,
        check=False,
        env=made,
    )
    if built.returncode != 0:
        pytest.fail(f"the emulated CANN does not build: {built.stderr}")
    libraries = [built.stdout.strip(), *filter(None, made.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    made["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    return {**made, "OMP_NUM_THREADS": "1", "EMU_CANN_TIMEOUT": "60", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def command(environment):
    """Runs ``graphspec ARGUMENTS`` where the emulated device is, or with ``cann=False`` where no CANN is."""

    def run(*arguments, cann=True):
        made = dict(environment)
        if not cann:
            kept = [path for path in made["LD_LIBRARY_PATH"].split(os.pathsep) if Path(path) != CANN / "_build"]
            made["LD_LIBRARY_PATH"] = os.pathsep.join(kept)
        call = [sys.executable, "-m", "graphspec", *arguments]
        return subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT, env=made, timeout=600)

    return run


@pytest.fixture(scope="session")
def passes(environment):
    """Runs test modules under a pytest of their own, where the emulated device is; fails with its output."""

    def run(*modules, **settings):
        options = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
        call = [sys.executable, "-m", "pytest", *options, *map(str, modules)]
        made = {**environment, **settings}
        done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT, env=made, timeout=900)
        if done.returncode != 0:
            names = ", ".join(module.name for module in modules)
            pytest.fail(f"{names} on the emulated NPU:\n{done.stdout}\n{done.stderr[-3000:]}", pytrace=False)

    return run
