"""Task groups and updates: host parameters of captured operators, replaced between replays."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch_npu
from attention import Decode

npu = torch.npu


def captured(decode: Decode, lengths: list[int], ahead: torch.Tensor | None = None) -> tuple[Any, torch.Tensor]:
    """A graph with one updatable operator, and its output. ``ahead`` puts a long kernel before it."""
    decode.run(lengths)
    npu.synchronize()
    graph = npu.NPUGraph()
    with npu.graph(graph, auto_dispatch_capture=True):
        if ahead is not None:
            ahead @ ahead
        out = decode.run(lengths)
    return graph, out


def update(graph: Any, lengths: list[int]) -> None:
    graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths}])


def test_update_before_and_after_the_replay() -> None:
    decode = Decode()
    graph, out = captured(decode, [5, 9])
    for lengths, first in (([3, 16], True), ([7, 2], False), ([16, 16], True), ([1, 1], False)):
        if first:
            update(graph, lengths)
            graph.replay()
        else:
            graph.replay()
            update(graph, lengths)
        npu.synchronize()
        decode.check(out, lengths)


def test_values_three_five_five() -> None:
    decode = Decode()
    graph, out = captured(decode, [9, 9])
    for value in (3, 5, 5):
        graph.replay()
        update(graph, [value, value])
        npu.synchronize()
        decode.check(out, [value, value])


def test_the_last_of_two_updates_wins() -> None:
    decode = Decode()
    graph, out = captured(decode, [9, 9])
    update(graph, [3, 3])
    update(graph, [4, 4])
    npu.synchronize()  # a replay waits for one update only, so that it may start behind the first
    graph.replay()
    npu.synchronize()
    decode.check(out, [4, 4])


def test_new_inputs_and_new_lengths() -> None:
    decode = Decode()
    graph, out = captured(decode, [5, 9])
    decode.query.copy_(torch.randn(decode.query.shape))
    graph.replay()
    update(graph, [4, 4])
    npu.synchronize()
    decode.check(out, [4, 4])


def test_a_replay_without_an_update_times_out() -> None:
    decode = Decode()
    graph, out = captured(decode, [5, 9])
    graph.replay()
    with pytest.raises(RuntimeError, match=r"aclrtValueWait: nobody wrote 1 within .* no update since the last replay"):
        npu.synchronize()
    graph.replay()  # the process goes on
    update(graph, [2, 3])
    npu.synchronize()
    decode.check(out, [2, 3])


def test_an_update_can_overtake_a_replay() -> None:
    """The race graphspec must order: nothing in torch_npu keeps an update behind the replay before it.

    The event is one word, so the second update of two issued early is lost and the second replay waits for ever.
    """
    decode = Decode()
    graph, _ = captured(decode, [5, 9], ahead=torch.randn(256, 256, device="npu"))
    for lengths in ([3, 3], [4, 4]):
        update(graph, lengths)
        graph.replay()
    with pytest.raises(RuntimeError, match="aclrtValueWait"):
        npu.synchronize()


def test_an_event_after_each_replay_orders_updates() -> None:
    decode = Decode()
    graph, out = captured(decode, [5, 9], ahead=torch.randn(128, 128, device="npu"))
    update_stream = graph.graph_dispatch_mode.update_stream
    results = []
    for step in range(10):
        lengths = [step % 16 + 1, 16 - step]
        graph.replay()
        update(graph, lengths)
        event = npu.Event()
        event.record()
        update_stream.wait_event(event)
        results.append((lengths, out.clone()))
    npu.synchronize()
    for lengths, result in results:
        decode.check(result, lengths)


def test_two_updatable_operators_are_recorded_in_order() -> None:
    first, second = Decode(seed=1), Decode(seed=2)
    first.run([1, 1]), second.run([1, 1])
    npu.synchronize()
    graph = npu.NPUGraph()
    with npu.graph(graph, auto_dispatch_capture=True):
        a, b = first.run([2, 2]), second.run([3, 3])
    assert len(graph.graph_dispatch_mode.graph_dispatch_records) == 2
    graph.replay()
    graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [5, 6]}, {"actual_seq_lengths_kv": [7, 8]}])
    npu.synchronize()
    first.check(a, [5, 6])
    second.check(b, [7, 8])


def test_wrong_number_of_updates() -> None:
    graph, _ = captured(Decode(), [5, 9])
    with pytest.raises(RuntimeError, match="1 operators that need to be updated"):
        graph.update(cpu_update_input=[{}, {}, {}])


def test_update_without_auto_dispatch_capture() -> None:
    x, graph = torch.ones(2, device="npu"), npu.NPUGraph()
    with npu.graph(graph):
        x + 1
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        graph.update(cpu_update_input=[{}])


def test_task_groups_by_hand() -> None:
    """The calls below auto_dispatch_capture: a group around an operator, an event that it waits for."""
    decode = Decode()
    out, lse = decode.buffers()
    event, stream = npu.ExternalEvent(), npu.Stream()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        current = npu.current_stream()
        event.wait(current)
        event.reset(current)
        npu.graph_task_group_begin(current)
        decode.run_out([5, 5], out, lse)
        handle = npu.graph_task_group_end(current)
    for lengths in ([3, 4], [16, 1]):
        graph.replay()
        with npu.stream(stream):
            npu.graph_task_update_begin(stream, handle)
            decode.run_out(lengths, out, lse)
            npu.graph_task_update_end(stream)
            event.record(stream)
        npu.synchronize()
        decode.check(out, lengths)


def test_an_update_must_launch_the_captured_kernels() -> None:
    x, stream = torch.ones(2, device="npu"), npu.Stream()
    graph = npu.NPUGraph()
    with npu.graph(graph):
        current = npu.current_stream()
        npu.graph_task_group_begin(current)
        x.add_(1)
        handle = npu.graph_task_group_end(current)
    with npu.stream(stream):
        npu.graph_task_update_begin(stream, handle)
        with pytest.raises(RuntimeError, match="launched 0 of 1 kernels"):
            npu.graph_task_update_end(stream)


@pytest.mark.parametrize("lengths", [[20, 7], [32, 1], [16, 17]])
def test_paged_attention_with_updates(lengths: list[int]) -> None:
    batch, heads, kv_heads, size, block, blocks = 2, 4, 2, 16, 16, 8
    torch.manual_seed(0)
    keys, values = (torch.randn(blocks, block, kv_heads, size, dtype=torch.float16) for _ in range(2))
    query = torch.randn(batch, heads, size, dtype=torch.float16)
    table = torch.tensor([[0, 3], [5, 1]], dtype=torch.int32)
    out = torch.empty(batch, heads, size, dtype=torch.float16, device="npu")
    on_npu = {"query": query, "key_cache": keys, "value_cache": values, "block_table": table}
    options: dict[str, Any] = {name: tensor.npu() for name, tensor in on_npu.items()}
    options |= {"num_kv_heads": kv_heads, "num_heads": heads, "scale_value": 1 / math.sqrt(size), "out": out}

    def run(context: list[int]) -> None:
        torch_npu._npu_paged_attention(**options, context_lens=torch.tensor(context, dtype=torch.int32))

    def reference(context: list[int]) -> torch.Tensor:
        rows = []
        for b, length in enumerate(context):
            k = keys[table[b].long()].flatten(0, 1)[:length].float().repeat_interleave(heads // kv_heads, 1)
            v = values[table[b].long()].flatten(0, 1)[:length].float().repeat_interleave(heads // kv_heads, 1)
            scores = torch.einsum("nd,tnd->nt", query[b].float(), k) / math.sqrt(size)
            rows.append(torch.einsum("nt,tnd->nd", scores.softmax(-1), v))
        return torch.stack(rows)

    run([9, 9])
    torch.testing.assert_close(out.float().cpu(), reference([9, 9]), rtol=2e-3, atol=2e-3)
    graph = npu.NPUGraph()
    with npu.graph(graph, auto_dispatch_capture=True):
        run([9, 9])
    graph.replay()
    graph.update(cpu_update_input=[{"context_lens": torch.tensor(lengths, dtype=torch.int32)}])
    npu.synchronize()
    torch.testing.assert_close(out.float().cpu(), reference(lengths), rtol=2e-3, atol=2e-3)
