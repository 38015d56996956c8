"""A graph freezes every host value it meets: each is refreshed as declared, or refused by name and line."""

import os

import pytest
import torch

from graphspec.errors import GuardError, HazardError, InputError

SPEC = """
    buffers:
      x: {shape: [4], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""


@pytest.mark.case("C10")
def test_an_int_position_that_the_call_advances_is_refused_by_name(case):
    model = """
        def __init__(self):
            super().__init__()
            self.pos = 0
            self.register_buffer("cache", torch.zeros(4, 4))

        def forward(self, x):
            self.cache[self.pos].copy_(x)
            self.pos += 1
            return self.cache * 1
    """
    with case.refused(HazardError, "region 'main'", "model.pos", "from 0 to 1"):
        case.open(model, SPEC)


@pytest.mark.case("C10")
def test_a_position_kept_in_a_buffer_advances_run_after_run(case):
    model = """
        def __init__(self):
            super().__init__()
            self.register_buffer("pos", torch.zeros(1, dtype=torch.int64))
            self.register_buffer("cache", torch.zeros(4))

        def forward(self, x):
            self.cache.index_copy_(0, self.pos, x)
            self.pos += 1
            return self.cache * 1
    """
    runner = case.open(
        model,
        """
        buffers:
          x: {shape: [1], dtype: float32}
        regions:
          main: {call: model, inputs: [x], outputs: y}
        replay: [main]
        """,
    )
    for value in (1.0, 2.0, 3.0):
        y = runner.run(x=torch.tensor([value]))["y"]
    assert y.tolist() == [1, 2, 3, 0]


CHANGES = {
    "an int of a submodule": (
        """
        class Inner(nn.Module):
            n = 0

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Inner()

            def forward(self, x):
                self.inner.n += 1
                return x * self.inner.n
        """,
        "model.inner.n",
    ),
    "an item of a list": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.counts = [0]

            def forward(self, x):
                self.counts[0] += 1
                return x * self.counts[0]
        """,
        "model.counts[0]",
    ),
    "a list that grows": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.seen = []

            def forward(self, x):
                self.seen.append(1)
                return x * len(self.seen)
        """,
        "model.seen",
    ),
    "an entry of a dict": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.counts = {"n": 0}

            def forward(self, x):
                self.counts["n"] += 1
                return x * self.counts["n"]
        """,
        "model.counts['n']",
    ),
    "a set that grows": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.seen = set()

            def forward(self, x):
                self.seen.add(len(self.seen))
                return x * len(self.seen)
        """,
        "model.seen",
    ),
    "a deque": (
        """
        from collections import deque

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.turn = deque([1.0, 2.0, 3.0])

            def forward(self, x):
                self.turn.rotate(1)
                return x * self.turn[0]
        """,
        "model.turn",
    ),
    "a dataclass": (
        """
        from dataclasses import dataclass

        @dataclass
        class State:
            step: int = 0

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.state = State()

            def forward(self, x):
                self.state.step += 1
                return x * self.state.step
        """,
        "model.state.step",
    ),
    "slots": (
        """
        class State:
            __slots__ = ("step",)

            def __init__(self):
                self.step = 0

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.state = State()

            def forward(self, x):
                self.state.step += 1
                return x * self.state.step
        """,
        "model.state.step",
    ),
    "a global": (
        """
        STEP = 0

        class Model(nn.Module):
            def forward(self, x):
                global STEP
                STEP += 1
                return x * STEP
        """,
        "STEP",
    ),
    "a global dict": (
        """
        STEPS = {"n": 0}

        class Model(nn.Module):
            def forward(self, x):
                STEPS["n"] += 1
                return x * STEPS["n"]
        """,
        "STEPS",
    ),
    "a closure": (
        """
        def make():
            n = 0

            def forward(x):
                nonlocal n
                n += 1
                return x * n

            return forward

        def Model():
            return make()
        """,
        "n",
    ),
    "a closure inside a module": (
        """
        def counter():
            n = 0

            def count():
                nonlocal n
                n += 1
                return n

            return count

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.count = counter()

            def forward(self, x):
                return x * self.count()
        """,
        "n",
    ),
    "a class attribute": (
        """
        class Model(nn.Module):
            calls = 0

            def forward(self, x):
                type(self).calls += 1
                return x * type(self).calls
        """,
        "calls",
    ),
    "a mutable default argument": (
        """
        class Model(nn.Module):
            def forward(self, x, seen=[]):
                seen.append(1)
                return x * len(seen)
        """,
        "forward",
    ),
    "an iterator": (
        """
        import itertools

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.count = itertools.count(1)

            def forward(self, x):
                return x * next(self.count)
        """,
        "model.count",
    ),
    "a generator": (
        """
        def numbers():
            n = 0
            while True:
                n += 1
                yield n

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.numbers = numbers()

            def forward(self, x):
                return x * next(self.numbers)
        """,
        "model.numbers",
    ),
    "the clock": (
        """
        import time

        class Model(nn.Module):
            def forward(self, x):
                return x * time.perf_counter()
        """,
        "changes between runs",
    ),
    "random": (
        """
        import random

        class Model(nn.Module):
            def forward(self, x):
                return x * random.random()
        """,
        "random",
    ),
    "a branch on random": (
        """
        import random

        class Model(nn.Module):
            def forward(self, x):
                return x * 2 if random.random() < 2 else x
        """,
        "random",
    ),
    "numpy.random": (
        """
        import numpy as np

        class Model(nn.Module):
            def forward(self, x):
                return x * float(np.random.rand())
        """,
        "numpy.random",
    ),
    "a numpy generator of its own": (
        """
        import numpy as np

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rng = np.random.default_rng(0)

            def forward(self, x):
                return x * float(self.rng.random())
        """,
        "model.rng",
    ),
    "a random.Random of its own": (
        """
        import random

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rng = random.Random(0)

            def forward(self, x):
                return x * self.rng.random()
        """,
        "model.rng",
    ),
    "a numpy array written in place": (
        """
        import numpy as np

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.n = np.zeros(1)

            def forward(self, x):
                self.n[0] += 1
                return x * float(self.n[0])
        """,
        "model.n",
    ),
    "a tensor rebound": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("total", torch.zeros(4))

            def forward(self, x):
                self.total = self.total + x
                return self.total * 1
        """,
        "model.total",
    ),
    "a plain tensor rebound": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.total = torch.zeros(4)

            def forward(self, x):
                self.total = self.total + x
                return self.total * 1
        """,
        "model.total",
    ),
    "a tensor in a dict rebound": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cache = {"k": torch.zeros(4)}

            def forward(self, x):
                self.cache["k"] = self.cache["k"] + x
                return self.cache["k"] * 1
        """,
        "model.cache['k']",
    ),
    "a tensor in a list replaced": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cache = [torch.zeros(4)]

            def forward(self, x):
                self.cache.append(self.cache.pop() + x)
                return self.cache[0] * 1
        """,
        "model.cache",
    ),
    "a growing key cache": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.keys = torch.zeros(0, 4)

            def forward(self, x):
                self.keys = torch.cat([self.keys, x[None]])
                return self.keys.sum(0)
        """,
        "model.keys",
    ),
    "data of a buffer swapped": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("total", torch.zeros(4))

            def forward(self, x):
                self.total.data = self.total + x
                return self.total * 1
        """,
        "model.total",
    ),
    "two buffers exchanged": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("a", torch.zeros(4))
                self.register_buffer("b", torch.ones(4))

            def forward(self, x):
                self.a, self.b = self.b, self.a
                return x + self.a
        """,
        "model.b",
    ),
    "an environment variable": (
        """
        import os

        class Model(nn.Module):
            def forward(self, x):
                n = int(os.environ.get("GRAPHSPEC_CASE", "0")) + 1
                os.environ["GRAPHSPEC_CASE"] = str(n)
                return x * n
        """,
        "changes between runs",
    ),
    "a file": (
        """
        import pathlib

        FILE = pathlib.Path(__file__).with_name("count")

        class Model(nn.Module):
            def forward(self, x):
                n = int(FILE.read_text()) if FILE.exists() else 0
                FILE.write_text(str(n + 1))
                return x * n
        """,
        "changes between runs",
    ),
    "another operator every second call": (
        """
        import itertools

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.turn = itertools.cycle([0, 1])

            def forward(self, x):
                return x.sin() if next(self.turn) else x.cos()
        """,
        "same operators",
    ),
    "an attribute set with setattr": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.n = 0

            def forward(self, x):
                setattr(self, "n", self.n + 1)
                return x * self.n
        """,
        "model.n",
    ),
    "an attribute behind a property": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self._n = 0

            @property
            def n(self):
                self._n += 1
                return self._n

            def forward(self, x):
                return x * self.n
        """,
        "model._n",
    ),
    "a flag": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = True

            def forward(self, x):
                if self.first:
                    self.first = False
                    return x * 1
                return x * 2
        """,
        "model.first",
    ),
    "an attribute of a plain object": (
        """
        class Model:
            def __init__(self):
                self.n = 0

            def __call__(self, x):
                self.n += 1
                return x * self.n
        """,
        "model.n",
    ),
    "an attribute of a partial's argument": (
        """
        import functools
        from types import SimpleNamespace

        def step(state, x):
            state.n += 1
            return x * state.n

        def Model():
            return functools.partial(step, SimpleNamespace(n=0))
        """,
        "n",
    ),
}


@pytest.mark.case("C10")
@pytest.mark.parametrize(("model", "name"), CHANGES.values(), ids=CHANGES.keys())
def test_host_state_that_a_call_changes_is_refused_by_name(case, model, name, monkeypatch):
    monkeypatch.delenv("GRAPHSPEC_CASE", raising=False)
    with case.refused(HazardError, "region 'main'", name):
        case.open(model, SPEC)


@pytest.mark.case("C10")
def test_an_eager_region_may_count_on_the_host_beside_a_captured_one(case):
    model = """
        def __init__(self):
            super().__init__()
            self.count = 0
            self.log = []

        def note(self, x):
            self.count += 1
            self.log.append(self.count)
            return x + self.count

        def forward(self, x):
            return x * 2
    """
    spec = """
        buffers:
          x: {shape: [4], dtype: float32}
        regions:
          note: {call: model.note, inputs: [x], outputs: noted, eager: true}
          main: {call: model, inputs: [noted], outputs: y}
        replay: [note, main]
    """
    runner = case.open(model, spec)
    assert runner.model.count == 0
    for count in (1, 2, 3):
        assert runner.run(x=torch.zeros(4))["y"].tolist() == [2.0 * count] * 4
    assert runner.model.log == [1, 2, 3]


@pytest.mark.case("C10")
def test_a_cache_that_is_filled_lazily_and_then_stays_is_captured_and_matches(case):
    model = """
        def __init__(self):
            super().__init__()
            self.table = None
            self.tables = {}

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(4.0)
            if "half" not in self.tables:
                self.tables["half"] = self.table / 2
            return x * self.table + self.tables["half"]
    """
    runner = case.open(model, SPEC)
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(4)
        assert torch.equal(runner.run(x=x)["y"], eager(x))


PARAM = """
    params:
      s: {type: float, min: 0.1, max: 10, default: 2.0}
    buffers:
      x: {shape: [4], dtype: float32}
    regions:
      main: {call: model, inputs: [x, s], outputs: y}
    replay: [main]
