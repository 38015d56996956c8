"""What the standard library and numpy hold for a model is guarded like what the model holds itself."""

import pytest
import torch

from graphspec.errors import GuardError, HazardError

SPEC = """
    buffers:
      x: {shape: [2], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
PRELUDE = """
    import array, collections, ctypes, functools, gc, itertools, multiprocessing, random, threading, types, weakref
    import numpy
    from contextvars import ContextVar

    CTX = ContextVar("c", default=2.0)
    OBJ = ContextVar("o")
    LOCAL = threading.local()
    STATE = {"k": 2.0}

    class Obj:
        k = 2.0
        def __init__(self):
            self.k = 2.0

    class Mine(threading.local):
        def __init__(self):
            self.k = 2.0

    class Point(ctypes.Structure):
        _fields_ = [("k", ctypes.c_double)]

    class Meta(type):
        K = 2.0

    class Base(nn.Module, metaclass=Meta):
        pass

    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            self.k, self.n, self.layer = 2.0, [1, 2], nn.Linear(2, 2)
            self.register_buffer("b", torch.ones(2))

        def forward(self, x):
            return self.layer(x * self.k + self.b) * self.n[0]

    def quantized():
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)), {nn.Linear})

    def other():
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)), {nn.Linear})

    def counted():
        n = 0.0
        while True:
            n += yield n

    @functools.cache
    def cached():
        return STATE["k"]

    @functools.lru_cache(maxsize=None)
    def cached_deeply():
        return deeply()

    def deeply():
        return STATE["k"]

    class Model(Base):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))
            LOCAL.k = 2.0
            MADE

        @functools.lru_cache
        def table(self):
            return self.k

        def forward(self, x):
            return READ
