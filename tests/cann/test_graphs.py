"""Capture and replay through the unmodified torch_npu: pools, streams, random numbers, the state machine."""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loader
import pytest
import torch
from torch import nn

npu = torch.npu


def capture(run: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    run()
    npu.synchronize()
    graph = npu.NPUGraph()
    with npu.graph(graph, **options):
        result = run()
    return graph, result


def ones(*size: int) -> torch.Tensor:
    return torch.ones(*size, device="npu")


def test_a_replay_reads_its_inputs_again() -> None:
    x = ones(3)
    graph, y = capture(lambda: torch.relu(x * 2 + 1))
    x.copy_(torch.tensor([10.0, 20.0, -30.0]))
    graph.replay()
    assert y.tolist() == [21.0, 41.0, 0.0]


def test_a_capture_executes_nothing() -> None:
    x = ones(3)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        x.add_(1)
    assert x.tolist() == [1.0, 1.0, 1.0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [3.0, 3.0, 3.0]


def test_a_rebound_input_is_not_seen() -> None:
    x = ones(2)
    held = x
    graph, y = capture(lambda: x + 1)
    x = torch.full((2,), 100.0, device="npu")
    graph.replay()
    assert y.tolist() == [2.0, 2.0]
    del held


def test_replay_is_asynchronous() -> None:
    event, stream = npu.ExternalEvent(), npu.Stream()
    x = ones(4)
    graph, y = capture(lambda: x + 1)
    x.fill_(5)
    npu.synchronize()
    with npu.stream(stream):
        event.wait(stream)
        graph.replay()
    assert not stream.query()
    assert y.cpu().tolist() != [6.0] * 4
    event.record(npu.current_stream())
    stream.synchronize()
    assert y.tolist() == [6.0] * 4


def test_a_graph_has_a_pool_of_its_own() -> None:
    x = ones(1024)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        temporary = x * 2
        address = temporary.data_ptr()
        y = temporary + 1
        del temporary
        z = y * 3
    assert z.data_ptr() == address
    del y, z
    eager = [torch.empty(1024, device="npu") for _ in range(600)]
    assert all(tensor.data_ptr() != address for tensor in eager)


def test_two_graphs_share_a_pool() -> None:
    handle = npu.graph_pool_handle()
    x = ones(64)
    first, second = npu.NPUGraph(), npu.NPUGraph()
    with npu.graph(first, pool=handle):
        a = x + 1
    with npu.graph(second, pool=handle):
        b = a * 10
    assert first.pool() == second.pool() == handle
    first.replay()
    second.replay()
    assert b[0].item() == 20


def test_memory_returns_with_the_last_graph_of_a_pool() -> None:
    gc.collect()
    npu.empty_cache()
    before = npu.memory_reserved()
    handle = npu.graph_pool_handle()
    first, a = capture(lambda: ones(1 << 20) + 1, pool=handle)
    second, b = capture(lambda: ones(1 << 20) + 2, pool=handle)
    del a, b
    first.reset()
    npu.empty_cache()
    assert npu.memory_reserved() > before
    second.reset()
    gc.collect()
    npu.empty_cache()
    assert npu.memory_reserved() == before


def test_forked_streams_join() -> None:
    x, side = ones(4), npu.Stream()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        y = x + 1
        main = npu.current_stream()
        side.wait_stream(main)
        with npu.stream(side):
            z = y * 2
        main.wait_stream(side)
        total = z + y
    graph.replay()
    assert total.tolist() == [6.0] * 4


def test_an_unjoined_fork_fails_the_capture() -> None:
    x, side = ones(4), npu.Stream()
    graph = npu.NPUGraph()
    with pytest.raises(RuntimeError, match="not joined"), npu.graph(graph):  # noqa: PT012
        side.wait_stream(npu.current_stream())
        with npu.stream(side):
            x + 1


def test_an_event_recorded_after_the_join_is_no_work_to_join() -> None:
    x, side = ones(4), npu.Stream()
    late = npu.Event()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        side.wait_stream(npu.current_stream())
        with npu.stream(side):
            y = x * 2
        npu.current_stream().wait_stream(side)
        late.record(side)
    graph.replay()
    assert y.tolist() == [2.0] * 4
    assert late.query()


def test_captures_that_print_from_a_host_callback_never_fail(capfd: pytest.CaptureFixture[str]) -> None:
    # Now and then, torch_npu's allocator records an event on the side stream of the copy after it was joined.
    x = ones(2)
    for _ in range(30):
        graph = npu.NPUGraph()
        with npu.graph(graph):
            y = x + 1
            torch.ops.npu.print_npugraph_tensor(y, tensor_name="y")
            z = y + 1
        graph.replay()
        assert z.tolist() == [3.0, 3.0]
    assert capfd.readouterr().out.count("y=tensor([2., 2.])") > 0


@pytest.mark.parametrize("training", [False, True])
def test_make_graphed_callables(*, training: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).train(training)
    device = copy.deepcopy(module).npu()
    graphed = npu.make_graphed_callables(device, (torch.randn(3, 4, device="npu", requires_grad=True),))
    for _ in range(3):
        data = torch.randn(3, 4)
        x, y = data.clone().requires_grad_(), data.npu().requires_grad_()
        module.zero_grad()
        device.zero_grad()
        expected, actual = module(x), graphed(y)
        expected.sum().backward()
        actual.sum().backward()
        torch.testing.assert_close(actual.cpu(), expected)
        torch.testing.assert_close(y.grad.cpu(), x.grad)
        for p, q in zip(module.parameters(), device.parameters(), strict=True):
            torch.testing.assert_close(q.grad.cpu(), p.grad)


def test_random_numbers_advance_and_follow_the_seed() -> None:
    values = torch.empty(5, device="npu")
    npu.manual_seed(7)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        values.uniform_()
    npu.manual_seed(7)
    draws = []
    for _ in range(3):
        graph.replay()
        draws.append(values.cpu())
    assert not torch.equal(draws[0], draws[1])
    npu.manual_seed(7)
    graph.replay()
    assert torch.equal(values.cpu(), draws[0])


def test_random_numbers_of_a_replay_equal_eager() -> None:
    graph = npu.NPUGraph()
    with npu.graph(graph):
        captured = torch.randn(5, device="npu"), torch.rand(5, device="npu")
    npu.manual_seed(3)
    graph.replay()
    npu.manual_seed(3)
    eager = torch.randn(5, device="npu"), torch.rand(5, device="npu")
    assert torch.equal(captured[0], eager[0])
    assert torch.equal(captured[1], eager[1])


def test_dropout_in_a_graph() -> None:
    layer, x = nn.Dropout(0.5).npu(), ones(1000)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        y = layer(x)
    npu.manual_seed(3)
    graph.replay()
    first = y.cpu()
    graph.replay()
    second = y.cpu()
    npu.manual_seed(3)
    graph.replay()
    assert torch.equal(y.cpu(), first)
    assert not torch.equal(first, second)
    assert set(first.tolist()) == {0.0, 2.0}
    assert 0.8 < first.mean() < 1.2


def test_the_second_device() -> None:
    with torch.npu.device(1):
        y = torch.ones(3, device="npu:1")
        graph = npu.NPUGraph()
        with npu.graph(graph):
            z = y + 5
        graph.replay()
        assert z.device.index == 1
        assert z.tolist() == [6.0] * 3


def test_accelerator_graph() -> None:
    x, graph, stream = ones(3), torch.accelerator.Graph(), torch.Stream("npu")
    with stream:
        graph.capture_begin()
        y = x * 7
        graph.capture_end()
    graph.replay()
    npu.synchronize()
    assert y.tolist() == [7.0] * 3


def test_debug_dump_lists_the_kernels(tmp_path: Path) -> None:
    x = ones(3)
    graph = npu.NPUGraph()
    with npu.graph(graph):
        x.add_(1).mul_(2)
    graph.debug_dump(str(tmp_path / "graph.json"))
    names = [entry["name"] for entry in json.loads((tmp_path / "graph.json").read_text())]
    assert names == ["aclnnInplaceAdds", "aclnnInplaceMuls"]


# ---- the state machine


def test_an_instance_captures_once() -> None:
    graph, _ = capture(lambda: ones(1) + 1)
    with pytest.raises(RuntimeError, match="already owns a captured graph"), npu.graph(graph):
        pass


@pytest.mark.parametrize("call", ["replay", "pool"])
def test_calls_before_a_capture(call: str) -> None:
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        getattr(npu.NPUGraph(), call)()


def test_replay_after_reset() -> None:
    graph, _ = capture(lambda: ones(1) + 1)
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_the_default_stream_cannot_be_captured() -> None:
    with pytest.raises(RuntimeError, match="non-default stream"):
        npu.NPUGraph().capture_begin()


FORBIDDEN = {
    "item": lambda x: x.sum().item(),
    "synchronize the stream": lambda _: npu.current_stream().synchronize(),
    "query the stream": lambda _: npu.current_stream().query(),
    "synchronize the device": lambda _: npu.synchronize(),
    "pageable copy to the device": lambda x: x + torch.ones(4).npu(),
    "copy to the host": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_forbidden_in_a_capture(what: str) -> None:
    x = ones(4)
    npu.synchronize()
    with pytest.raises(RuntimeError), npu.graph(npu.NPUGraph()):  # noqa: PT012
        x + 1
        FORBIDDEN[what](x)
    assert not npu.is_current_stream_capturing()
    npu.set_stream(npu.default_stream())
    graph, y = capture(lambda: x + 1)  # the next capture works
    graph.replay()
    assert y.tolist() == [2.0] * 4


def test_refused_synchronization_leaves_the_capture_valid() -> None:
    x, graph = ones(2), npu.NPUGraph()
    with npu.graph(graph):
        with pytest.raises(RuntimeError, match="is being captured"):
            npu.current_stream().synchronize()
        y = x + 1
    graph.replay()
    assert y.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("mode", "allowed"), [("global", False), ("thread_local", True), ("relaxed", True)])
def test_capture_modes_and_other_threads(mode: str, *, allowed: bool) -> None:
    x, graph, errors = ones(2), npu.NPUGraph(), []
    host = torch.ones(2)

    def copy_synchronously() -> None:
        try:
            host.npu()
        except RuntimeError as error:
            errors.append(str(error))

    def run() -> None:
        with npu.graph(graph, capture_error_mode=mode):
            x + 1
            thread = threading.Thread(target=copy_synchronously)
            thread.start()
            thread.join()

    if allowed:
        run()
        assert not errors
    else:
        with pytest.raises(RuntimeError, match="aclrtMemcpy is not allowed"):
            run()
        assert "aclrtMemcpy is not allowed" in errors[0]


def test_a_failed_capture_leaves_its_stream_current() -> None:
    """What graphspec must repair: torch_npu raises before it leaves the stream context."""
    before = npu.current_stream()
    with pytest.raises(RuntimeError), npu.graph(npu.NPUGraph()):
        npu.synchronize()
    assert npu.current_stream() != before


def test_streams_are_a_budget(cann_out: Path) -> None:
    code = """
import torch
npu, graphs, x = torch.npu, [], torch.ones(1, device="npu")
try:
    for _ in range(100):
        graph = npu.NPUGraph()
        with npu.graph(graph):
            x + 1
        graphs.append(graph)
except RuntimeError as error:
    print(len(graphs), [line for line in str(error).splitlines() if "emulated" in line][0])
"""
    environment = {**loader.environment(cann_out), "EMU_CANN_STREAMS": "60"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    count, text = done.stdout.strip().splitlines()[-1].split(" ", 1)
    assert 20 < int(count) < 60
    assert "no storage for another stream" in text


def test_environment_puts_the_libraries_first(cann_out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    assert loader.environment(cann_out)["LD_LIBRARY_PATH"] == f"{cann_out}{os.pathsep}/somewhere"
