"""What needs torch_npu in its own process: the modules of device/ and of ../cann, under a pytest of their own.

Modules share a process where they can: each would load torch and torch_npu anew.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
DEVICE = TESTS / "npu/device"
EMULATOR = sorted((TESTS / "cann").glob("test_*.py"))


@pytest.mark.takes(15)
def test_updates_options_paged_decode_and_training_on_the_npu(passes):
    modules = ("updates", "options", "paged_decode", "writes", "values", "lifecycle", "training", "language")
    passes(*(DEVICE / f"{name}.py" for name in modules))


@pytest.mark.takes(20)
def test_what_npugraph_ex_compiles_is_captured_with_every_guarantee(passes):
    passes(DEVICE / "compiled.py")


@pytest.mark.takes(25)
def test_every_example_matches_eager_on_the_npu(passes):
    passes(DEVICE / "examples.py")


@pytest.mark.takes(30)
def test_inline_regions_train_on_the_npu_as_eager_does(passes):
    passes(DEVICE / "inline.py")


@pytest.mark.takes(25)
def test_every_failing_call_of_cann_is_one_clear_error_and_the_next_capture_works(passes):
    passes(DEVICE / "injection.py")


@pytest.mark.takes(45)
def test_the_emulated_cann_behaves_as_the_real_one(passes):
    """Its kernels against PyTorch on the CPU, its graphs, streams and errors. Hangs show within three seconds."""
    assert {path.stem for path in EMULATOR} >= {"test_kernels", "test_graphs", "test_updates", "test_errors"}
    passes(*EMULATOR, EMU_CANN_TIMEOUT="3")
