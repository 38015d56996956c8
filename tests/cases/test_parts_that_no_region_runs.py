"""What no region runs or reads may change freely, and what one reads may not, however its code gets there."""

import types

import pytest
import torch
from torch import nn

from graphspec.errors import GuardError

SPEC = """
    buffers:
      x: {shape: [2, 3], dtype: float32}
    regions:
      main: {call: model.encode, inputs: [x], outputs: y}
    replay: [main]
"""
APART = """
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.shared = nn.Linear(3, 3), None
            self.register_buffer("table", torch.ones(3))
            self.k, self.sizes, self.options = 2.0, [1.0], {"k": 1.0}
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(self.layer(x)) * self.k * self.sizes[0] * self.options["k"] + self.table

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder, self.k = Part(), Part(), 1.0
            self.encoder.shared = self.decoder.shared = nn.Linear(3, 3)

        def encode(self, x):
            return self.encoder.shared(self.encoder(x)) * self.k

        def decode(self, x):
            return self.decoder(x)
"""
FREE = {
    "its mode": "m.decoder.train(); m.decoder.shared.eval()",
    "a hook on it": "m.decoder.register_forward_hook(lambda *_: None)",
    "a hook on its layer": "m.decoder.layer.register_forward_pre_hook(lambda *_: None)",
    "a number of it": "m.decoder.k = 9.0",
    "a number in a list of it": "m.decoder.sizes[0] = 9.0",
    "more in a list of it": "m.decoder.sizes.append(9.0)",
    "a dict of it": "m.decoder.options = {}",
    "a weight of it": "m.decoder.layer.weight = nn.Parameter(torch.ones(3, 3))",
    "the memory of a weight": "m.decoder.layer.weight.data = torch.ones(5, 5)",
    "a buffer of it": "m.decoder.table = torch.ones(7)",
    "its dtype": "m.decoder.layer.double()",
    "a layer of it": "m.decoder.layer = nn.Conv1d(1, 1, 1)",
    "what both share, in it alone": "m.decoder.shared = nn.Linear(3, 3)",
    "an attribute put on it": "m.decoder.weight = 3",
    "its forward": "m.decoder.forward = lambda x: x",
    "a probability": "m.decoder.drop.p = 0.9",
    "all of it": "m.decoder = nn.Linear(1, 1)",
    "that it is there": "del m.decoder",
}
KEPT = {
    "the mode of what runs": ("m.encoder.train()", "model.encoder was switched"),
    "a hook on what runs": ("m.encoder.layer.register_forward_hook(lambda *_: None)", "model.encoder.layer"),
    "a number of what runs": ("m.encoder.k = 9.0", "model.encoder.k was 2.0 and is 9.0"),
    "the mode of what both share": ("m.decoder.shared.train()", "shared was switched from eval to train"),
    "what both share": ("m.encoder.shared = nn.Linear(3, 3)", "model.encoder.shared"),
    "a weight of what runs": ("m.encoder.layer.weight = nn.Parameter(torch.ones(3, 3))", "model.encoder.layer.weight"),
    "all of what runs": ("m.encoder = nn.Linear(3, 3)", "model.encoder"),
    "a number of the model": ("m.k = 9.0", "model.k"),
}


def change(runner, what):
    exec(what, {"m": runner.model, "nn": nn, "torch": torch, "types": types})  # noqa: S102 - what the test is about


@pytest.mark.parametrize("what", FREE.values(), ids=FREE)
def test_a_part_that_no_region_runs_may_change_freely(case, what):
    runner, x = case.open(APART, SPEC), torch.randn(2, 3)
    before = runner.run(x=x)["y"]
    change(runner, what)
    assert torch.equal(runner.run(x=x)["y"], before)
    assert torch.equal(runner.run(x=x)["y"], runner.model.encode(x))


@pytest.mark.parametrize(("what", "name"), KEPT.values(), ids=KEPT)
def test_a_part_that_a_region_runs_is_guarded(case, what, name):
    runner = case.open(APART, SPEC)
    change(runner, what)
    with case.refused(GuardError, name):
        runner.run(x=torch.randn(2, 3))


