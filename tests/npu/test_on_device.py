"""What needs torch_npu in its own process: the modules of device/ and of ../cann, each in a pytest of its own."""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
EMULATOR = sorted((TESTS / "cann").glob("test_*.py"))


def test_updates_on_the_npu(passes):
    passes(TESTS / "npu/device/updates.py")


def test_paged_decode_follows_plain_pytorch_on_the_npu_and_on_the_cpu(passes):
    passes(TESTS / "npu/device/paged_decode.py")


def test_refusals_options_and_writes_of_the_npu(passes):
    passes(TESTS / "npu/device/options.py", TESTS / "npu/device/writes.py")


def test_every_failing_call_of_cann_is_one_clear_error_and_the_next_capture_works(passes):
    passes(TESTS / "npu/device/injection.py")


@pytest.mark.parametrize("module", EMULATOR, ids=lambda path: path.stem)
def test_the_emulated_cann_behaves_as_the_real_one(passes, module):
    """Its kernels against PyTorch on the CPU, its graphs, streams and errors. Hangs show within three seconds."""
    passes(module, EMU_CANN_TIMEOUT="3")


def test_every_module_of_the_emulated_cann_is_among_them():
    assert {path.stem for path in EMULATOR} >= {"test_kernels", "test_graphs", "test_updates", "test_errors"}
