"""Values that travel in a context and not as arguments, as in serving engines: set around a region, read inside."""

import sys
import textwrap

import pytest
import torch

import graphspec
from graphspec.cli import main
from graphspec.errors import GuardError, HazardError

CONTEXT = """
    from dataclasses import dataclass

    import torch


    @dataclass
    class Context:
        is_prefill: bool = False
        slots: torch.Tensor | None = None
        longest: int = 0


    _CONTEXT = Context()


    def get_context():
        return _CONTEXT


    def set_context(is_prefill, slots=None, longest=0):
        global _CONTEXT
        _CONTEXT = Context(is_prefill, slots, longest)


    def reset_context():
        global _CONTEXT
        _CONTEXT = Context()
"""
MODEL = """
    from engine.context import get_context

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = torch.zeros(16, 4)

        def forward(self, x):
            context = get_context()
            self.cache.index_copy_(0, context.slots, x)
            return x * 2 if context.is_prefill else x + self.cache.sum(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, x):
            return self.attention(x)
"""
SPEC = """
    dims: {{batch: [1, 2, 4]}}
    buffers:
      x: {{shape: [batch, 4], dtype: float32}}
      slots: {{shape: [batch], dtype: int64, pad: 15, sample: {{value: 3}}}}
      cache: {{role: state, attr: model.attention.cache}}
      y: {{role: output, shape: [batch, 4], dtype: float32}}
    regions:
      main:
        call: model
        inputs: [x]
        around: {around}
        outputs: y
        pad_rows: {{cache: [15]}}
        {more}
    replay: [main]
"""
LONG = '{call: "%s:set_context", inputs: {is_prefill: {const: false}, slots: slots}, after: "%s:reset_context"}'


@pytest.fixture
def engine(case):
    """Writes a spec over a package `engine` beside model.py, whose context the model reads; gives its path."""

    def write(around, *, context=CONTEXT, model=MODEL, more="", spec=SPEC):
        path = case.write(model, spec.format(around=around, more=more))
        package = path.parent / "engine"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "context.py").write_text(textwrap.dedent(context).strip() + "\n")
        return path

    return write


def steps(runner, count=3):
    """Runs of changing sizes beside what the model says eagerly."""
    cache = torch.zeros(16, 4)
    for step in range(count):
        rows = (3, 1, 4, 2)[step % 4]
        x, slots = torch.randn(rows, 4), torch.randperm(12)[:rows]
        got = runner.run(x=x, slots=slots)["y"]
        cache.index_copy_(0, slots, x)
        yield got[:rows], x + cache[:15].sum(0), runner.model.attention.cache[:15], cache[:15]


def agree(runner):
    runner.reset()
    for got, want, *caches in steps(runner):
        torch.testing.assert_close(caches[0], caches[1])
        torch.testing.assert_close(got, want)


def context_of(runner):
    """The module that the model reads."""
    return sys.modules[type(runner.model.attention).forward.__globals__["get_context"].__module__]


@pytest.mark.parametrize("place", ["engine.context", "engine/context.py"], ids=["a module", "a file"])
def test_a_pair_of_functions_around_a_region_sets_and_resets_what_its_code_reads(engine, place):
    path = engine(LONG % (place, place))
    assert main(["check", str(path), "--device", "cpu"]) == 0
    with graphspec.open(path, device="cpu") as runner:
        agree(runner)
        assert not context_of(runner).get_context().is_prefill


IN_PLACE = "_CONTEXT.is_prefill, _CONTEXT.slots, _CONTEXT.longest = is_prefill, slots, longest"
#: How a region sets its context: by itself, by functions around it, by a manager that gives back what was there.
WAYS = {
    "set and reset": (LONG % ("engine.context", "engine.context"), CONTEXT),
    "set and left": (LONG.replace("reset_context", "get_context") % ("engine.context", "engine.context"), CONTEXT),
    "a manager": (
        '{call: "engine.context:scope", inputs: [{const: false}, slots]}',
        CONTEXT + """

    @contextlib.contextmanager
    def scope(is_prefill, slots):
        global _CONTEXT
        before, _CONTEXT = _CONTEXT, Context(is_prefill, slots)
        try:
            yield
        finally:
            _CONTEXT = before
""".replace("    @c", "    import contextlib\n\n    @c"),
    ),
    "in place": (
        LONG % ("engine.context", "engine.context"),
        CONTEXT.replace("_CONTEXT = Context(is_prefill, slots, longest)", IN_PLACE).replace(
            "    global _CONTEXT\n        _CONTEXT = Context()", "    set_context(False)"
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_what_others_set_between_runs_is_nothing_to_a_region_that_sets_its_context_itself(engine, way):
    around, context = WAYS[way]
    path = engine(around, context=context)
    assert main(["check", str(path), "--device", "cpu"]) == 0
    with graphspec.open(path, device="cpu") as runner:
        module = context_of(runner)
        agree(runner)
        module.set_context(True, torch.arange(3), 7)
        agree(runner)
        module.reset_context()
        agree(runner)


#: Code that reads a slot before it sets it, or tells its content apart; what another content is; and what holds it.
READ = {
    "an object": ("C = Box(2.0)", "global C; y = x * C.k; C = Box(C.k); return y", "C", "Box(5.0)"),
    "a dict": ("C = {'k': 2.0}", "global C; y = x * C['k']; C = {'k': C['k']}; return y", "C", "{'k': 5.0}"),
    "a text": ("C = 'b'", "global C; y = x * 2 if C == 'a' else x; C = 'b'; return y", "C", "'a'"),
    "a phase": ("C = Phase.B", "global C; y = x * 2 if C is Phase.A else x; C = Phase.B; return y", "C", "Phase.A"),
    "a flag": ("C = False", "global C; y = x * 2 if C is True else x; C = False; return y", "C", "True"),
    "none": ("C = Box(1.0)", "global C; y = x * 2 if C is None else x; C = Box(1.0); return y", "C", "None"),
    "a class": ("C = 1", "global C; y = x * 2 if isinstance(C, Box) else x; C = 1; return y", "C", "Box(5.0)"),
    "its type": ("C = 1", "global C; y = x * 2 if type(C) is Box else x; C = 1; return y", "C", "Box(5.0)"),
    "a key": ("C = 'b'", "global C; y = x * {'a': 2, 'b': 1}[C]; C = 'b'; return y", "C", "'a'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_what_is_read_before_it_is_set_is_refused_or_guarded(case, kind):
    start, body, name, other = READ[kind]
    model = f"""
class Box:
    def __init__(self, k):
        self.k = k

class Phase(enum.Enum):
    A = 1
    B = 2

{start}

class Model(nn.Module):
    def forward(self, x):
        {body}
""".replace("class Box", "import enum\n\nclass Box", 1)
    spec = """
        buffers: {x: {shape: [2], dtype: float32}}
        regions: {main: {call: model, inputs: [x], outputs: y}}
    """
    x = torch.randn(2)
    with pytest.raises((HazardError, GuardError)) as refused:  # noqa: PT012 - which of the two is not the point
        runner = case.open(model, spec)
        torch.testing.assert_close(runner.run(x=x)["y"], runner.model(x))
        module = sys.modules[type(runner.model).__module__]
        exec(f"{name} = {other}", vars(module))  # noqa: S102 - as the user's own code would
        runner.run(x=x)
    assert "model.py:C" in str(refused.value)
