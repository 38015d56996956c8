"""Host arguments of captured operators follow their params, and what torch_npu ignores in silence is refused."""

import itertools
import math

import loader
import pytest
import torch
from attending import SPEC, expected, model, reference

from graphspec.errors import GraphSpecError, HazardError

OP = "npu::npu_fused_infer_attention_score"
KEYS = ("actual_seq_lengths", "actual_seq_lengths_kv")
RUNS = 100


def query():
    return torch.randn(2, 4, 1, 8).npu()


def close(actual, wanted):
    torch.testing.assert_close(actual.cpu(), wanted)


def test_three_five_and_then_the_last_value_again(case):
    runner, x = case.open(model(), SPEC), query()
    for given, effective in (({"lengths": [3, 3]}, [3, 3]), ({"lengths": [5, 5]}, [5, 5]), ({}, [5, 5])):
        close(runner.run(query=x, **given)["y"][0], expected(runner, x, effective))


def test_of_two_values_before_one_replay_the_last_wins(case):
    runner, x = case.open(model(), SPEC), query()
    graph = runner.graph("main")
    graph.refresh({"lengths": [9, 9]})
    graph.refresh({"lengths": [2, 7]})
    runner.run(query=x, lengths=[2, 7])
    graph.replay()
    close(graph.value("y")[0], expected(runner, x, [2, 7]))


def test_a_bare_replay_with_no_new_value_ends(case):
    runner, x = case.open(model(), SPEC), query()
    first = runner.run(query=x, lengths=[3, 8])["y"].cpu()
    graph = runner.graph("main")
    for _ in range(3):
        graph.replay()
    torch.npu.synchronize()
    assert torch.equal(graph.value("y").cpu(), first)


def test_a_hundred_runs_back_to_back_behind_a_long_kernel_are_all_right_with_nothing_synchronized(case):
    runner, x = case.open(model(ahead=128), SPEC), query()
    waits = [name for name in loader.all_calls() if "Synchronize" in name]
    before = [loader.calls(name) for name in waits]
    lengths = [[step % 16 + 1, 16 - step % 16] for step in range(RUNS)]
    results = [runner.run(query=x, lengths=each)["y"] for each in lengths]
    assert [loader.calls(name) for name in waits] == before
    for each, result in zip(lengths, results, strict=True):
        close(result[0], expected(runner, x, each))


def spec(update, call="model", param="{type: int, shape: [2], min: 1, max: 16, default: 4}", head=""):
    return f"""
{head}
params:
  lengths: {param}
buffers:
  query: {{shape: [2, 4, 1, 8], dtype: float32}}
regions:
  main:
    call: {call}
    inputs: [query, lengths]
    outputs: y
    updates: [{update}]
replay: [main]
"""


def update(op=OP, arg="actual_seq_lengths_kv", more=""):
    return f'{{op: "{op}", arg: {arg}, from: lengths{more}}}'


SPREAD = "{type: int, shape: [3, 2], min: 1, max: 16, default: 4}"


def test_each_occurrence_takes_its_own_row_of_the_param(case):
    source = spec(update(more=", each: occurrence"), "model.spread", SPREAD)
    runner, x = case.open(model(layers=3), source), query()
    lengths = [[3, 4], [16, 1], [7, 9]]
    y = runner.run(query=x, lengths=lengths)["y"]
    for layer, own in enumerate(lengths):
        close(y[layer], expected(runner, x, own, layer))


@pytest.mark.parametrize("more", [", at: [1]", ", within: 'model.layers.1'"])
def test_one_of_several_operators_is_updated_and_the_others_keep_what_they_were_captured_with(case, more):
    source = model(layers=3).replace(
        "[layer(query, lengths) for layer in self.layers]",
        "[layer(query, lengths if layer is self.layers[1] else [4, 4]) for layer in self.layers]",
    )
    runner, x = case.open(source, spec(update(more=more))), query()
    for lengths in ([9, 2], [16, 16]):
        y = runner.run(query=x, lengths=lengths)["y"]
        for layer, own in enumerate(([4, 4], lengths, [4, 4])):
            close(y[layer], expected(runner, x, own, layer))


def test_a_list_of_one_is_not_spread_over_operators(case):
    source = spec(update(more=", each: occurrence"), "model.spread", SPREAD.replace("3, 2", "1, 2"))
    with pytest.raises(GraphSpecError) as caught:
        case.open(model(layers=3).replace("zip(self.layers, lengths)", "zip(self.layers, list(lengths) * 3)"), source)
    assert "1 items along its first axis for 3 occurrences" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (update(arg="context_lens"), ("'context_lens'", OP, *KEYS)),
        (update(arg="actual_seq_lenghts_kv"), ("'actual_seq_lenghts_kv'", "Did you mean actual_seq_lengths_kv", *KEYS)),
        (update(op="aten::stack", arg="dim"), ("aten::stack", OP, *KEYS)),
        (update(arg="actual_seq_lengths"), ("captured without 'actual_seq_lengths'", "actual_seq_lengths_kv")),
    ],
    ids=["a key it does not take", "a typo", "an operator without updates", "an argument not passed at capture"],
)
def test_a_wrong_update_is_refused_before_the_first_replay_with_the_accepted_names(case, wrong, words):
    before = loader.calls("aclmdlRIExecuteAsync")
    with pytest.raises(HazardError) as caught:
        case.open(model(), spec(wrong))
    assert loader.calls("aclmdlRIExecuteAsync") == before
    text = str(caught.value)
    assert "region 'main'" in text
    assert not [word for word in words if word not in text], text


