"""Runs inside of modes and transforms of torch, and inputs that are more than their numbers: refused by name."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

from graphspec.errors import InputError, ReplayError

SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
FORWARD = """
def __init__(self):
    super().__init__()
    self.linear = nn.Linear(2, 2)

def forward(self, x):
    return self.linear(x)
"""


def traced(run):
    torch.jit.trace(run, (torch.ones(2),), check_trace=False)


def dual(run):
    with forward_ad.dual_level():
        run(forward_ad.make_dual(torch.ones(2), torch.ones(2)))


def fake(run):
    with FakeTensorMode(allow_non_fake_inputs=True):
        run(torch.ones(2))


def on_meta(run):
    x = torch.ones(2)
    with torch.device("meta"):
        run(x)


@pytest.mark.parametrize(
    ("around", "name"),
    [
        (traced, "torch.jit.trace"),
        (dual, "forward_ad"),
        (fake, "fake tensor mode"),
        (on_meta, "meta as the default device"),
        (lambda run: torch.vmap(run)(torch.ones(3, 2)), "torch.func"),
        (lambda run: torch.func.functionalize(run)(torch.ones(2)), "torch.func"),
        (lambda run: torch.func.jvp(run, (torch.ones(2),), (torch.ones(2),)), "torch.func"),
        (lambda run: torch.func.jacrev(run)(torch.ones(2)), "torch.func"),
    ],
)
def test_a_run_inside_of_a_transform_is_refused_by_its_name_and_the_next_run_is_right(case, around, name):
    runner = case.open(FORWARD, SPEC)
    with case.refused(ReplayError, name):
        around(lambda x: runner.run(x=x)["y"])
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(runner.run(x=x)["y"], case.eager()(x))


def test_inference_mode_autocast_and_profilers_around_a_run_change_nothing(case):
    runner, x = case.open(FORWARD, SPEC), torch.tensor([1.0, 2.0])
    wanted = case.eager()(x)
    with torch.inference_mode():
        assert torch.equal(runner.run(x=x)["y"], wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(runner.run(x=x)["y"], wanted)
    with torch.profiler.profile():
        assert torch.equal(runner.run(x=x)["y"], wanted)


def test_a_capture_inside_of_autocast_is_that_of_a_capture_outside(case):
    with torch.autocast("cpu", torch.bfloat16):
        runner = case.open(FORWARD, SPEC)
        runner.recapture()
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(runner.run(x=x)["y"], case.eager()(x))
    with torch.no_grad():
        runner.model.linear.weight.fill_(3.0)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.parametrize("kind", ["masked", "two"])
def test_a_tensor_with_more_than_its_numbers_as_an_input_is_refused_by_its_name(case, kind):
    runner = case.open(FORWARD, SPEC)
    if kind == "masked":
        value = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    else:
        value = TwoTensor(torch.ones(2), torch.zeros(2))
    with case.refused(InputError, type(value).__name__):
        runner.run(x=value)
    runner.run(x=torch.nn.Parameter(torch.ones(2), requires_grad=False))
