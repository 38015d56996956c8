"""A graph repeats the code that was captured: other code in its place would run in eager, and not in a replay."""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from graphspec.errors import GuardError

SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
MODEL = """
    def double(x):
        return x * 2

    def triple(x):
        return x * 3

    def unused(x):
        return x

    class Tool:
        def go(self, x):
            return x * 2

        def idle(self, x):
            return x

        @staticmethod
        def plus(x):
            return x + 1

        @classmethod
        def minus(cls, x):
            return x - 1

        @property
        def factor(self):
            return 2

    class Base(nn.Module):
        def inner(self, x):
            return x + 1

    class Model(Base):
        def __init__(self):
            super().__init__()
            self.tool, self.linear = Tool(), nn.Linear(2, 2)

        def forward(self, x):
            y = self.tool.minus(self.tool.plus(self.inner(self.tool.go(double(x)))))
            return F.relu(self.linear(y)) * self.tool.factor

    class Other(Base):
        def forward(self, x):
            return x
"""


def other(*arguments):
    return arguments[-1]


#: What is run, with the model as `m`, its file as `f` and torch's functional as `F`; and what the error names.
SWAPS = {
    "a function of the file": ("f.double = f.triple", "model.py:double"),
    "a method": ("f.Tool.go = other", "Tool.go"),
    "a method of a base": ("f.Base.inner = other", "Base.inner"),
    "a method that hides one of a base": ("f.Model.inner = other", "Model.inner was added"),
    "a method on an object": ("m.tool.go = other", "model.tool.go was added"),
    "forward of a class": ("f.Model.forward = other", "Model.forward"),
    "forward of an instance": ("m.forward = other", "model.forward was added"),
    "a static method": ("f.Tool.plus = staticmethod(other)", "Tool.plus"),
    "a class method": ("f.Tool.minus = classmethod(other)", "Tool.minus"),
    "a property": ("f.Tool.factor = property(lambda _: 3)", "Tool.factor"),
    "a deleted method": ("del f.Tool.go", "Tool.go was deleted"),
    "the class of the model": ("m.__class__ = f.Other", "model was a Model and is a Other"),
    "the class of an object": (
        "m.tool.__class__ = type('Tool', (f.Tool,), {'__module__': 'm'})",
        "model.tool was a Tool and is another Tool",
    ),
    "the code of a reloaded function": ("f.double.__code__ = f.triple.__code__", "model.py:double.__code__"),
    "a function of torch": ("F.relu = other", "torch.nn.functional.relu"),
    "what a layer of torch calls": ("F.linear = other", "torch.nn.functional.linear"),
    "a layer of torch": ("nn.Linear.forward = other", "Linear.forward"),
}


@pytest.fixture
def torch_put_back():
    kept = functional.relu, functional.linear, nn.Linear.forward
    yield
    functional.relu, functional.linear, nn.Linear.forward = kept


@pytest.mark.usefixtures("torch_put_back")
@pytest.mark.parametrize("swap", SWAPS)
def test_code_that_was_swapped_after_the_capture_is_refused_by_name_and_recapture_takes_it(case, swap):
    change, name = SWAPS[swap]
    runner, x = case.open(MODEL, SPEC), torch.tensor([1.0, 2.0])
    runner.run(x=x)
    file = sys.modules[type(runner.model).__module__]
    exec(change, {"m": runner.model, "f": file, "F": functional, "nn": nn, "other": other})  # noqa: S102
    with pytest.raises(GuardError) as caught:
        runner.run(x=x)
    assert name in caught.value.message
    if swap == "a deleted method":
        return
    runner.recapture()
    with torch.no_grad():
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))


def test_code_that_no_region_runs_may_be_swapped(case):
    runner, x = case.open(MODEL, SPEC), torch.tensor([1.0, 2.0])
    before = runner.run(x=x)["y"]
    file = sys.modules[type(runner.model).__module__]
    file.unused = file.Tool.idle = file.Model.helper = functional.gelu
    runner.model.tool.note = runner.model.note = "anything"
    assert torch.equal(runner.run(x=x)["y"], before)


def test_a_function_put_back_is_no_longer_refused(case):
    runner, x = case.open(MODEL, SPEC), torch.tensor([1.0, 2.0])
    before = runner.run(x=x)["y"]
    file = sys.modules[type(runner.model).__module__]
    kept, file.double = file.double, file.triple
    with pytest.raises(GuardError):
        runner.run(x=x)
    file.double = kept
    assert torch.equal(runner.run(x=x)["y"], before)
