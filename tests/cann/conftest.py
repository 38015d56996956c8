"""Build the emulated CANN and load it before anything imports torch.

These tests need their own pytest process: ``pytest tests/cann``.
The project's other tests run without torch_npu (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), and one process cannot do both.
A build that fails is an error here, not a skip.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import build
import loader
import missing

if "torch" in sys.modules:
    raise pytest.UsageError(
        "torch was imported before the emulated CANN: run tests/cann in a pytest process of its own"
    )

# Short waits: a test that hangs should say so quickly.
os.environ.setdefault("EMU_CANN_TIMEOUT", "3")
os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
if sys.modules.get("torch_npu", ...) is None:  # hidden by the tests above
    del sys.modules["torch_npu"]
os.environ.setdefault("OMP_NUM_THREADS", "1")
OUT = build.build()
loader.load(OUT)

import torch  # noqa: E402  (the libraries above must come first)

assert hasattr(torch, "npu"), "torch did not load torch_npu"
torch.manual_seed(0)


@pytest.fixture(autouse=True)
def default_stream() -> Iterator[None]:
    """Leave every test on the default stream: a failed ``with graph`` leaves its capture stream current."""
    yield
    torch.npu.set_device(0)
    torch.npu.set_stream(torch.npu.default_stream())


@pytest.fixture(scope="session", autouse=True)
def nothing_else_is_missing() -> Iterator[None]:
    """Every operator that torch_npu looked up in vain is one whose other way is known."""
    yield
    assert loader.missing() <= set(missing.MAY_BE_MISSING)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Stop the run when torch_npu has stopped executing.

    After a failure on its queue thread torch_npu silently skips every later operator, so results would mean nothing.
    ``TASK_QUEUE_ENABLE=0`` makes such a failure an ordinary exception, for finding its cause.
    """
    outcome = yield
    if outcome.get_result().failed and not is_alive():
        pytest.exit(f"torch_npu stopped executing after {item.nodeid}; run with TASK_QUEUE_ENABLE=0", returncode=1)


def is_alive() -> bool:
    try:
        return bool(torch.full((1,), 7.0, device="npu").add(1).item() == 8)
    except RuntimeError:
        return False


@pytest.fixture
def cann_out() -> Path:
    """Folder of the libraries, for tests that start processes of their own."""
    return OUT