def test_the_second_version_of_the_attention_is_updated_too(case):
    source = (
        model()
        .replace("npu_fused_infer_attention_score(", "npu_fused_infer_attention_score_v2(")
        .replace("actual_seq_lengths_kv=", "actual_seq_kvlen=")
        .replace("num_heads=4", "num_query_heads=4")
        .replace("            scale=", "            softmax_scale=")
    )
    runner, x = case.open(source, spec(update(op=f"{OP}_v2", arg="actual_seq_kvlen"))), query()
    for lengths in ([3, 8], [16, 1]):
        close(runner.run(query=x, lengths=lengths)["y"][0], expected(runner, x, lengths))


PAGED = """
import torch_npu


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.register_buffer("keys", torch.randn(8, 16, 2, 16, generator=random).half())
        self.register_buffer("values", torch.randn(8, 16, 2, 16, generator=random).half())
        self.register_buffer("table", torch.tensor([[0, 3], [5, 1]], dtype=torch.int32))
        self.context_lens = torch.tensor([9, 9], dtype=torch.int32)  # a host tensor: its values are parameters

    def forward(self, query):
        out = torch.empty_like(query)
        torch_npu._npu_paged_attention(
            query, self.keys, self.values, 2, 4, 0.25, self.table, self.context_lens, out
        )
        return out
"""

PAGED_SPEC = """
params:
  lengths: {type: int, shape: [2], min: 1, max: 32, default: 9}
buffers:
  query: {shape: [2, 4, 16], dtype: float16}
regions:
  main:
    call: model
    inputs: [query]
    outputs: y
    updates: [{op: "atb::_npu_paged_attention", arg: context_lens, from: lengths}]
replay: [main]
check: {rtol: 2.0e-3, atol: 2.0e-3}
"""


def test_paged_attention_takes_its_lengths_as_a_host_tensor(case):
    runner, x = case.open(PAGED, PAGED_SPEC), torch.randn(2, 4, 16).half().npu()
    dense = [cache.cpu()[runner.model.table.cpu().long()].flatten(1, 2).transpose(1, 2).float()
             for cache in (runner.model.keys, runner.model.values)]  # fmt: skip
    for lengths in ([20, 7], [32, 1], [16, 17]):
        y = runner.run(query=x, lengths=lengths)["y"].cpu().float()
        wanted = reference(x.cpu().float().unsqueeze(2), *dense, lengths).squeeze(2)
        torch.testing.assert_close(y, wanted, rtol=2e-3, atol=2e-3)


HANDLER = """
import torch
from torch_npu.npu._npugraph_handlers.npugraph_handler import NpuGraphOpHandler, register_npu_graph_handler


def register():
    @register_npu_graph_handler(["addcmul.default", "addcmul.out"])
    class Addcmul(NpuGraphOpHandler):
        UPDATE_SPECS = {name: [("kwarg", "value", "value")] for name in ("addcmul.default", "addcmul.out")}

        @classmethod
        def prepare_capture(cls, func, args, kwargs):
            return torch.ops.aten.addcmul.out, args, {**kwargs, "out": torch.empty_like(args[0])}
"""


def test_an_operator_gets_updates_by_a_handler_of_the_users(case):
    source = """
class Model(nn.Module):
    def forward(self, x, scale):
        return torch.ops.aten.addcmul(x, x, x, value=scale)
"""
    runner = case.open(
        source,
        """
        npu: {handlers: ["ops.py:register"]}
        params:
          scale: {type: float, default: 0.5}
        buffers:
          x: {shape: [3], dtype: float32}
        regions:
          main:
            call: model
            inputs: [x, scale]
            outputs: y
            updates: [{op: "aten::addcmul", arg: value, from: scale}]
        replay: [main]
        """,
        ops=HANDLER,
    )
    x = torch.tensor([1.0, 2.0, 3.0])
    for scale in (2.0, -1.0):
        close(runner.run(x=x.npu(), scale=scale)["y"], x + scale * x * x)


def test_updates_work_on_the_second_device(case):
    runner = case.open(model(ahead=64), SPEC, device="npu:1")
    x = torch.randn(2, 4, 1, 8, device="npu:1")
    assert runner.device == torch.device("npu:1")
    results = [(each, runner.run(query=x, lengths=each)["y"]) for each in ([3, 3], [5, 9], [16, 1])]
    for each, result in results:
        assert result.device == torch.device("npu:1")
        close(result[0], expected(runner, x, each))
    assert torch.npu.current_device() == 0


def test_no_two_runs_in_a_row_share_a_result(case):
    runner, x = case.open(model(), SPEC), query()
    kept = [runner.run(query=x, lengths=[n, n])["y"] for n in (2, 11)]
    assert all(not torch.equal(a.cpu(), b.cpu()) for a, b in itertools.combinations(kept, 2))
    assert math.isfinite(kept[0].sum().item())
