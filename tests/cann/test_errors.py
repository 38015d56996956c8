"""Loud failure: injected errors, time-outs, operators without kernels, and stubs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import build
import loader
import pytest
import torch

npu = torch.npu
CODE = 507899  # "driver internal error", which torch_npu passes on as it is


def in_process(out: Path, code: str, **environment: str) -> str:
    """Standard output and error of a script that sees the emulated CANN."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**loader.environment(out), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout + done.stderr


# ---- injection


def capture_and_replay() -> torch.Tensor:
    x = torch.ones(2, device="npu")
    npu.synchronize()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        y = x + 1
    graph.replay()
    npu.synchronize()
    return y


def used_by(run: Callable[[], Any], api: str) -> int:
    before = loader.calls(api)
    run()
    return loader.calls(api) - before


@pytest.mark.parametrize("api", ["aclmdlRICaptureBegin", "aclmdlRICaptureEnd", "aclmdlRIExecuteAsync"])
def test_an_injected_failure_is_named_and_happens_once(api: str) -> None:
    assert used_by(capture_and_replay, api) == 1
    loader.fail_next(api, code=CODE)
    with pytest.raises(RuntimeError, match=f"{api}: injected failure {CODE}|error code is {CODE}|{CODE}"):
        capture_and_replay()
    npu.set_stream(npu.default_stream())
    assert not npu.is_current_stream_capturing()
    assert capture_and_replay().tolist() == [2.0, 2.0]


def test_injection_can_let_calls_pass() -> None:
    capture_and_replay()
    loader.fail_next("aclmdlRIExecuteAsync", skip=1, code=CODE)
    capture_and_replay()
    with pytest.raises(RuntimeError):
        capture_and_replay()
    capture_and_replay()


def test_one_failed_allocation_is_retried_by_torch_npu() -> None:
    npu.empty_cache()
    loader.fail_next("aclrtMallocAlign32", code=207001)
    assert used_by(lambda: torch.empty(64 << 20, device="npu"), "aclrtMallocAlign32") == 2


def test_device_memory_ends() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, dtype=torch.uint8, device="npu")


def test_an_operator_can_be_injected(cann_out: Path) -> None:
    text = in_process(
        cann_out,
        """
        import torch
        x = torch.ones(2, device="npu")
        print((x + 1).tolist())
        try:
            (x + 1).tolist()
        except RuntimeError as error:
            print("second:", error)
        """,
        EMU_CANN_FAIL="aclnnAddsGetWorkspaceSize:1:507899",
        TASK_QUEUE_ENABLE="0",
    )
    assert "[2.0, 2.0]" in text
    assert "aclnnAddsGetWorkspaceSize: injected failure 507899" in text.split("second:")[1]


# ---- time-outs


def test_a_wait_for_an_external_event_times_out_by_name() -> None:
    event, stream = npu.ExternalEvent(), npu.Stream()
    with npu.stream(stream):
        event.wait(stream)
    with pytest.raises(RuntimeError, match="aclrtValueWait: nobody wrote 1 within 3 s"):
        stream.synchronize()
    with npu.stream(stream):
        y = torch.ones(2, device="npu") + 1
    stream.synchronize()  # reported once, then the stream works again
    assert y.tolist() == [2.0, 2.0]


# ---- operators without kernels


def test_an_operator_that_falls_back_to_aclop_is_named(cann_out: Path) -> None:
    text = in_process(
        cann_out,
        """
        import torch
        torch.nn.LSTMCell(4, 4).npu()(torch.ones(2, 4, device="npu"))
        torch.npu.synchronize()
        """,
        TASK_QUEUE_ENABLE="0",
    )
    assert "operator DynamicRNNV2 fell back to aclop, which has no kernels in the emulator" in text


@torch.no_grad()
def test_torch_npu_refuses_aclop_in_a_capture() -> None:
    cell, x = torch.nn.LSTMCell(4, 4).npu(), torch.ones(2, 4, device="npu")
    state = torch.zeros(2, 4, device="npu")
    message = "Cannot run aclop operators during NPU graph capture. Current working aclop is DynamicRNNV2"
    with pytest.raises(RuntimeError, match=message), npu.graph(npu.NPUGraph()):
        cell(x, (state, state))
    npu.set_stream(npu.default_stream())
    assert capture_and_replay().tolist() == [2.0, 2.0]


def test_arguments_that_are_not_emulated_are_refused_by_name() -> None:
    x = torch.randn(1, 2, 4, 4, 4, device="npu")
    with pytest.raises(RuntimeError, match="aclnnConvolution: more than two spatial dimensions are not emulated"):
        torch.nn.functional.conv3d(x, torch.randn(2, 2, 3, 3, 3, device="npu"))


def test_an_index_out_of_range_is_reported_at_the_synchronization() -> None:
    x = torch.ones(4, 2, device="npu")
    x.index_select(0, torch.tensor([7], device="npu"))
    with pytest.raises(RuntimeError, match="aclnnIndexSelect: index 7 is out of range for a dimension of 4"):
        npu.synchronize()


# ---- the build


def test_stubs_fail_with_their_own_name() -> None:
    source = build.stub_source(["aclmdlSetDump", "MsprofReportApi"])
    assert 'long aclmdlSetDump(void) { return emu_stub_called("aclmdlSetDump"); }' in source
    assert "long MsprofReportApi(void) { return 0;" in source


def test_a_called_stub_reports_its_name() -> None:
    library = loader._control()
    assert library.aclmdlSetDump() == 200006
    library.aclGetRecentErrMsg.restype = __import__("ctypes").c_char_p
    assert library.aclGetRecentErrMsg().decode() == "[emulated CANN] aclmdlSetDump is not emulated"


def test_a_second_build_does_nothing(cann_out: Path) -> None:
    before = (cann_out / "libascendcl.so").stat().st_mtime_ns
    assert build.build(cann_out) == cann_out
    assert (cann_out / "libascendcl.so").stat().st_mtime_ns == before


def test_a_missing_compiler_is_a_build_error() -> None:
    with pytest.raises(build.BuildError, match="no-such-compiler is needed"):
        build._run(["no-such-compiler"])


def test_loading_after_torch_is_refused(cann_out: Path) -> None:
    text = in_process(
        cann_out,
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import torch, loader, pathlib
        loader.load(pathlib.Path({str(cann_out)!r}))
        """,
    )
    assert "must be loaded before the first import of torch" in text