"""
#: What __init__ makes, what forward returns, what changes (with the model as `m` and the globals of its file).
HELD = {
    "a context variable": ("pass", "x * CTX.get()", "CTX.set(5.0)"),
    "an object in a context variable": ("OBJ.set(Obj())", "x * OBJ.get().k", "OBJ.get().k = 5.0"),
    "another object in a context variable": ("OBJ.set(Obj())", "x * OBJ.get().k", "OBJ.set(Obj()); OBJ.get().k = 5.0"),
    "a context variable of the model": ("self.c = ContextVar('d', default=2.0)", "x * self.c.get()", "m.c.set(5.0)"),
    "thread-local data": ("pass", "x * LOCAL.k", "LOCAL.k = 5.0"),
    "a subclass of thread-local data": ("self.l = Mine()", "x * self.l.k", "m.l.k = 5.0"),
    "a weak reference": ("self.o = Obj(); self.r = weakref.ref(self.o)", "x * self.r().k", "m.r().k = 5.0"),
    "another weak reference": (
        "self.o, self.p = Obj(), Obj(); self.p.k = 5.0; self.r = weakref.ref(self.o)", "x * self.r().k",
        "m.r = weakref.ref(m.p)",
    ),
    "a weak reference to a parent": ("self.up = weakref.ref(self); self.k = 2.0", "x * self.up().k", "m.k = 5.0"),
    "a dict of weak values": (
        "self.o = Obj(); self.d = weakref.WeakValueDictionary(a=self.o)", "x * self.d['a'].k", "m.o.k = 5.0",
    ),
    "another weak value": (
        "self.o, self.p = Obj(), Obj(); self.p.k = 5.0; self.d = weakref.WeakValueDictionary(a=self.o)",
        "x * self.d['a'].k", "m.d['a'] = m.p",
    ),
    "a weak set": ("self.o = Obj(); self.d = weakref.WeakSet([self.o])", "x * (2 * len(self.d))", "m.d.clear()"),
    "another member of a weak set": (
        "self.o, self.p = Obj(), Obj(); self.p.k = 5.0; self.d = weakref.WeakSet([self.o])",
        "x * list(self.d)[0].k", "m.d.discard(m.o); m.d.add(m.p)",
    ),
    "a proxy of a dict": (
        "self.d = {'k': 2.0}; self.p = types.MappingProxyType(self.d)", "x * self.p['k']", "m.d['k'] = 5.0",
    ),
    "a view of memory": ("self.v = memoryview(array.array('d', [2.0]))", "x * self.v[0]", "m.v[0] = 5.0"),
    "a number of C": ("self.c = ctypes.c_double(2.0)", "x * self.c.value", "m.c.value = 5.0"),
    "an array of C": ("self.c = (ctypes.c_double * 2)(2.0, 1.0)", "x * self.c[0]", "m.c[0] = 5.0"),
    "a structure of C": ("self.c = Point(2.0)", "x * self.c.k", "m.c.k = 5.0"),
    "a shared number": ("self.c = multiprocessing.Value('d', 2.0)", "x * self.c.value", "m.c.value = 5.0"),
    "a shared array": ("self.c = multiprocessing.Array('d', [2.0])", "x * self.c[0]", "m.c[0] = 5.0"),
    "an array of objects": ("self.a = numpy.array([2.0, None], dtype=object)", "x * self.a[0]", "m.a[0] = 5.0"),
    "a cached function": ("pass", "x * cached()", "STATE['k'] = 5.0; cached.cache_clear()"),
    "what a cached function calls": ("pass", "x * cached_deeply()", "STATE['k'] = 5.0; cached_deeply.cache_clear()"),
    "a cached method": ("self.k = 2.0", "x * self.table()", "m.k = 5.0; Model.table.cache_clear()"),
    "an attribute of a metaclass": ("pass", "x * type(self).K", "Meta.K = 5.0"),
    "a number of a scripted part": ("self.s = torch.jit.script(Scripted())", "self.s(x)", "m.s.k = 5.0"),
    "a list of a scripted part": ("self.s = torch.jit.script(Scripted())", "self.s(x)", "m.s.n = [5]"),
    "a buffer of a scripted part": ("self.s = torch.jit.script(Scripted())", "self.s(x)", "m.s.b = torch.zeros(2)"),
    "a weight inside a scripted part": (
        "self.s = torch.jit.script(Scripted())", "self.s(x)", "m.s.layer.weight = nn.Parameter(torch.zeros(2, 2))",
    ),
    "the memory of a scripted part": (
        "self.s = torch.jit.script(Scripted())", "self.s(x)", "m.s.half(); m.s.float(); m.s.b.zero_()",
    ),
    "a packed weight": (
        "self.q = quantized()", "self.q(x[None])", "m.q[0].set_weight_bias(*other()[0]._weight_bias())",
    ),
    "loaded packed weights": ("self.q = quantized()", "self.q(x[None])", "m.q.load_state_dict(other().state_dict())"),
    "a number of its own stream": (
        "self.s = random.Random(0)", "x * (2.0 if random.Random.getstate(self.s)[1][0] else 1.0)", "m.s.random()",
    ),
}  # fmt: skip


@pytest.mark.case("C62")
@pytest.mark.parametrize(("made", "read", "changed"), HELD.values(), ids=HELD)
def test_what_is_held_by_the_standard_library_is_guarded(case, made, read, changed):
    runner, x = case.open(PRELUDE.replace("MADE", made).replace("READ", read), SPEC), torch.ones(2)
    for _ in range(2):
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))
    exec(changed, {**type(runner.model).forward.__globals__, "m": runner.model})  # noqa: S102 - what the test is about
    with pytest.raises(GuardError):
        runner.run(x=x)
    runner.recapture()
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


#: What every call changes where no attribute shows it.
MOVED = {
    "a generator": ("self.g = (float(i) for i in range(99))", "x * next(self.g)"),
    "a generator's locals": ("self.g = counted(); next(self.g)", "x * self.g.send(2.0)"),
    "a counter": ("self.g = itertools.count(1)", "x * next(self.g)"),
    "an iterator": ("self.g = iter([float(i) for i in range(99)])", "x * next(self.g)"),
    "a context variable": ("pass", "x * (CTX.set(CTX.get() + 1) and CTX.get())"),
    "thread-local data": ("pass", "x * (setattr(LOCAL, 'k', LOCAL.k + 1) or LOCAL.k)"),
    "a number of C": (
        "self.c = ctypes.c_double(2.0)",
        "x * (setattr(self.c, 'value', self.c.value + 1) or self.c.value)",
    ),
    "a stream of its own": ("self.s = random.Random(0)", "x * self.s.random()"),
    "a stream of numpy": ("self.s = numpy.random.default_rng(0)", "x * self.s.random()"),
}


@pytest.mark.case("C10")
@pytest.mark.parametrize(("made", "read"), MOVED.values(), ids=MOVED)
def test_what_every_call_moves_where_no_attribute_shows_it_is_refused(case, made, read):
    model = PRELUDE.replace("MADE", made).replace("READ", read)
    model = model.replace(
        "    class Base(",
        "    def counted():\n        n = 0.0\n        while True:\n            n += yield n\n\n    class Base(",
        1,
    )
    with case.refused(HazardError, "region 'main'"):
        case.open(model, SPEC)


@pytest.mark.case("C62")
def test_what_stays_equal_is_no_change_wherever_it_is_held(case):
    made = "self.c, self.l = ctypes.c_double(2.0), Mine(); self.d = {'k': 2.0}; self.p = types.MappingProxyType(self.d)"
    read = "x * CTX.get() * self.c.value * self.l.k * self.p['k']"
    runner, x = case.open(PRELUDE.replace("MADE", made).replace("READ", read), SPEC), torch.ones(2)
    before = runner.run(x=x)["y"]
    again = "CTX.set(float('2')); m.c.value = 2.0; m.l.k = float('2'); m.d.update(k=2.0)"
    for _ in range(3):
        exec(again, {**type(runner.model).forward.__globals__, "m": runner.model})  # noqa: S102
        assert torch.equal(runner.run(x=x)["y"], before)
