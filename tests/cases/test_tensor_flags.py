"""What code asks of a tensor besides its values is guarded: flags, versions, gradients, attributes put on it."""

import pytest
import torch

from graphspec.errors import GuardError

SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
#: What __init__ adds, what forward returns, what changes, and the name in the error.
ASKED = {
    "requires_grad": (
        "",
        "x * w if w.requires_grad else x * w * 10",
        "w.requires_grad_(False)",
        "model.w.requires_grad",
    ),
    "a gradient": ("", "x * w if w.grad is None else x * 9", "w.grad = torch.ones(2)", "model.w.grad"),
    "a gradient that goes": (
        "w.grad = torch.ones(2)",
        "x * 9 if w.grad is None else x * w",
        "w.grad = None",
        "model.w.grad",
    ),
    "is_leaf": ("self.v = w.detach()", "x * 9 if self.v.is_leaf else x", "grown(m)", "model.v"),
    "an attribute by getattr": ("", "x * w * getattr(w, 'scale', 1.0)", "w.scale = 3.0", "model.w.scale was added"),
    "an attribute by hasattr": (
        "",
        "x * 9 if hasattr(w, 'scale') else x * w",
        "w.scale = 3.0",
        "model.w.scale was added",
    ),
    "an attribute it has": ("w.scale = 2.0", "x * w * w.scale", "w.scale = 3.0", "model.w.scale was 2.0 and is 3.0"),
    "an attribute of a buffer": ("", "x * getattr(self.b, 'scale', 1.0)", "m.b.scale = 3.0", "model.b.scale was added"),
}


@pytest.mark.case("C62")
@pytest.mark.parametrize(("made", "returned", "changed", "name"), ASKED.values(), ids=ASKED)
def test_what_code_asks_of_a_tensor_is_guarded(case, made, returned, changed, name):
    model = f"""
        def grown(m):
            with torch.enable_grad():
                m.v.mul_(m.w)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = w = nn.Parameter(torch.ones(2))
                self.register_buffer("b", torch.ones(2))
                {made or "pass"}

            def forward(self, x):
                w = self.w
                return {returned}
    """
    runner, x = case.open(model, SPEC), torch.ones(2)
    for _ in range(2):
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))
    space = type(runner.model).forward.__globals__
    exec(changed, {**space, "m": runner.model, "w": runner.model.w})  # noqa: S102 - what the test is about
    with case.refused(GuardError, name):
        runner.run(x=x)


CACHED = """
    def __init__(self):
        super().__init__()
        self.w, self.key, self.c = nn.Parameter(torch.ones(2)), None, None

    def forward(self, x):
        if self.key != self.w._version:
            self.c, self.key = self.w.detach() * 10, self.w._version
        return x * self.c
"""


@pytest.mark.case("C62")
@pytest.mark.parametrize("how", ["in place", "load_weights"])
def test_a_cache_keyed_by_the_version_of_a_tensor_is_never_stale_in_silence(case, how):
    runner, x = case.open(CACHED, SPEC), torch.ones(2)
    for _ in range(2):
        assert runner.run(x=x)["y"].tolist() == [10.0, 10.0]
    if how == "in place":
        runner.model.w.fill_(5.0)
    else:
        runner.load_weights({"w": torch.full((2,), 5.0)})
    with case.refused(GuardError, "model.w._version"):
        runner.run(x=x)
    runner.model(x)
    runner.recapture()
    assert runner.run(x=x)["y"].tolist() == [50.0, 50.0]


@pytest.mark.case("C62")
def test_tensors_that_no_code_asks_for_flags_may_change_them(case):
    model = """
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.w
    """
    runner, x = case.open(model, SPEC), torch.ones(2)
    runner.model.w.scale = 3.0
    runner.model.requires_grad_(False)
    runner.model.w.fill_(2.0)
    assert runner.run(x=x)["y"].tolist() == [2.0, 2.0]
