"""Sleep and wake: graphs and pools are given back and made again, everything else stays."""

import gc
import weakref

import pytest
import torch

from graphspec.errors import ModelError, ReplayError

MODEL = """
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, h, scale):
        self.seen.add_(1)
        h = torch.tanh(self.layer(x) + h) * scale
        return h, h.sum(1)

    def read(self, y, x):
        return y * 2 + x[:, 0]
"""
SPEC = """
    dims: {batch: [2, 4]}
    params:
      scale: {type: float, default: 1.0}
    buffers:
      x: {shape: [batch, 64], dtype: float32, hold: true}
      h: {role: state, shape: [batch, 64], dtype: float32}
      seen: {role: state, attr: model.seen}
      y: {role: output, shape: [batch], dtype: float32}
      z: {role: output, shape: [batch], dtype: float32}
    regions:
      step: {call: model, inputs: [x, h, scale], outputs: [h, y], updates: [{op: "aten::mul", arg: other, from: scale}]}
      late: {call: model.read, inputs: [y, x], outputs: z}
    replay: {step: [step], late: [late]}
"""


def eager(model, x, h, scale):
    h = torch.tanh(model.layer(x) + h) * scale
    return h, h.sum(1)


def test_released_graphs_give_their_memory_back_and_states_and_held_inputs_stay(case):
    runner = case.open(MODEL, SPEC)
    x, h = torch.randn(3, 64), torch.zeros(3, 64)
    h, y = eager(runner.model, x, h, 1.0)
    torch.testing.assert_close(runner["step"](x=x)["y"], y)
    backend = runner._context.backend
    arenas = [weakref.ref(arena.memory) for arena in backend._arenas]
    assert sum(backend.pool_bytes().values()) > 1024
    for scale in (2.0, 0.5):
        runner.release()
        gc.collect()
        assert backend.pool_bytes() == {}
        assert [arena for arena in arenas if arena() is not None] == []
        assert runner.graphs == ()
        for use in (lambda: runner["step"](x=x), lambda: runner["step"].verify(x=x), runner["late"], runner.poison,
                    lambda: runner.graph("step", {"batch": 2}), runner.recapture):  # fmt: skip
            with case.refused(ReplayError, "released", "runner.capture()"):
                use()
        assert torch.equal(runner.state["h"][:3], h)
        runner.release()
        runner.capture()
        torch.testing.assert_close(runner["late"]()["z"], y * 2 + x[:, 0])
        h, y = eager(runner.model, x, h, scale)
        torch.testing.assert_close(runner["step"](scale=scale)["y"], y)
        assert len(runner.graphs) == 4
    assert runner.state["seen"].item() == 3


def test_what_a_released_runner_lent_keeps_its_content(case):
    spec = SPEC.replace("y: {role: output, shape: [batch], dtype: float32}",
                        "y: {role: output, shape: [batch], dtype: float32, copy: false}")  # fmt: skip
    runner = case.open(MODEL, spec)
    x = torch.randn(4, 64)
    lent = runner["step"](x=x)["y"]
    kept = lent.clone()
    runner.release()
    assert torch.equal(lent, kept)
    runner.capture()
    assert torch.equal(lent, kept)


def test_variants_that_runs_had_captured_come_back(case):
    spec = SPEC.replace("inputs: [y, x], outputs: z}", "inputs: [y, x, k], outputs: z}").replace(
        "    buffers:", "      k: {type: int, choices: [1, 2], default: 1, specialize: true}\n    buffers:"
    )
    model = MODEL.replace(
        "def read(self, y, x):\n        return y * 2 +", "def read(self, y, x, k):\n        return y * k +"
    )
    runner = case.open(model, spec.replace("replay:", "capture: {when: first_use}\n    replay:"))
    x = torch.randn(2, 64)
    y = runner["step"](x=x)["y"]
    assert torch.equal(runner["late"](k=2)["z"], y * 2 + x[:, 0])
    count = len(runner.graphs)
    runner.release()
    runner.capture()
    assert len(runner.graphs) == count
    assert torch.equal(runner["late"](k=1)["z"], y + x[:, 0])
    assert torch.equal(runner["late"](k=2)["z"], y * 2 + x[:, 0])
    assert len(runner.graphs) == count


def test_weights_that_were_moved_away_meanwhile_are_found_where_they_are(case):
    runner = case.open(MODEL, SPEC)
    x = torch.randn(2, 64)
    runner["step"](x=x)
    runner.release()
    fresh = nn_copy(runner.model)
    runner.model.load_state_dict(fresh, assign=True)
    runner.load_weights({name: tensor * 0.5 for name, tensor in fresh.items()})
    runner.reset()
    runner.capture()
    _, y = eager(runner.model, x, torch.zeros(2, 64), 1.0)
    torch.testing.assert_close(runner["step"](x=x)["y"], y)


def test_a_model_that_did_not_come_back_is_one_clear_error_and_then_captures(case):
    runner = case.open(MODEL, SPEC)
    runner.release()
    weight = runner.model.layer.weight
    runner.model.layer.weight = torch.nn.Parameter(weight.to("meta"), requires_grad=False)
    with case.refused(ModelError, "model.layer.weight"):
        runner.capture()
    with case.refused(ReplayError, "released"):
        runner["step"](x=torch.randn(2, 64))
    runner.model.layer.weight = weight
    runner.capture()
    x = torch.randn(2, 64)
    _, y = eager(runner.model, x, torch.zeros(2, 64), 1.0)
    torch.testing.assert_close(runner["step"](x=x)["y"], y)


def nn_copy(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("rounds", [20])
def test_releasing_and_capturing_again_and_again_keeps_memory_flat(case, rounds):
    runner = case.open(MODEL, SPEC)
    x = torch.randn(2, 64)
    runner["step"](x=x)
    counts = []
    for _ in range(rounds):
        runner.release()
        runner.capture()
        runner["step"](x=x)
        gc.collect()
        counts.append((sum(runner._context.backend.pool_bytes().values()), len(runner.graphs)))
    assert len(set(counts)) == 1