"""
UPDATED = """
    params:
      s: {type: float, min: 0.1, max: 10, default: 2.0}
    buffers:
      x: {shape: [4], dtype: float32}
    regions:
      main: {call: model, inputs: [x, s], outputs: y, updates: [{op: "aten::mul", arg: other, from: s}]}
    replay: [main]
"""


@pytest.mark.case("C11")
def test_a_param_declared_under_updates_takes_each_new_value(case):
    runner = case.open("def forward(self, x, s): return x * s", UPDATED)
    x = torch.ones(4)
    assert runner.run(x=x)["y"].tolist() == [2.0] * 4
    assert runner.run(x=x, s=5.0)["y"].tolist() == [5.0] * 4
    assert runner.run(x=x)["y"].tolist() == [5.0] * 4  # keeps its last value
    assert runner.run(x=x, s=3)["y"].tolist() == [3.0] * 4


@pytest.mark.case("C11")
def test_a_param_that_is_not_declared_under_updates_is_a_finding_that_says_what_to_add(case):
    with case.refused(HazardError, "GS511", "'s'", 'updates: [{op: "aten::mul', "from: s"):
        case.open("def forward(self, x, s): return x * s", PARAM)


EXPRESSIONS = {
    "square": "return x * s**2",
    "sum": "return x * (s + 1)",
    "negation": "return x * -s",
    "branch": "return x * 2 if s > 1 else x * 10",
    "branch inside the range": "return x * 2 if s > 9.99 else x * 10",
    "max": "return x * max(s, 0.7)",
    "min": "return x * min(s, 0.7)",
    "int": "return x * int(s)",
    "round": "return x * round(s)",
    "a constant built from it": "return x * torch.tensor(s)",
    "a filled tensor": "return x * torch.full((4,), s)",
    "a filled tensor of its square": "return x + torch.full((4,), s * s)",
    "half": "return x * (s / 2)",
    "format": "return x * float(f'{s:.1f}')",
    "dict": "return x * {True: 1.0, False: 2.0}[s > 1]",
    "list index": "return x * [1.0, 2.0, 3.0][int(s) % 3]",
    "stored": "self.s = s; return x * 1",
    "size": "return x.repeat(int(s))[:4]",
    "attention scale": "q = x.view(1, 1, 2, 2); return F.scaled_dot_product_attention(q, q, q, scale=s)",
    "attention scale on the math path": (
        "q = x.view(1, 1, 2, 2).double(); m = torch.zeros(2, 2).double()\n"
        "    return F.scaled_dot_product_attention(q, q, q, attn_mask=m, scale=s)"
    ),
    "softmax of a scaled score": "return torch.softmax(x * s, 0)",
    "twice": "return x * s + s",
    "alpha": "return torch.add(x, x, alpha=s)",
    "leaky_relu": "return F.leaky_relu(x, s)",
    "dropout": "return F.dropout(x, s / 100, training=True)",
    "clamp": "return x.clamp(max=s)",
    "numpy": "import numpy; return x * float(numpy.sqrt(s))",
    "math": "import math; return x * math.sqrt(s)",
    "closure": "return (lambda v: v * s)(x)",
    "eps": "return F.layer_norm(x, (4,), eps=s)",
}


@pytest.mark.case("C11")
@pytest.mark.parametrize("body", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_any_other_use_of_a_param_is_a_finding_and_never_a_wrong_number(case, body):
    with case.refused(HazardError, "region 'main'"):
        case.open(f"def forward(self, x, s):\n    {body}\n", PARAM)


@pytest.mark.case("C11")
@pytest.mark.parametrize(
    "body", [body for name, body in EXPRESSIONS.items() if name in ("branch", "max", "square", "int", "sum")]
)
def test_an_expression_beside_a_declared_update_is_still_a_finding(case, body):
    with case.refused(HazardError, "region 'main'"):
        case.open(f"def forward(self, x, s):\n    x = x * s\n    {body}\n", UPDATED)


BUFFER = """
    buffers:
      x: {shape: [4], dtype: float32}
      s: {shape: [], dtype: float32}
    regions:
      main: {call: model, inputs: [x, s], outputs: y}
    replay: [main]
