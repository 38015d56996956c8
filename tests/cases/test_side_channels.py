"""What regions hand to each other, or to their own next call, by way of the model instead of named values."""

import pytest
import torch

from graphspec.errors import GraphSpecError, HazardError

ONE = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
TWO = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      a: {call: model.a, inputs: [x], outputs: hA}
      b: {call: model.b, inputs: [h], outputs: yB}
    replay: [a, b]
"""


def two(a="", b=""):
    return TWO.replace("hA", "h" + (", eager: true" if a else "")).replace("yB", "y" + (", eager: true" if b else ""))


def model_of(made, body):
    """One region: what `__init__` makes, and what `forward` does."""
    return f"""
        def __init__(self):
            super().__init__()
            {made}

        def forward(self, x):
            {body}
    """


def models_of(made, first, second):
    """Two regions: what `__init__` makes, and what `a` and `b` do."""
    return f"""
        def __init__(self):
            super().__init__()
            {made}

        def a(self, x):
            {first}

        def b(self, h):
            {second}
    """


FROZEN = {
    "an int": ("self.n = 0", "x * self.n", "self.n += 1"),
    "an entry of a dict": ("self.d = {'n': 0}", "x * self.d['n']", "self.d['n'] += 1"),
    "a numpy array": ("import numpy; self.t = numpy.zeros(2)", "x * float(self.t[0])", "self.t[0] += 1"),
    "the size of a set": ("self.s = set()", "x * len(self.s)", "self.s.add(len(self.s))"),
    "which function": ("self.f = torch.relu", "self.f(x)", "self.f = torch.neg"),
    "which module": ("self.m = nn.ReLU()", "self.m(x)", "self.m = nn.Tanh()"),
    "a name of a function": ("self.act = 'relu'", "getattr(torch, self.act)(x)", "self.act = 'neg'"),
    "a branch": ("self.n = 0", "x + 1 if self.n % 2 else x * 3", "self.n += 1"),
    "a flag": ("self.on = False", "nn.functional.dropout(x, 0.5, self.on)", "self.on = not self.on"),
}


@pytest.mark.case("C10")
@pytest.mark.parametrize(("made", "read", "changed"), FROZEN.values(), ids=FROZEN)
def test_a_host_value_that_a_later_eager_region_changes_is_refused_where_a_captured_one_reads_it(
    case, made, read, changed
):
    model = models_of(made, f"return {read}", f"{changed}; return h + 0")
    with pytest.raises(HazardError, match="region 'a'"):
        case.open(model, two(b="eager"))


def test_a_counter_of_an_eager_region_is_its_own_where_captured_code_only_shares_its_name(case):
    model = """
        class Counter:
            def __init__(self):
                self.n = 0

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.n = 3
                self.counter = Counter()

            def a(self, x):
                return x * self.n

            def b(self, h):
                self.counter.n += 1
                return h + self.counter.n
    """
    runner = case.open(model, two(b="eager"))
    x = torch.randn(2)
    for count in (1, 2, 3):
        assert torch.equal(runner.run(x=x)["y"], x * 3 + count)


REBOUND = {
    "a new tensor": "self.p = h + 1",
    "another attribute": "self.p = self.q",
    "two exchanged": "self.p, self.q = self.q, self.p",
    "a buffer": "self.r = h * 1",
}


@pytest.mark.case("C10")
@pytest.mark.parametrize("first", ["captured", ""], ids=["captured reader", "eager reader"])
@pytest.mark.parametrize("rebound", REBOUND.values(), ids=REBOUND)
def test_a_tensor_that_another_region_reads_may_not_be_put_elsewhere_by_a_captured_one(case, rebound, first):
    made = "self.p, self.q = torch.zeros(2), torch.ones(2); self.register_buffer('r', torch.ones(2))"
    model = models_of(made, "return x * self.p + self.r + self.q", f"{rebound}; return h + 0")
    with case.refused(HazardError, "region 'b'", "model."):
        case.open(model, two(a="" if first else "eager"))


@pytest.mark.case("C21")
@pytest.mark.parametrize(
    ("made", "put", "read"),
    [
        ("self.h = torch.zeros(2)", "self.h = x * 3", "self.h"),
        ("self.h = None", "self.h = x * 3", "self.h"),
        ("self.register_buffer('h', torch.zeros(2))", "self.h = x * 3", "self.h"),
        ("self.h = {}", "self.h['a'] = x * 3", "self.h['a']"),
    ],
    ids=["attribute", "None at first", "buffer", "entry"],
)
def test_a_tensor_that_a_captured_region_leaves_for_an_eager_one_is_refused_with_the_way_to_hand_it_on(
    case, made, put, read
):
    model = models_of(made, f"{put}; return x + 1", f"return h + {read}")
    with case.refused(HazardError, "region 'a'", "model.h", "return it as an output of 'a'"):
        case.open(model, two(b="eager"))


FIRST_CALLS = {
    "a tensor that later calls write": (
        "self.m = None",
        """
            if self.m is None:
                self.m = torch.zeros(2)
            else:
                self.m.add_(1)
            return x + self.m
        """,
    ),
    "an entry that later calls write": (
        "self.c = {}",
        """
            if 'k' not in self.c:
                self.c['k'] = torch.zeros(2)
                return x + 1
            self.c['k'].add_(1)
            return x + self.c['k']
        """,
    ),
    "another number": (
        "self.c = {}",
        """
            if 'k' not in self.c:
                self.c['k'] = 1
                return x * 1
            return x * 2
        """,
    ),
    "another number, by an attribute": (
        "pass",
        """
            if not hasattr(self, 'seen'):
                self.seen = torch.ones(1)
                return x * 1
            return x * 2
        """,
    ),
    "a write to what was there": (
        "self.register_buffer('b', torch.ones(2))",
        """
            if not hasattr(self, 'seen'):
                self.seen = torch.ones(1)
                self.b.fill_(5)
            return x * self.b
        """,
    ),
}


@pytest.mark.case("C56")
@pytest.mark.parametrize(("made", "body"), FIRST_CALLS.values(), ids=FIRST_CALLS)
def test_code_whose_very_first_call_takes_another_path_is_refused(case, made, body):
    with pytest.raises(HazardError, match=r"region 'main'.*first"):
        case.open(model_of(made, body), ONE)


LAZY = {
    "a table": (
        "if self.t is None: self.t = torch.arange(2.0).cos()",
        "return x * self.t",
        lambda runs: runs[-1] * torch.arange(2.0).cos(),
    ),
    "a cache": ("if self.t is None: self.t = torch.zeros(2)", "self.t.add_(x); return self.t * 1", sum),
    "an entry": (
        "if 'mask' not in self.c: self.c['mask'] = torch.ones(2)",
        "return x + self.c['mask']",
        lambda runs: runs[-1] + 1,
    ),
}


@pytest.mark.parametrize(("made", "returned", "eager"), LAZY.values(), ids=LAZY)
def test_what_a_first_call_only_makes_may_be_made_lazily(case, made, returned, eager):
    body = f"""
            {made}
            {returned}
    """
    runner, runs = case.open(model_of("self.t, self.c = None, {}", body), ONE), []
    for _ in range(3):
        runs.append(torch.randn(2))
        assert torch.allclose(runner.run(x=runs[-1])["y"], eager(runs))


KEPT = {
    "the input": "self.cur = x; return self.cur * 2",
    "a view of it": "self.cur = x[:1]; return x * 2",
    "in a dict": "self.c['x'] = x; return self.c['x'] * 2",
    "in a context of the module": "CTX['x'] = x; return CTX['x'] * 2",
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_an_input_may_be_kept_for_code_of_the_same_call(case, body):
    model = f"""
        CTX = {{}}

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cur, self.c = None, {{}}

            def forward(self, x):
                {body}
    """
    runner = case.open(model, ONE)
    for _ in range(3):
        x = torch.randn(2)
        assert torch.equal(runner.run(x=x)["y"], x * 2)


@pytest.mark.parametrize(
    ("made", "body"),
    [
        ("self.prev = torch.zeros(2)", "y = x + self.prev; self.prev = x; return y"),
        ("self.prev = torch.zeros(2)", "y = x + self.prev.data; self.prev = x; return y"),
        ("self.prev = None", "y = x * 1 if self.prev is None else x + self.prev; self.prev = x; return y"),
        ("self.l = [None]", "y = x * 1 if self.l[0] is None else x + self.l[0]; self.l[0] = x; return y"),
    ],
    ids=["read before", "its data", "none at first", "in a list"],
)
def test_the_input_of_the_call_before_is_refused(case, made, body):
    with pytest.raises(GraphSpecError, match="region 'main'"):
        case.open(model_of(made, body), ONE)


COLLECTED = {
    "appended to a fresh list": "self.aux = []; self.aux.append(x.mean()); return x + self.aux[0]",
    "a fresh tuple": "self.aux = (x.mean(),); return x + self.aux[0]",
    "a fresh dict": "self.aux = {}; self.aux['a'] = x.mean(); return x + self.aux['a']",
    "the same numbers": "self.aux = [1.0, {'k': 2}]; return x + x.mean()",
}


@pytest.mark.parametrize("body", COLLECTED.values(), ids=COLLECTED)
def test_what_every_call_collects_anew_is_warned_of_and_no_more(case, body):
    runner = case.open(model_of("self.aux = []", body), ONE)
    for _ in range(3):
        x = torch.randn(2)
        assert torch.allclose(runner.run(x=x)["y"], x + x.mean())


@pytest.mark.parametrize(
    "body",
    [
        "y = x + self.aux[0]; self.aux = [y * 1]; return y",
        "self.aux = [self.aux[0] * 2]; return x + self.aux[0]",
        "self.aux.append(x.mean()); return x + self.aux[0]",
        "self.aux = [*self.aux, 1.0]; return x * len(self.aux)",
    ],
    ids=["read before", "computed from the last", "growing", "growing numbers"],
)
def test_what_every_call_collects_from_the_last_one_is_refused(case, body):
    with pytest.raises(GraphSpecError, match="region 'main'"):
        case.open(model_of("self.aux = [torch.zeros(2)]", body), ONE)


MADE_ONCE = {
    "a module over None": ("self.act = None", "if self.act is None: self.act = nn.ReLU()", "self.act(x) + x"),
    "a layer over None": (
        "self.act = None",
        "if self.act is None: self.act = nn.Linear(2, 2).requires_grad_(False)",
        "self.act(x) + x",
    ),
    "a cached number": ("self.c = Cached()", "pass", "x * self.c.n"),
    "a cached tensor": ("self.c = Cached()", "pass", "x * self.c.t"),
    "a class attribute put back": ("self.c = Cached()", "self.c.v = 2.0; y = x * self.c.v; self.c.v = 1.0", "y + 1"),
}


@pytest.mark.parametrize(("made", "first", "returned"), MADE_ONCE.values(), ids=MADE_ONCE)
def test_what_is_made_once_and_kept_is_captured(case, made, first, returned):
    model = f"""
        import functools

        class Cached:
            v = 1.0

            @functools.cached_property
            def n(self):
                return 3.0

            @functools.cached_property
            def t(self):
                return torch.arange(2.0)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                {made}

            def forward(self, x):
                {first}
                return {returned}
    """
    runner = case.open(model, ONE)
    for _ in range(3):
        x = torch.randn(2)
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.parametrize(
    "made",
    [
        "self.l = nn.utils.spectral_norm(nn.Linear(2, 2))",
        "self.l = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))",
        "self.l = nn.utils.weight_norm(nn.Linear(2, 2))",
    ],
    ids=["spectral norm, the old one", "spectral norm", "weight norm"],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_weight_computed_anew_in_every_call_is_captured(case, made):
    runner = case.open(model_of(made, "return self.l(x[None])[0]"), ONE.replace("main: {", "main: {hooks: allow, "))
    for _ in range(3):
        x = torch.randn(2)
        assert torch.allclose(runner.run(x=x)["y"], runner.model(x))
