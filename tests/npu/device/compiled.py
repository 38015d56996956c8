"""Regions that npugraph_ex compiles, captured by graphspec: updates, guards, and what is refused."""

import signal

import pytest
import torch
from attending import SPEC, model
from torch._functorch import config as functorch_config

from graphspec.errors import CaptureError, GuardError, HazardError

COMPILE = "compile: {backend: npugraph_ex}"
SCALED = (
    model(layers=2)
    .replace(
        "return torch.stack([layer(query, lengths) for layer in self.layers])",
        "return torch.stack([layer(query * self.factor, lengths) for layer in self.layers]) + 1",
    )
    .replace("layers_count, ahead", "factor = 2.0\n    layers_count, ahead")
)
LINEAR = """
STEP = 1.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) * STEP + x
"""
PLAIN = """
buffers:
  x: {shape: [4, 8], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y, compile: {backend: npugraph_ex}}
replay: [main]
"""


def compiled(spec, options=""):
    asked = COMPILE if not options else f"compile: {{backend: npugraph_ex, options: {options}}}"
    return spec.replace("    updates:", f"    {asked}\n    updates:")


def query():
    return torch.randn(2, 4, 1, 8).npu()


@pytest.fixture(autouse=True)
def as_where_ci_is_set():
    """Torch raises for what its compilers only warn of elsewhere where the variable CI is set, as on most runners."""
    with functorch_config.patch(error_on_custom_op_aliasing=True):
        yield


def test_lengths_that_change_before_each_of_64_runs_give_the_numbers_of_eager_bit_by_bit(case):
    runner = case.open(SCALED, compiled(SPEC))
    assert runner.graphs[0].compile_s > 0
    called = [call.name for call in runner.graph("main").graph.recording.calls]
    assert "npu::npu_fused_infer_attention_score.out" in called, "the passes of the compiler have not run"
    for step in range(64):
        x, lengths = query(), [step % 16 + 1, 16 - step % 13]
        assert torch.equal(runner.run(query=x, lengths=lengths)["y"], runner.model(x, lengths))


def test_a_moved_weight_and_an_attribute_that_was_burned_in_are_named(case):
    runner = case.open(SCALED, compiled(SPEC))
    x = query()
    runner.model.factor = 3.0
    with pytest.raises(GuardError, match=r"model\.factor"):
        runner.run(query=x)
    runner.model.factor = 2.0
    runner.model.layers[1].keys = runner.model.layers[1].keys.clone()
    with pytest.raises(GuardError, match=r"model\.layers\[1\]\.keys|model\.layers\.1\.keys"):
        runner.run(query=x)


def test_an_expression_of_a_param_is_refused_by_the_uncompiled_callable(case):
    doubled = model().replace(
        "self.keys, self.values, actual_seq_lengths_kv=lengths",
        "self.keys, self.values, actual_seq_lengths_kv=[n + 1 for n in lengths]",
    )
    with pytest.raises(HazardError, match="lengths"):
        case.open(doubled, compiled(SPEC.replace("max: 16", "max: 15")))


def test_a_pass_that_takes_an_updated_operator_away_is_a_finding(case):
    merging = """
    def merge(module, *_):
        graph = module.graph
        found = [node for node in graph.nodes if "npu_fused_infer_attention_score" in str(node.target)]
        first, *others = found
        for node in others:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
        module.recompile()
    """
    with pytest.raises(HazardError, match=r"is called 2 times, and compiled 1 times") as error:
        case.open(SCALED, compiled(SPEC, "{post_grad_custom_pre_pass: passes.py:merge}"), passes=merging)
    assert error.value.diagnostics[0].code == "GS772"


def test_what_would_be_compiled_anew_is_an_error_that_names_the_guard(case):
    moving = """
    import sys

    def move(graph, *_):
        for module in list(sys.modules.values()):
            if isinstance(vars(module).get("STEP"), float):
                module.STEP += 1.0
    """
    spec = PLAIN.replace(
        "{backend: npugraph_ex}", "{backend: npugraph_ex, options: {post_grad_custom_pre_pass: passes.py:move}}"
    )
    with pytest.raises(CaptureError, match=r"compiled anew .*STEP"):
        case.open(LINEAR, spec, passes=moving)


def test_a_graph_break_is_an_error_with_its_place_since_a_replay_runs_no_python(case):
    broken = LINEAR.replace("return torch.relu", "torch._dynamo.graph_break()\n        return torch.relu")
    with pytest.raises(CaptureError, match="cannot be compiled as a whole by npugraph_ex") as error:
        case.open(broken, PLAIN)
    assert "model.py" in str(error.value)


def test_buckets_states_and_weights_changed_in_place_are_as_without_a_compiler(case):
    counting = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x, state):
            state.add_(x.sum(dim=1, keepdim=True).expand_as(state))
            return torch.relu(self.linear(x)) + state
    """
    spec = """
    dims: {batch: [2, 4]}
    buffers:
      x: {shape: [batch, 8], dtype: float32}
      state: {role: state, shape: [batch, 8], dtype: float32, init: 0}
      y: {role: output, shape: [batch, 8], dtype: float32}
    regions:
      main: {call: model, inputs: [x, state], outputs: y, compile: {backend: npugraph_ex}}
    replay: [main]
    """
    runner = case.open(counting, spec)
    state = torch.zeros(4, 8).npu()
    for rows in (4, 3, 2, 1, 4):
        runner.model.linear.weight.mul_(-1.5)
        x = torch.randn(rows, 8).npu()
        wanted = runner.model(x, state[:rows])
        torch.testing.assert_close(runner.run(x=x)["y"], wanted)
    torch.testing.assert_close(runner.state["state"], state)


def test_the_programs_signals_and_streams_are_its_own_after_a_capture(case):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    case.open(LINEAR, PLAIN)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_options_that_graphspec_knows_are_those_of_the_installed_compiler():
    from npugraph_ex.configs.compiler_config import CompilerConfig

    from graphspec.compilers import COMPILERS

    real = {name for name in vars(CompilerConfig()) if name != "_fixed_attrs"}
    assert set(COMPILERS["npugraph_ex"].options) - {"cache_dir"} == real
