"""Names that code finds late are guarded like those at the top of its file: imports in functions, texts, probes."""

import pytest
import torch

import graphspec
from graphspec.errors import GuardError

SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
#: What forward does, what changes (`g`: the globals of model.py, `h`: the helper, `m`: the model), and what is named.
LATE = {
    "an import of a name": ("from helper import K; return x * K", "h.K = 5.0", "helper.py:K was 2.0 and is 5.0"),
    "an import of a module": ("import helper; return x * helper.K", "h.K = 5.0", "helper.py:K"),
    "an import in a nested function": (
        "f = lambda: __import__('helper').K; return x * f()",
        "h.K = 5.0",
        "helper.py:K",
    ),
    "an import of a part": ("from parts import inner; return x * inner.K", "p.K = 5.0", "parts/inner.py:K"),
    "an import by a path": ("import parts.inner as i; return x * i.K", "p.K = 5.0", "parts/inner.py:K"),
    "an import of a list": ("from helper import SIZES; return x * SIZES[0]", "h.SIZES[0] = 5.0", "helper.py:SIZES[0]"),
    "an import of a function": ("from helper import k; return x * k()", "h.K = 5.0", "helper.py:K"),
    "import_module": ("import importlib; return x * importlib.import_module('helper').K", "h.K = 5.0", "helper.py:K"),
    "a module kept on the model": ("return x * self.helper.K", "h.K = 5.0", "helper.py:K"),
    "a module in a dict": ("return x * self.modules_['h'].K", "h.K = 5.0", "helper.py:K"),
    "globals by get": ("return x * globals().get('K')", "g['K'] = 5.0", "model.py:K"),
    "globals by key": ("return x * globals()['K']", "g['K'] = 5.0", "model.py:K"),
    "globals by a made key": ("return x * globals()['K' * 1]", "g['K'] = 5.0", "model.py:K"),
    "globals by a default": ("return x * globals().get('L', 2.0)", "g['L'] = 5.0", "model.py:L was added, as 5.0"),
    "getattr of a module": ("import helper; return x * getattr(helper, 'K', 1.0)", "h.K = 5.0", "helper.py:K"),
    "getattr by a default": (
        "import helper; return x * getattr(helper, 'L', 2.0)",
        "h.L = 5.0",
        "helper.py:L was added",
    ),
    "getattr by a made name": ("import helper; return x * getattr(helper, f'{chr(75)}')", "h.K = 5.0", "helper.py:K"),
    "hasattr of a module": ("import helper; return x if hasattr(helper, 'L') else x * 2", "h.L = 5.0", "helper.py:L"),
    "vars of a module": ("import helper; return x * vars(helper)['K']", "h.K = 5.0", "helper.py:K"),
    "a global at the top": ("return x * K", "g['K'] = 5.0", "model.py:K was 2.0 and is 5.0"),
}
MODEL = """
    K = 2.0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            import helper
            self.helper, self.modules_ = helper, {"h": helper}

        def forward(self, x):
            BODY
"""
HELPER = "K = 2.0\nSIZES = [2.0]\ndef k():\n    return K\n"


@pytest.fixture
def opened(case):
    runners = []

    def open_(body):
        path = case.write(MODEL.replace("BODY", body), SPEC)
        (path.parent / "helper.py").write_text(HELPER)
        (path.parent / "parts").mkdir()
        (path.parent / "parts" / "__init__.py").write_text("")
        (path.parent / "parts" / "inner.py").write_text("K = 2.0\n")
        runners.append(graphspec.open(path, device="cpu"))
        return runners[-1]

    yield open_
    for runner in runners:
        runner.close()


@pytest.mark.case("C62")
@pytest.mark.parametrize(("body", "changed", "name"), LATE.values(), ids=LATE)
def test_what_code_finds_late_is_guarded(case, opened, body, changed, name):
    runner, x = opened(body), torch.ones(2)
    for _ in range(2):
        assert runner.run(x=x)["y"].tolist() == [2.0, 2.0]
    space = type(runner.model).forward.__globals__
    inner = space["__builtins__"]["__import__"]("parts.inner", space, {}, ("K",), 0) if "p.K" in changed else None
    exec(changed, {"g": space, "h": runner.model.helper, "m": runner.model, "p": inner})  # noqa: S102
    with case.refused(GuardError, name):
        runner.run(x=x)
    runner.recapture()
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C62")
def test_what_no_code_asks_of_a_module_may_change(opened):
    runner, x = opened("import helper; return x * getattr(helper, 'K', 1.0)"), torch.ones(2)
    space = type(runner.model).forward.__globals__
    runner.model.helper.L = runner.model.helper.UNREAD = space["NEW"] = 7.0
    assert runner.run(x=x)["y"].tolist() == [2.0, 2.0]