def test_a_part_that_another_region_runs_is_guarded(case):
    spec = """
        buffers:
          x: {shape: [2, 3], dtype: float32}
        regions:
          first: {call: model.encode, inputs: [x], outputs: h}
          second: {call: model.decode, inputs: [h], outputs: y}
        replay: [first, second]
    """
    runner = case.open(APART, spec)
    runner.model.decoder.k = 9.0
    with case.refused(GuardError, "model.decoder.k was 2.0 and is 9.0"):
        runner.run(x=torch.randn(2, 3))


#: How code reads `k` of a part whose own code it does not run: what __init__ adds, and the expression.
WAYS = {
    "by its name": ("", "self.decoder.k"),
    "by getattr": ("", "getattr(self, 'decoder').k"),
    "by a path": ("", "self.get_submodule('decoder').k"),
    "by a made name": ("", "getattr(self, 'de' + 'coder').k"),
    "by the dict of modules": ("", "self._modules['decoder'].k"),
    "by a made key of the dict of modules": ("", "self._modules['de' + 'coder'].k"),
    "by vars": ("", "vars(self)['_modules']['decoder'].k"),
    "by attrgetter": ("", "operator.attrgetter('decoder.k')(self)"),
    "by the children": ("", "[part for part in self.children() if hasattr(part, 'k')][0].k"),
    "by all modules": ("", "[part for part in self.modules() if hasattr(part, 'k')][0].k"),
    "by a list": ("self.parts = [self.decoder]", "self.parts[0].k"),
    "by a dict": ("self.parts = {'a': [self.decoder]}", "self.parts['a'][0].k"),
    "by a closure": ("part = self.decoder; self.get = lambda: part", "self.get().k"),
    "by a bound method": ("self.get = self.decoder.read", "self.get()"),
    "by a partial": ("self.get = functools.partial(Part.read, self.decoder)", "self.get()"),
    "by a global": ("HELD.append(self.decoder)", "HELD[0].k"),
    "by an attribute of a class": ("type(self).part = self.decoder", "self.part.k"),
    "by a property": ("", "self.chosen.k"),
    "by an object that forwards": ("self.proxy = Proxy(self.decoder)", "self.proxy.k"),
    "by a default": ("self.get = (lambda part=self.decoder: part)", "self.get().k"),
    "by a tuple in a tuple": ("self.parts = ((self.decoder,),)", "self.parts[0][0].k"),
    "by a dataclass": ("self.parts = Holder(self.decoder)", "self.parts.part.k"),
    "by a pattern": ("", "self.matched()"),
    "by a function it is given to": ("", "read(self.decoder)"),
    "by a function of the standard library": ("", "functools.reduce(getattr, ['decoder', 'k'], self)"),
}


READERS = """
    import dataclasses, functools, operator

    HELD = []

    class Part(nn.Module):
        def __init__(self, k=2.0):
            super().__init__()
            self.k, self.layer = k, nn.Linear(1, 1)

        def read(self):
            return self.k

    class Proxy:
        def __init__(self, part):
            self.__dict__["inner"] = part

        def __getattr__(self, name):
            return getattr(self.inner, name)

    @dataclasses.dataclass
    class Holder:
        part: nn.Module

    def read(part):
        return part.k

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = Part()
            MADE

        @property
        def chosen(self):
            return self.decoder

        def matched(self):
            match self.decoder:
                case Part(k=k):
                    return k

        def encode(self, x):
            return x * READ
"""


@pytest.mark.parametrize(("made", "read"), WAYS.values(), ids=WAYS)
def test_what_a_region_reads_of_a_part_that_it_does_not_run_is_guarded(case, made, read):
    runner, x = case.open(READERS.replace("MADE", made or "pass").replace("READ", read), SPEC), torch.ones(2, 3)
    assert torch.equal(runner.run(x=x)["y"], x * 2)
    runner.model.decoder.k = 5.0
    with case.refused(GuardError, ".k was 2.0 and is 5.0"):
        runner.run(x=x)
    runner.model.decoder.k = 2.0
    runner.model.decoder = type(runner.model.decoder)(k=5.0)
    try:
        y = runner.run(x=x)["y"]
    except GuardError:
        return
    assert torch.equal(y, runner.model.encode(x))