"""


@pytest.mark.case("C11")
@pytest.mark.parametrize(
    "body",
    [
        "return x * s",
        "return x * s**2",
        "return x * torch.clamp(s, min=0.7)",
        "return x * torch.maximum(s, s.new_full((), 0.7))",
        "return torch.where(s > 1, x * 2, x * 10)",
        "q = x.view(1, 1, 2, 2); return F.scaled_dot_product_attention(q * s * 2**0.5, q, q)",
    ],
)
def test_the_value_as_a_0d_buffer_is_right_in_every_expression(case, body):
    runner = case.open(f"def forward(self, x, s):\n    {body}\n", BUFFER)
    eager = case.eager()
    for value in (2.0, 5.0, 0.5):
        x, s = torch.randn(4), torch.tensor(value)
        torch.testing.assert_close(runner.run(x=x, s=s)["y"], eager(x, s))


@pytest.mark.case("C11")
def test_the_value_as_a_0d_buffer_still_cannot_decide_a_branch(case):
    with case.refused(HazardError, "GS701"):
        case.open("def forward(self, x, s): return x * 2 if s > 1 else x * 10", BUFFER)


@pytest.mark.case("C11")
def test_a_buffer_filled_from_a_param_is_right_in_every_expression(case):
    runner = case.open(
        "def forward(self, x, s): return x * s**2 + torch.clamp(s, min=0.7)",
        """
        params:
          p: {type: float, default: 2.0}
        buffers:
          x: {shape: [4], dtype: float32}
          s: {shape: [], dtype: float32, from: p}
        regions:
          main: {call: model, inputs: [x, s], outputs: y}
        replay: [main]
        """,
    )
    eager = case.eager()
    x = torch.randn(4)
    for given in ({}, {"p": 5.0}, {"p": 0.25}, {}):
        last = given.get("p", 0.25 if given is not None and runner.stats.replays >= 3 else 2.0)
        assert torch.equal(runner.run(x=x, **given)["y"], eager(x, torch.tensor(last)))


@pytest.mark.case("C11")
def test_a_specialized_param_may_decide_anything(case):
    runner = case.open(
        "def forward(self, x, s): return x * max(s, 0.7) if s > 1 else x * 10",
        """
        params:
          s: {type: float, default: 2.0, specialize: true}
        buffers:
          x: {shape: [4], dtype: float32}
        regions:
          main: {call: model, inputs: [x, s], outputs: y}
        replay: [main]
        """,
    )
    eager = case.eager()
    for value in (2.0, 5.0, 0.5, 2.0, 0.1):
        x = torch.randn(4)
        assert torch.equal(runner.run(x=x, s=value)["y"], eager(x, value))


@pytest.mark.case("C11")
@pytest.mark.parametrize("value", ["2.0", None, True, [2.0], 1 + 2j, 11.0, 0.0, float("nan")])
def test_a_param_of_the_wrong_type_or_outside_its_range_is_refused(case, value):
    runner = case.open("def forward(self, x, s): return x * s", UPDATED)
    with pytest.raises(InputError, match="param 's'"):
        runner.run(x=torch.ones(4), s=value)


HOST = {
    "a 0-d tensor": "torch.tensor(2.0)",
    "a numpy scalar": "__import__('numpy').float32(2.0)",
    "a number": "2.0",
}


@pytest.mark.case("C12")
@pytest.mark.parametrize("value", HOST.values(), ids=HOST.keys())
def test_a_host_number_of_the_model_is_a_constant_on_the_cpu_and_equals_eager(case, value):
    model = f"""
        def __init__(self):
            super().__init__()
            self.b = {value}

        def forward(self, x):
            return x + self.b
    """
    runner = case.open(model, SPEC)
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(4)
        assert torch.equal(runner.run(x=x)["y"], eager(x))


@pytest.mark.case("C12")
def test_a_0d_tensor_of_the_model_written_in_place_is_seen_by_the_next_run(case):
    model = """
        def __init__(self):
            super().__init__()
            self.b = torch.tensor(2.0)

        def forward(self, x):
            return x + self.b
    """
    runner = case.open(model, SPEC)
    runner.model.b.fill_(5.0)
    assert runner.run(x=torch.zeros(4))["y"].tolist() == [5.0] * 4


SCALARS = {
    "a float": ("self.b = 2.0", "m.b = 5.0", "model.b"),
    "an int": ("self.b = 2", "m.b = 5", "model.b"),
    "a bool": ("self.b = True", "m.b = False", "model.b"),
    "a numpy scalar": ("import numpy; self.b = numpy.float32(2)", "import numpy; m.b = numpy.float32(5)", "model.b"),
    "a number to a tensor": ("self.b = 2.0", "m.b = torch.tensor(5.0)", "model.b"),
    "an item of a list": ("self.bs = [2.0]", "m.bs[0] = 5.0", "model.bs[0]"),
    "an entry of a dict": ("self.bs = {'b': 2.0}", "m.bs['b'] = 5.0", "model.bs['b']"),
    "a field of an object": (
        "from types import SimpleNamespace; self.c = SimpleNamespace(b=2.0)",
        "m.c.b = 5.0",
        "model.c.b",
    ),
    "a numpy array": ("import numpy; self.a = numpy.array([2.0])", "m.a[0] = 5.0", "model.a"),
    "a replaced object": (
        "from types import SimpleNamespace; self.c = SimpleNamespace(b=2.0)",
        "from types import SimpleNamespace; m.c = SimpleNamespace(b=5.0)",
        "model.c",
    ),
}
READS_OF = {
    "model.b": "x + self.b",
    "model.bs[0]": "x + self.bs[0]",
    "model.bs['b']": "x + self.bs['b']",
    "model.c.b": "x + self.c.b",
    "model.c": "x + self.c.b",
    "model.a": "x + float(self.a[0])",
}


@pytest.mark.case("C12", "C62")
@pytest.mark.parametrize(("made", "changed", "name"), SCALARS.values(), ids=SCALARS.keys())
def test_a_host_number_that_the_graph_froze_and_its_owner_changes_is_refused_by_name(case, made, changed, name):
    model = f"""
        def __init__(self):
            super().__init__()
            {made}

        def forward(self, x):
            return {READS_OF[name]}
    """
    runner = case.open(model, SPEC)
    assert runner.run(x=torch.zeros(4))["y"].tolist() == [float(runner.run(x=torch.zeros(4))["y"][0])] * 4
    exec(changed, {"m": runner.model, "torch": torch})  # noqa: S102 - what the test is about
    with case.refused(GuardError, name):
        runner.run(x=torch.zeros(4))
    runner.recapture()
    assert torch.equal(runner.run(x=torch.zeros(4))["y"], runner.model(torch.zeros(4)))


TOUCHED = {
    "a class attribute": ("scale = 2.0", "return x * self.scale", "type(m).scale = 5.0", "scale"),
    "a class attribute hidden by an instance": ("scale = 2.0", "return x * self.scale", "m.scale = 5.0", "model.scale"),
    "the probability of a dropout": ("drop = nn.Dropout(0.5)", "return self.drop(x)", "m.drop.p = 0.1", "drop"),
    "the slope of an activation": (
        "act = nn.LeakyReLU(0.1)",
        "return self.act(x)",
        "m.act.negative_slope = 0.9",
        "act",
    ),
    "an exchanged activation": ("act = nn.ReLU()", "return self.act(x)", "m.act = nn.Tanh()", "act"),
    "a layer added to a Sequential": (
        "net = nn.Sequential(nn.ReLU())",
        "return self.net(x)",
        "m.net.append(nn.Tanh())",
        "net",
    ),
    "a layer taken out of a Sequential": (
        "net = nn.Sequential(nn.ReLU(), nn.Tanh())",
        "return self.net(x)",
        "m.net.pop(1)",
        "net",
    ),
    "a function kept on the model": ("act = None", "return (self.act or torch.sin)(x)", "m.act = torch.cos", "act"),
    "a tuple": ("shift = (1, 0)", "return x.roll(self.shift[0])", "m.shift = (2, 0)", "shift"),
    "a text": ("kind = 'sin'", "return getattr(torch, self.kind)(x)", "m.kind = 'cos'", "kind"),
    "a None": ("bias = None", "return x if self.bias is None else x + self.bias", "m.bias = torch.ones(4)", "bias"),
    "a flag": ("on = True", "return x * 2 if self.on else x", "m.on = False", "on"),
    "a list of layers": (
        "steps = [2.0]",
        "for s in self.steps: x = x * s\n            return x",
        "m.steps.append(3.0)",
        "steps",
    ),
    "a dtype": ("kind = torch.float64", "return x.to(self.kind)", "m.kind = torch.float16", "kind"),
}


@pytest.mark.case("C10", "C62")
@pytest.mark.parametrize(("made", "body", "change", "name"), TOUCHED.values(), ids=TOUCHED.keys())
def test_whatever_the_captured_code_reads_of_the_model_is_refused_by_name_when_it_changes(
    case, made, body, change, name
):
    model = f"""
        class Model(nn.Module):
            {"" if " nn." in made else made}

            def __init__(self):
                super().__init__()
                {f"self.{made}" if " nn." in made else "pass"}

            def forward(self, x):
                {body.replace("            return", "                return")}
    """
    runner = case.open(model, SPEC)
    x = torch.randn(4)
    first = runner.run(x=x)["y"]
    assert first.shape == (4,)
    exec(change, {"m": runner.model, "torch": torch, "nn": torch.nn})  # noqa: S102 - what the test is about
    with case.refused(GuardError, name):
        runner.run(x=x)
    runner.recapture()
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C10", "C62")
@pytest.mark.parametrize("made", ["SCALE = 2.0", "SCALE = torch.tensor(2.0)", "SCALE = [2.0]", "SCALE = {'s': 2.0}"])
def test_a_global_that_only_a_regions_own_method_reads_is_refused_by_name_when_it_changes(case, made):
    read = {"[": "SCALE[0]", "{": "SCALE['s']"}.get(made[8], "SCALE")
    model = f"""
        {made}

        def scale():
            return {read}

        class Model(nn.Module):
            def step(self, x):
                return x * scale()
    """
    runner = case.open(model, SPEC.replace("call: model,", "call: model.step,"))
    x = torch.randn(4)
    assert torch.equal(runner.run(x=x)["y"], x * 2)
    space = runner.model.step.__func__.__globals__
    changed = {"[": [3.0], "{": {"s": 3.0}}.get(made[8], torch.tensor(3.0) if "torch" in made else 3.0)
    space.update(SCALE=changed)
    with case.refused(GuardError, "SCALE"):
        runner.run(x=x)
    runner.recapture()
    assert torch.equal(runner.run(x=x)["y"], x * 3)


@pytest.mark.case("C62")
@pytest.mark.parametrize(
    "change", ["m.b = 4.0 / 2", "m.other = 3", "m.table['x'] = 1", "m.log.append(1)", "m.count += 1"]
)
def test_equal_values_and_what_the_captured_code_does_not_read_pass(case, change):
    model = """
        def __init__(self):
            super().__init__()
            self.b, self.table, self.log, self.count = 2.0, {}, [], 0

        def forward(self, x):
            return x * self.b

        def describe(self):
            return self.log, self.count
    """
    runner = case.open(model, SPEC)
    for _ in range(3):
        exec(change, {"m": runner.model})  # noqa: S102 - what the test is about
        x = torch.randn(4)
        assert torch.equal(runner.run(x=x)["y"], x * 2)


BORN = {
    "a list": "torch.tensor([1., 2., 3., 4.], device=x.device)",
    "a list without a device": "torch.tensor([1., 2., 3., 4.])",
    "as_tensor": "torch.as_tensor([1., 2., 3., 4.])",
    "asarray": "torch.asarray([1., 2., 3., 4.])",
    "the Tensor constructor": "torch.Tensor([1., 2., 3., 4.])",
    "FloatTensor": "torch.FloatTensor([1., 2., 3., 4.])",
    "new_tensor": "x.new_tensor([1., 2., 3., 4.])",
    "from_numpy": "torch.from_numpy(__import__('numpy').ones(4, dtype='float32'))",
    "tensor of numpy": "torch.tensor(__import__('numpy').ones(4, dtype='float32'))",
    "frombuffer": "torch.frombuffer(bytearray(16), dtype=torch.float32)",
    "stack of numbers": "torch.stack([torch.tensor([v]) for v in (1., 2., 3., 4.)])[:, 0]",
    "an index list": "x[[0, 1, 2, 3]]",
    "an index array": "x[__import__('numpy').arange(4)]",
    "a nested list": "torch.tensor([[1., 2.], [3., 4.]]).view(4)",
    "a list of a shape": "torch.tensor(list(x.shape) * 4)",
}


@pytest.mark.case("C13")
@pytest.mark.parametrize("made", BORN.values(), ids=BORN.keys())
def test_a_tensor_born_from_host_data_inside_forward_is_refused_with_its_line(case, made):
    with case.refused(HazardError, "GS703", "region 'main'", "__init__") as caught:
        case.open(f"def forward(self, x):\n    made = {made}\n    return x + made\n", SPEC)
    assert case.line("made = ") in str(caught.value)


@pytest.mark.case("C13")
@pytest.mark.parametrize(
    "made",
    ["torch.arange(4.0)", "torch.zeros(4)", "torch.full((4,), 3.0)", "torch.linspace(0, 1, 4)", "torch.tensor(2.0)",
     "torch.ones_like(x)", "torch.eye(2).view(4)", "x.new_full((4,), 7.0)", "torch.tensor(2)", "torch.hann_window(4)"],
)  # fmt: skip
def test_what_an_operator_makes_on_the_device_is_captured_and_equals_eager(case, made):
    runner = case.open(f"def forward(self, x):\n    return x * {made}\n", SPEC)
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(4)
        assert torch.equal(runner.run(x=x)["y"], eager(x))


@pytest.mark.case("C14")
def test_one_param_feeds_an_operators_host_list_and_a_device_copy_in_the_same_run(case):
    model = """
        def forward(self, x, lens, lens_on_device):
            mask = torch.arange(4) < lens_on_device[:, None]
            return torch.roll(x, lens, (0, 1)) * mask
    """
    runner = case.open(
        model,
        """
        params:
          lens: {type: int, shape: [2], min: 0, max: 4, default: 1}
        buffers:
          x: {shape: [2, 4], dtype: float32}
          lens_on_device: {shape: [2], dtype: int64, from: lens}
        regions:
          main:
            call: model
            inputs: [x, lens, lens_on_device]
            outputs: y
            updates: [{op: "aten::roll", arg: shifts, from: lens}]
        replay: [main]
        """,
    )
    eager = case.eager()
    x = torch.randn(2, 4)
    for lens in ([1, 1], [0, 3], [4, 2], [2, 2]):
        assert torch.equal(runner.run(x=x, lens=lens)["y"], eager(x, lens, torch.tensor(lens)))
    assert torch.equal(runner.run(x=x)["y"], eager(x, [2, 2], torch.tensor([2, 2])))


CALLED_BACK = {
    "vmap": "torch.vmap(self.scaled)(x)",
    "checkpoint": "torch.utils.checkpoint.checkpoint(self.scaled, x, use_reentrant=False, preserve_rng_state=False)",
    "an autograd function": "Scale.apply(x)",
    "a function of the standard library": "functools.reduce(self.added, [x, x])",
}


@pytest.mark.parametrize("call", CALLED_BACK.values(), ids=CALLED_BACK)
def test_a_host_value_that_a_function_called_back_by_torch_loads_is_guarded(case, call):
    model = f"""
        import functools
        import torch.utils.checkpoint

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.factor = 2.0
                Scale.model = self

            def scaled(self, x):
                return x * self.factor

            def added(self, x, y):
                return x + y * self.factor

            def forward(self, x):
                return {call}

        class Scale(torch.autograd.Function):
            model = None

            @staticmethod
            def forward(ctx, x):
                return x * Scale.model.factor

            @staticmethod
            def backward(ctx, grad):
                return grad
    """
    runner = case.open(model, SPEC)
    x = torch.randn(4)
    want = runner.model(x)
    assert torch.equal(runner.run(x=x)["y"], want)
    runner.model.factor = 5.0
    with case.refused(GuardError, "model.factor"):
        runner.run(x=x)


SET = "import os; os.environ['GRAPHSPEC_CASE'] = '3'"
OTHERS = "import os; os.environ = {'GRAPHSPEC_CASE': '3'}"
CHANGED_LATER = {
    "an entry added to a dict": ("self.d = {'a': 2.0}", "sum(v for v in self.d.values()) * x", "m.d['b'] = 5.0"),
    "keyword arguments": ("self.kw = {}", "F.leaky_relu(-x, **self.kw)", "m.kw['negative_slope'] = 0.5"),
    "a member of a set": ("self.s = {'b'}", "x * (2 if 'a' in self.s else 1)", "m.s.add('a')"),
    "a default of a dict": ("self.d = {}", "x * self.d.get('c', 1.0)", "m.d['c'] = 3.0"),
    "an attribute that was not there": ("pass", "x * (2 if hasattr(self, 'z') else 1)", "m.z = 1"),
    "an attribute by its name": ("self.s = 2.0", "x * getattr(self, 's')", "m.s = 5.0"),
    "an attribute in vars": ("self.s = 2.0", "x * vars(self)['s']", "m.s = 5.0"),
    "deep in dicts": ("self.c = {'a': {'b': {'k': 2.0}}}", "x * self.c['a']['b']['k']", "m.c['a']['b']['k'] = 9.0"),
    "deep in lists": ("self.l = [[{'k': [2.0]}]]", "x * self.l[0][0]['k'][0]", "m.l[0][0]['k'][0] = 9.0"),
    "a long list": ("self.t = [float(i) for i in range(2000)]", "x * self.t[1500]", "m.t[1500] = 7.0"),
    "a long dict": ("self.t = {i: float(i) for i in range(2000)}", "x * self.t[1500]", "m.t[1500] = 7.0"),
    "a numpy array": ("self.t = numpy.ones(1000)", "x * float(self.t[1])", "m.t[1] = 7.0"),
    "another numpy array": ("self.t = numpy.ones(10)", "x * float(self.t[1])", "m.t = m.t * 7.0"),
    "another numpy array in a list": ("self.t = [numpy.ones(10)]", "x * float(self.t[0][1])", "m.t[0] = m.t[0] * 7.0"),
    "a numpy array of another shape": ("self.t = numpy.ones(10)", "x * len(self.t)", "m.t.shape = (5, 2)"),
    "a partial's keywords": (
        "self.f = functools.partial(torch.mul, other=2.0)", "self.f(x)", "m.f.keywords.update(other=5.0)",
    ),
    "a function in a dict": ("self.f = {'a': torch.relu}", "self.f['a'](x)", "m.f['a'] = torch.neg"),
    "a function in a list": ("self.f = [torch.relu]", "self.f[0](x)", "m.f[0] = torch.neg"),
    "a function in a registry": ("pass", "REG['a'](x)", "g['REG']['a'] = torch.neg"),
    "the forward of a module": ("self.l = nn.Linear(4, 4)", "self.l(x)", "m.l.forward = lambda v: v * 7"),
    "its own forward": ("pass", "x * 2", "m.forward = lambda v: v * 7"),
    "arguments of a command line": ("self.c = argparse.Namespace(n=2)", "x * self.c.n", "m.c.n = 3"),
    "an argument that was not given": ("self.c = argparse.Namespace()", "x * getattr(self.c, 'n', 2)", "m.c.n = 3"),
    "a UserDict": ("self.c = collections.UserDict(n=2)", "x * self.c['n']", "m.c['n'] = 3"),
    "a UserList": ("self.c = collections.UserList([2])", "x * self.c[0]", "m.c[0] = 3"),
    "another UserList inside": ("self.c = collections.UserList([2])", "x * self.c[0]", "m.c.data = [3]"),
    "a chain of dicts": ("self.c = collections.ChainMap({'n': 2})", "x * self.c['n']", "m.c['n'] = 3"),
    "a queue": ("self.c = queue.Queue(); self.c.put(2)", "x * self.c.queue[0]", "m.c.queue[0] = 3"),
    "a configuration file": (
        "self.c = configparser.ConfigParser(); self.c['a'] = {'n': '2'}", "x * int(self.c['a']['n'])",
        "m.c['a']['n'] = '3'",
    ),
    "a decimal": ("self.c = decimal.Decimal(2)", "x * float(self.c)", "m.c = type(m.c)(3)"),
    "a fraction": ("self.c = fractions.Fraction(2)", "x * float(self.c)", "m.c = type(m.c)(3)"),
    "a duration": ("self.c = datetime.timedelta(2)", "x * self.c.days", "m.c = type(m.c)(3)"),
    "an array of Python": ("self.c = array.array('d', [2.0])", "x * self.c[0]", "m.c[0] = 3.0"),
    "bytes that can be written": ("self.c = bytearray([2])", "x * self.c[0]", "m.c[0] = 3"),
    "a weak dict": (
        "self.c = weakref.WeakKeyDictionary(); self.k = Key(); self.c[self.k] = 2", "x * self.c[self.k]",
        "m.c[m.k] = 3",
    ),
    "an object of a library": ("self.c = operator.itemgetter(0)", "x * self.c((2, 3))", "m.c = type(m.c)(1)"),
    "a function in a closure": ("f = torch.relu; self.put, self.c = cells(f)", "self.c(x - 1)", "m.put(torch.neg)"),
    "a default": ("self.c = default", "x * self.c()", "m.c.__defaults__ = (3.0,)"),
    "a default of a keyword": ("self.c = keyword", "x * self.c()", "m.c.__kwdefaults__['n'] = 3.0"),
    "an environment variable": ("os.environ['GRAPHSPEC_CASE'] = '2'", "x * int(os.environ['GRAPHSPEC_CASE'])", SET),
    "other variables": ("os.environ['GRAPHSPEC_CASE'] = '2'", "x * int(os.environ['GRAPHSPEC_CASE'])", OTHERS),
    "an attribute of a class": ("pass", "x * Holder.scale", "g['Holder'].scale = 3.0"),
    "an attribute of its base": ("pass", "x * Holder.base", "g['Base'].base = 3.0"),
    "an attribute of a class in a dict": ("self.c = {'a': Holder}", "x * self.c['a'].scale", "g['Holder'].scale = 3.0"),
    "a bias that was not there": (
        "self.c = nn.Linear(4, 4, bias=False)", "self.c(x)", "m.c.bias = nn.Parameter(torch.ones(4))",
    ),
    "a buffer that was not there": (
        "self.register_buffer('mask', None)", "x if self.mask is None else x * self.mask", "m.mask = torch.zeros(4)",
    ),
    "an attribute by a name that is made": (
        "self.s0, self.s1 = 2.0, 3.0", "sum(x * getattr(self, f's{i}') for i in range(2))", "m.s1 = 5.0",
    ),
    "an attribute by a name that is kept": (
        "self.s0, self.names = 2.0, ['s0']", "x * getattr(self, self.names[0])", "m.s0 = 5.0",
    ),
    "a path of attributes": (
        "self.c = Slow(); self.c.d = Slow(); self.c.d.s = 2.0", "x * operator.attrgetter('d.s')(self.c)",
        "m.c.d.s = 5.0",
    ),
    "all fields of a dataclass": (
        "self.c = Options()", "F.leaky_relu(-x, **dataclasses.asdict(self.c))", "m.c.negative_slope = 0.5",
    ),
    "all attributes": ("self.c = Options()", "F.leaky_relu(-x, **vars(self.c))", "m.c.negative_slope = 0.5"),
    "one more child": (
        "self.a = nn.Linear(4, 4)", "[x := l(x) for l in self.children()][-1]", "m.b = nn.Linear(4, 4)",
    ),
    "another order of children": (
        "self.a, self.b = nn.ReLU(), nn.Linear(4, 4)", "[x := l(x) for l in self.children()][-1]",
        "m._modules['a'] = m._modules.pop('a')",
    ),
    "one more parameter": (
        "self.w = nn.Parameter(torch.ones(4))", "x + sum(p.sum() for p in self.parameters())",
        "m.v = nn.Parameter(torch.ones(4))",
    ),
    "a dtype of what no graph reads": ("self.w = nn.Parameter(torch.ones(4))", "x.to(self.w.dtype)", "m.double()"),
    "a size of what no graph reads": (
        "self.w = torch.ones(4)", "x * self.w.numel()", "m.w.data = torch.ones(7)",
    ),
    "a class in a class": ("pass", "x * Holder.Inner.scale", "g['Holder'].Inner.scale = 3.0"),
    "a dict of a class": ("pass", "x * Holder.table['a']", "g['Holder'].table['a'] = 3.0"),
    "the sign of zero": ("self.c = 0.0", "x / self.c", "m.c = -0.0"),
    "what a descriptor gives": ("self.c = Holder()", "x * self.c.field", "g['Holder'].__dict__['field'].value = 3.0"),
    "another descriptor": ("pass", "x * Holder.field", "g['Holder'].field = 3.0"),
    "the class of an object with slots": (
        "self.c = Slotted()", "x * self.c.factor()",
        "m.c.__class__ = type('Other', (g['Slotted'],), {'__slots__': ()})",
    ),
    "the order of a dict": (
        "self.c = collections.OrderedDict(a=2, b=3)", "torch.stack([x * v for v in self.c.values()])",
        "m.c.move_to_end('a')",
    ),
    "the order of a plain dict": (
        "self.c = dict(a=2, b=3)", "torch.stack([x * v for v in self.c.values()])", "m.c['a'] = m.c.pop('a')",
    ),
    "the order of modules": (
        "self.c = nn.ModuleDict(dict(a=nn.ReLU(), b=nn.Tanh()))", "torch.stack([f(x) for f in self.c.values()])",
        "m.c._modules['a'] = m.c._modules.pop('a')",
    ),
    "the kind of a restless object": (
        "self.c = Slow()", "x * (2 if self.c.kind == 'slow' else 3) * self.c.factor()",
        "m.c.calls = 1; m.c.calls = 2; m.c.__class__ = g['Fast']",
    ),
    "one that was not set": (
        "os.environ.pop('GRAPHSPEC_CASE', None)", "x * int(os.getenv('GRAPHSPEC_CASE', '2'))", SET,
    ),
}  # fmt: skip


@pytest.mark.case("C62")
@pytest.mark.parametrize(("made", "returned", "change"), CHANGED_LATER.values(), ids=CHANGED_LATER)
def test_what_captured_code_reads_on_the_host_may_not_change_later_in_whatever_it_is_kept(
    case, made, returned, change, monkeypatch
):
    monkeypatch.setenv("GRAPHSPEC_CASE", "")
    monkeypatch.setattr(os, "environ", os.environ)
    model = f"""
        import argparse, array, collections, configparser, dataclasses, datetime, decimal, fractions, functools
        import operator, os, queue, weakref
        import numpy

        REG = {{"a": torch.relu}}

        class Key:
            pass

        class Field:
            value = 2.0

            def __get__(self, owner, kind):
                return self.value

        class Base:
            base = 2.0

        class Holder(Base):
            field = Field()
            scale = 2.0
            table = {{"a": 2.0}}

            class Inner:
                scale = 2.0

        @dataclasses.dataclass
        class Options:
            negative_slope: float = 0.1

        class Slotted:
            __slots__ = ("n",)

            def factor(self):
                return 2.0 if type(self).__name__ == "Slotted" else 3.0

        class Slow:
            def __init__(self):
                self.kind = "slow"

            def factor(self):
                return 2.0

        class Fast(Slow):
            def factor(self):
                return 3.0

        def default(n=2.0):
            return n

        def keyword(*, n=2.0):
            return n

        def cells(function):
            def put(other):
                nonlocal function
                function = other
            return put, lambda x: function(x)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                {made}

            def forward(self, x):
                return {returned}
    """
    runner = case.open(model, SPEC)
    x = torch.rand(4)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))
    exec(change, {"m": runner.model, "torch": torch, "nn": torch.nn, "g": type(runner.model).forward.__globals__})  # noqa: S102
    with pytest.raises(GuardError):
        runner.run(x=x)
    runner.recapture()
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


ANEW = {
    "a dict": ("{'a': 2.0, 'b': [1.0]}", "self.c['a'] * self.c['b'][0]", "m.c['b'][0] = 3.0", "model.c['b'][0]"),
    "an ordered dict": (
        "collections.OrderedDict(a=2.0, b=1.0)",
        "self.c['a'] * sum(self.c.values())",
        "m.c['b'] = 3.0",
        "model.c['b']",
    ),
    "a list": ("[2.0, True, None]", "self.c[0] if self.c[1] else 0.0", "m.c[1] = False", "model.c[1]"),
    "a list of lists": ("[[2.0], [1.0]]", "self.c[0][0] * self.c[1][0]", "m.c[1][0] = 3.0", "model.c[1][0]"),
    "a long list": ("[float(i) for i in range(2000)]", "self.c[1500]", "m.c[1500] = 3.0", "model.c"),
    "a set": ("{1, 2}", "len(self.c)", "m.c.add(3)", "model.c"),
    "a deque": ("collections.deque([2.0])", "self.c[0]", "m.c.append(3.0)", "model.c"),
    "a dataclass": ("Options()", "self.c.scale * self.c.inner.scale", "m.c.inner.scale = 3.0", "model.c.inner.scale"),
    "a dataclass with slots": ("Slotted()", "self.c.scale", "m.c.scale = 3.0", "model.c.scale"),
    "a namespace": ("types.SimpleNamespace(n=2.0)", "self.c.n", "m.c.n = 3.0", "model.c.n"),
    "a command line": ("argparse.Namespace(n=2.0)", "getattr(self.c, 'n', 1.0)", "del m.c.n", "model.c.n"),
    "a numpy array": ("numpy.array([2.0])", "float(self.c[0])", "m.c[0] = 3.0", "model.c"),
    "an array of Python": ("array.array('d', [2.0])", "self.c[0]", "m.c[0] = 3.0", "model.c"),
    "functions in a dict": ("{'f': math.sqrt}", "self.c['f'](4.0)", "m.c['f'] = math.exp", "model.c['f']"),
}


@pytest.mark.case("C62")
@pytest.mark.parametrize(("made", "read", "changed", "name"), ANEW.values(), ids=ANEW)
def test_an_equal_value_assigned_anew_is_no_change_and_is_guarded_from_then_on(case, made, read, changed, name):
    model = f"""
        import argparse, array, collections, dataclasses, math, types
        import numpy

        @dataclasses.dataclass
        class Inner:
            scale: float = 2.0

        @dataclasses.dataclass
        class Options:
            scale: float = 2.0
            inner: Inner = dataclasses.field(default_factory=Inner)

        @dataclasses.dataclass(slots=True)
        class Slotted:
            scale: float = 2.0

        def made():
            return {made}

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.c = made()

            def forward(self, x):
                return x * ({read})
    """
    runner, x = case.open(model, SPEC), torch.rand(4)
    before, space = runner.run(x=x)["y"], type(runner.model).forward.__globals__
    old = runner.model.c
    for _ in range(3):
        runner.model.c = space["made"]()
        assert torch.equal(runner.run(x=x)["y"], before)
    exec(changed.replace("m.c", "old"), {**space, "old": old})  # noqa: S102 - what no code reads any more
    assert torch.equal(runner.run(x=x)["y"], before)
    exec(changed, {**space, "m": runner.model})  # noqa: S102 - what the test is about
    with case.refused(GuardError, name):
        runner.run(x=x)
    runner.recapture()
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


def test_another_value_assigned_anew_is_refused_and_only_what_differs_is_named(case):
    model = """
        def __init__(self):
            super().__init__()
            self.flags, self.options = [True, True], {"scale": 2.0, "mode": "fast"}

        def forward(self, x):
            return x * self.options["scale"] if all(self.flags) and self.options["mode"] == "fast" else x
    """
    runner, x = case.open(model, SPEC), torch.rand(4)
    runner.model.flags = [True, False]
    runner.model.options = {"scale": 2.0, "mode": "slow"}
    with case.refused(GuardError) as caught:
        runner.run(x=x)
    differences = "model.flags[1] was True and is False; model.options['mode'] was 'fast' and is 'slow'"
    assert caught.value.message == f"the graphs were captured with other host values: {differences}"


def test_of_many_differences_an_error_names_the_first_ones_and_their_number(case):
    model = """
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(10))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
    """
    runner = case.open(model, SPEC)
    runner.model.double()
    with case.refused(GuardError, "model.layers.0.weight: its dtype changed", "; and ") as caught:
        runner.run(x=torch.rand(4))
    assert len(caught.value.message) < 1000


def test_an_attribute_that_a_getattribute_gives_from_elsewhere_is_watched_as_it_reads(case):
    model = """
        class Config:
            n = 128

            def __getattribute__(self, key):
                return object.__getattribute__(self, "m" if key == "n" else key)

            m = 4

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.config = Config()

            def forward(self, x):
                return x * self.config.n
    """
    runner = case.open(model, SPEC)
    x = torch.randn(4)
    assert torch.equal(runner.run(x=x)["y"], x * 4)


@pytest.mark.parametrize(
    "change",
    [
        "m.number = Decimal('2.0')",
        "m.options.n = int('1000')",
        "m.words.data['n'] = 2",
        "m.numbers[0] = 2.0",
        "m.options.unread = m.unread = 1",
        "os.environ['GRAPHSPEC_CASE'] = '2'",
        "os.environ['GRAPHSPEC_OTHER'] = '2'",
        "m.clock = type(m.clock)()",
        "m.meter.sum += 1.0",
    ],
)
def test_host_values_that_are_written_and_stay_equal_or_are_not_read_are_not_refused(case, change, monkeypatch):
    monkeypatch.setenv("GRAPHSPEC_CASE", "2")
    monkeypatch.setenv("GRAPHSPEC_OTHER", "1")
    model = """
        import argparse, array, collections, os, threading
        from decimal import Decimal

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.number, self.options = Decimal("2"), argparse.Namespace(n=1000)
                self.words, self.numbers = collections.UserDict(n=2), array.array("d", [2.0])
                self.clock, self.meter = threading.Event(), argparse.Namespace(sum=0.0)

            def forward(self, x):
                factor = float(self.number) * self.options.n * self.words["n"] * self.numbers[0]
                factor = factor + x.sum()
                return x * factor * int(os.environ["GRAPHSPEC_CASE"])
    """
    runner = case.open(model, SPEC)
    x = torch.rand(4)
    for _ in range(3):
        exec(change, dict(type(runner.model).forward.__globals__, m=runner.model))  # noqa: S102
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))


def test_what_else_the_process_makes_of_an_installed_library_is_not_refused(case):
    from transformers import GPT2Config, GPT2Model

    model = """
        from transformers import LlamaConfig, LlamaModel

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
                self.llama = LlamaModel(LlamaConfig(vocab_size=16, **sizes)).eval()
                self.register_buffer("positions", torch.arange(4)[None])
                self.register_buffer("mask", torch.zeros(1, 1, 4, 4))

            def forward(self, x):
                given = dict(attention_mask=self.mask, position_ids=self.positions, use_cache=False)
                return self.llama(inputs_embeds=x.expand(1, 4, 8), **given).last_hidden_state
    """
    runner = case.open(model, SPEC.replace("[4]", "[1, 4, 8]"))
    x = torch.rand(1, 4, 8)
    before = runner.run(x=x)["y"]
    GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1))
    assert torch.equal(runner.run(x=x)["y"], before)
