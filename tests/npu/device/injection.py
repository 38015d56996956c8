"""Every call of CANN's runtime that a capture or a run makes fails once: one clear error, nothing left, and it goes on.

Each failure is in a forked process of its own: a failure on the thread of torch_npu's task queue changes the process.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import loader
import pytest
import torch
import torch._dynamo  # once here, where a capture would load it anew in each forked process
from attending import HEADER, PRELUDE, SPEC, model

import graphspec
from graphspec.backends.npu import load_torch_npu
from graphspec.errors import GraphSpecError

PAGED_DECODE = Path(__file__).resolve().parents[3] / "specs" / "paged-decode" / "model.yaml"
os.environ["EMU_CANN_TIMEOUT"] = "10"  # a write that failed leaves a replay waiting
RUNTIME = ("aclrt", "aclmdl")
LIMIT_S = 120

#: Failures that torch_npu or its allocator take care of, or do not look at.
UNNOTICED = {
    ("open", "aclrtFree"): "torch_npu ignores what freeing returns",
    ("open", "aclrtDestroyEvent"): "torch_npu ignores what destroying an event returns",
    ("open", "aclrtMallocAlign32"): "the allocator frees what it has cached and tries again",
    ("open", "aclrtMemcpy"): "the check that operators run is made again",
    ("open", "aclmdlRICaptureGetInfo"): "some of these calls belong to the check that operators run",
    ("open", "aclrtValueWait"): "torch_npu ignores what it returns",
}
#: Reported when the caller waits for the device, since nothing in a run does.
LATE = {"aclrtRecordEvent", "aclrtSynchronizeDeviceWithTimeout"}


def opened(folder):
    """One small graph with two updatable operators, and what to run it with."""
    (folder / "model.py").write_text(f"{PRELUDE}{model(layers=2)}")
    (folder / "model.yaml").write_text(f"{HEADER}{SPEC}")
    runner = graphspec.open(folder / "model.yaml", device="npu")
    return runner, {"query": torch.ones(2, 4, 1, 8), "lengths": [3, 5]}


def once(folder):
    runner, inputs = opened(folder)
    with runner:
        result = runner.run(**inputs)["y"].cpu()
    del runner
    gc.collect()  # what it held is freed here, and not somewhere in the calls that are counted
    return result


def surroundings():
    """What a failed open or run must leave as it was."""
    return {
        "stream": torch.npu.current_stream().npu_stream,
        "device": torch.npu.current_device(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "generator": torch.get_rng_state().sum().item(),
        "gradients": torch.is_grad_enabled(),
    }


def counted(folder):
    """How often each runtime function is called by an open, and by a run."""
    once(folder)
    start = loader.all_calls()
    runner, inputs = opened(folder)
    open_calls = loader.all_calls()
    runner.run(**inputs)
    torch.npu.synchronize()
    run_calls = loader.all_calls()

    def between(after, before):
        new = {name: count - before.get(name, 0) for name, count in after.items() if name.startswith(RUNTIME)}
        return {name: count for name, count in new.items() if count}

    return {"open": between(open_calls, start), "run": between(run_calls, open_calls)}


def fail_in(folder, phase, api, skip):
    """What came of one failure: the faults of graphspec, as sentences."""
    wanted, before, faults, runner = once(folder), surroundings(), [], None
    noticed = None
    try:
        if phase == "open":
            loader.fail_next(api, skip)
        runner, inputs = opened(folder)
        if phase == "run":
            loader.fail_next(api, skip)
        result = runner.run(**inputs)["y"]
    except Exception as error:  # noqa: BLE001  every kind is judged
        noticed = error
    else:
        try:
            if not torch.equal(result.cpu(), wanted):
                faults.append("a wrong result, and no error")
            torch.npu.synchronize()
        except RuntimeError as error:  # the test's own wait: a device reports late
            noticed = None if api not in LATE else GraphSpecError(str(error))
    if noticed is None and (phase, api) not in UNNOTICED:
        faults.append("no error")
    if noticed is not None and not isinstance(noticed, GraphSpecError):
        faults.append(f"not an error of graphspec: {type(noticed).__name__}: {noticed}")
    if surroundings() != before:
        faults.append(f"left behind: {surroundings()}, before: {before}")
    if runner is not None:
        faults += again(runner, inputs, wanted, tries=2 if api in LATE else 1)
    if not torch.equal(once(folder), wanted):
        faults.append("the next open gives a wrong result")
    return faults


def again(runner, inputs, wanted, tries):
    """The faults of the next run; where the failure came late, a first one may still say so."""
    for attempt in range(tries):
        try:
            result = runner.run(**inputs)["y"].cpu()
        except GraphSpecError:
            if attempt + 1 == tries:
                raise
        else:
            runner.close()
            return [] if torch.equal(result, wanted) else ["the next run gives a wrong result"]
    return []


def forked(function, *arguments):
    """The result of a function in a process of its own."""
    reader, writer = os.pipe()
    gc.freeze()  # the child collects what it makes itself
    child = os.fork()
    if child == 0:
        try:
            found = function(*arguments)
        except BaseException as error:  # noqa: BLE001  the parent reports it
            found = [f"{type(error).__name__}: {error}"]
        os.write(writer, pickle.dumps(found))
        os._exit(0)
    os.close(writer)
    until = time.monotonic() + LIMIT_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return ["it hangs"]
        time.sleep(0.02)
    with os.fdopen(reader, "rb") as pipe:
        return pickle.loads(pipe.read())  # noqa: S301  our own child's


def pytest_generate_tests(metafunc):
    if "skip" in metafunc.fixturenames:
        assert load_torch_npu() is None
        with tempfile.TemporaryDirectory() as folder:
            counts = forked(counted, Path(folder))
        cases = [(phase, api, count // 2) for phase, calls in counts.items() for api, count in calls.items()]
        metafunc.parametrize(("phase", "api", "skip"), cases)


@pytest.fixture(autouse=True)
def default_stream():
    """Replaces the one of conftest.py: nothing here may touch the device before the forks."""


def test_a_call_that_fails_is_one_clear_error_and_everything_works_again(tmp_path, phase, api, skip):
    assert forked(fail_in, tmp_path, phase, api, skip) == []


def test_the_command_reports_a_failing_device_with_exit_code_3():
    call = [sys.executable, "-m", "graphspec", "run", str(PAGED_DECODE), "--device", "npu", "--steps", "1"]
    environment = {**os.environ, "EMU_CANN_FAIL": "aclmdlRIExecuteAsync:3:507899"}
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 3, done.stderr
    assert "error: npu:0 failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
