"""Weights and other tensors of the model: used as they are, and refused by name once they are elsewhere."""

import pytest
import torch
from torch import nn

from graphspec.errors import GuardError, WeightsError

SPEC = """
    buffers:
      x: {shape: [2, 3], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
LINEAR = """
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("shift", torch.ones(3))
        self.scale = torch.full((3,), 2.0)
        self.tables = {"k": torch.arange(3.0)}
        self.stack = [torch.ones(3)]

    def forward(self, x):
        return self.norm(self.linear(x)) * self.scale + self.shift + self.tables["k"] + self.stack[0]
"""


def opened(case):
    runner = case.open(LINEAR, SPEC)
    x = torch.randn(2, 3)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))
    return runner


def assigned(m):
    m.load_state_dict({key: value.clone() for key, value in m.state_dict().items()}, assign=True)


def exchanged(m):
    m.shift, m.scale = nn.Buffer(m.scale), m.shift


MOVES = {
    "load_state_dict(assign=True)": (assigned, "model.linear.weight"),
    "a rebound plain tensor": (lambda m: setattr(m, "scale", torch.ones(3)), "model.scale"),
    "a rebound buffer": (lambda m: setattr(m, "shift", torch.zeros(3)), "model.shift"),
    "a rebound parameter": (
        lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(3, 3))),
        "model.linear.weight",
    ),
    "data of a parameter": (lambda m: setattr(m.linear.weight, "data", torch.ones(3, 3)), "model.linear.weight"),
    "data of a buffer": (lambda m: setattr(m.shift, "data", torch.ones(3)), "model.shift"),
    "data of a plain tensor": (lambda m: setattr(m.scale, "data", torch.ones(3)), "model.scale"),
    "data transposed": (lambda m: setattr(m.linear.weight, "data", m.linear.weight.data.t()), "model.linear.weight"),
    "data sliced": (lambda m: setattr(m.shift, "data", m.shift.data[:1].expand(3)), "model.shift"),
    "an entry of a dict": (lambda m: m.tables.update(k=torch.ones(3)), "model.tables['k']"),
    "a deleted entry of a dict": (lambda m: m.tables.pop("k"), "model.tables['k']"),
    "a replaced dict": (lambda m: setattr(m, "tables", {"k": m.tables["k"].clone()}), "model.tables"),
    "an item of a list": (lambda m: m.stack.__setitem__(0, torch.zeros(3)), "model.stack[0]"),
    "a cleared list": (lambda m: m.stack.clear(), "model.stack[0]"),
    "a replaced submodule": (lambda m: setattr(m, "linear", nn.Linear(3, 3)), "model.linear"),
    "a deleted attribute": (lambda m: delattr(m, "scale"), "model.scale"),
    "a deleted buffer": (lambda m: delattr(m, "shift"), "model.shift"),
    "to another dtype": (lambda m: m.double(), "model.linear.weight"),
    "to another dtype and back": (lambda m: m.double().float(), "model.linear.weight"),
    "half of one tensor": (lambda m: setattr(m, "scale", m.scale.half()), "model.scale"),
    "train mode": (lambda m: m.train(), "train"),
    "train mode of a submodule": (lambda m: m.norm.train(), "model.norm"),
    "two tensors exchanged": (exchanged, "model.s"),
    "set_ to other memory": (lambda m: m.shift.set_(torch.zeros(3)), "model.shift"),
    "resized": (lambda m: m.scale.resize_(2), "model.scale"),
    "a parameter swapped by torch": (
        lambda m: torch.utils.swap_tensors(m.linear.weight, nn.Parameter(torch.ones(3, 3))),
        "model.linear.weight",
    ),
    "a weight through weight_norm": (lambda m: nn.utils.parametrizations.weight_norm(m.linear), "model.linear"),
    "pruned": (
        lambda m: __import__("torch.nn.utils.prune").nn.utils.prune.l1_unstructured(m.linear, "weight", 1),
        "model.linear",
    ),
    "moved to meta": (lambda m: m.to("meta"), "model.linear.weight"),
}


@pytest.mark.case("C40", "C41", "C62")
@pytest.mark.parametrize(("move", "name"), MOVES.values(), ids=MOVES.keys())
def test_a_tensor_that_moved_since_capture_is_refused_by_name_on_every_run(case, move, name):
    runner = opened(case)
    move(runner.model)
    for _ in range(2):
        with case.refused(GuardError, name, "recapture"):
            runner.run(x=torch.randn(2, 3))


RECOVERABLE = ["load_state_dict(assign=True)", "a rebound plain tensor", "data of a parameter", "an entry of a dict",
               "a replaced submodule", "train mode", "two tensors exchanged", "data transposed",
               "to another dtype and back", "a weight through weight_norm", "pruned"]  # fmt: skip


@pytest.mark.case("C40")
@pytest.mark.parametrize("kind", RECOVERABLE)
def test_after_a_move_recapture_takes_what_the_model_has_now(case, kind):
    runner = opened(case)
    MOVES[kind][0](runner.model)
    if kind == "train mode":
        runner.model.norm.eval()  # running statistics would move with each eager call below
        runner.model.linear.train()
    runner.recapture()
    for _ in range(3):
        x = torch.randn(2, 3)
        torch.testing.assert_close(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C40")
def test_the_same_tensor_put_back_passes_again(case):
    runner = opened(case)
    scale = runner.model.scale
    runner.model.scale = torch.ones(3)
    with pytest.raises(GuardError):
        runner.run(x=torch.randn(2, 3))
    runner.model.scale = scale
    x = torch.randn(2, 3)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


WRITES = {
    "load_state_dict": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "copy_": lambda m: m.linear.weight.copy_(torch.randn(3, 3)),
    "data.copy_": lambda m: m.linear.weight.data.copy_(torch.randn(3, 3)),
    "fill of a plain tensor": lambda m: m.scale.fill_(7),
    "through numpy": lambda m: m.scale.numpy().fill(3),
    "through a view": lambda m: m.tables["k"][1:].zero_(),
    "an optimizer step": lambda m: optimizer_step(m),  # noqa: PLW0108 - defined below
    "init": lambda m: nn.init.ones_(m.linear.weight),
    "an assignment to a slice": lambda m: m.stack[0].__setitem__(slice(0, 2), 9.0),
}


def optimizer_step(m):
    with torch.enable_grad():
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        m(torch.randn(2, 3)).sum().backward()
        optimizer.step()


@pytest.mark.case("C40")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_new_values_written_in_place_are_simply_used(case, write):
    runner = opened(case)
    for _ in range(2):
        write(runner.model)
        x = torch.randn(2, 3)
        torch.testing.assert_close(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C40")
@pytest.mark.parametrize(
    "what", ["requires_grad_", "a new attribute", "eval again", "a gradient", "zero_grad", "a new key"]
)
def test_what_does_not_concern_the_graph_passes(case, what):
    runner = opened(case)
    m = runner.model
    {
        "requires_grad_": lambda: m.requires_grad_(requires_grad=False),
        "a new attribute": lambda: setattr(m, "note", torch.ones(1)),
        "eval again": m.eval,
        "a gradient": lambda: setattr(m.linear.weight, "grad", torch.ones(3, 3)),
        "zero_grad": m.zero_grad,
        "a new key": lambda: m.tables.update(other=torch.ones(1)),
    }[what]()
    x = torch.randn(2, 3)
    assert torch.equal(runner.run(x=x)["y"], m(x))


@pytest.mark.case("C42")
@pytest.mark.parametrize(
    ("bad", "why"),
    [({"linear.bias": torch.zeros(4)}, "linear.bias"), ({"linear.bias": torch.zeros(1)}, "linear.bias"),
     ({"other": torch.zeros(3)}, "other"), ({"linear.bias": None}, "linear.bias"),
     ({"linear.bias": torch.zeros(3, dtype=torch.complex64)}, "linear.bias"),
     ({"linear.bias": torch.zeros(3, device="meta")}, "linear.bias"),
     ({"linear.bias": torch.zeros(3).to_sparse()}, "linear.bias"),
     ({"linear.bias": [0.0, 0.0, 0.0]}, "linear.bias"),
     ({"linear.bias": torch.tensor([1e300, 0, 0], dtype=torch.float64)}, "linear.bias")],
)  # fmt: skip
def test_weights_with_one_bad_tensor_are_refused_whole_and_the_old_ones_still_answer(case, bad, why):
    runner = opened(case)
    before = {key: value.clone() for key, value in runner.model.state_dict().items()}
    x = torch.randn(2, 3)
    y = runner.run(x=x)["y"]
    with pytest.raises(WeightsError, match=why):
        runner.load_weights({**{key: value + 1 for key, value in before.items()}, **bad})
    assert all(torch.equal(value, before[key]) for key, value in runner.model.state_dict().items())
    assert torch.equal(runner.run(x=x)["y"], y)


@pytest.mark.case("C42")
def test_weights_with_a_missing_tensor_are_refused_whole(case):
    runner = opened(case)
    before = {key: value.clone() for key, value in runner.model.state_dict().items()}
    with pytest.raises(WeightsError, match=r"linear\.bias"):
        runner.load_weights({key: value + 1 for key, value in before.items() if key != "linear.bias"})
    assert all(torch.equal(value, before[key]) for key, value in runner.model.state_dict().items())


@pytest.mark.case("C42")
def test_weights_that_fit_are_used_by_the_next_run(case):
    runner = opened(case)
    runner.load_weights({key: torch.ones_like(value) for key, value in runner.model.state_dict().items()})
    x = torch.randn(2, 3)
    torch.testing.assert_close(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C42")
def test_weights_that_are_views_of_the_models_own_are_loaded_by_their_values_before(case):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor([1.0, 2.0]))
            self.b = nn.Parameter(torch.tensor([3.0, 4.0]))

        def forward(self, x):
            return x.sum() * self.a + self.b
        """,
        SPEC,
    )
    m = runner.model
    runner.load_weights({"a": m.b.data, "b": m.a.data})  # exchanged
    assert m.a.tolist() == [3, 4]
    assert m.b.tolist() == [1, 2]


TIED = """
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x))
"""
TOKENS = """
    buffers:
      x: {shape: [2], dtype: int64, sample: {randint: [0, 5]}}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""


@pytest.mark.case("C43")
def test_tied_weights_loaded_with_assign_are_refused_under_both_names(case):
    runner = case.open(TIED, TOKENS)
    m = runner.model
    m.load_state_dict({key: value.clone() for key, value in m.state_dict().items()}, assign=True)
    with case.refused(GuardError, "model.embedding.weight", "model.head.weight"):
        runner.run(x=torch.tensor([0, 1]))


@pytest.mark.case("C43")
@pytest.mark.parametrize("owner", ["embedding", "head"])
def test_one_of_two_tied_names_rebound_is_refused_by_that_name(case, owner):
    runner = case.open(TIED, TOKENS)
    getattr(runner.model, owner).weight = nn.Parameter(torch.ones(5, 3))
    with case.refused(GuardError, f"model.{owner}.weight"):
        runner.run(x=torch.tensor([0, 1]))


@pytest.mark.case("C43")
def test_tied_weights_written_in_place_are_used_in_both_places(case):
    runner = case.open(TIED, TOKENS)
    for _ in range(3):
        runner.model.head.weight.copy_(torch.randn(5, 3))
        x = torch.randint(0, 5, (2,))
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C43")
def test_tied_weights_loaded_under_one_name_or_both_stay_tied(case):
    runner = case.open(TIED, TOKENS)
    m, new = runner.model, torch.randn(5, 3)
    for weights in ({"embedding.weight": new}, {"head.weight": new * 2}, {"embedding.weight": new, "head.weight": new}):
        runner.load_weights(weights)
        assert m.embedding.weight is m.head.weight
        x = torch.randint(0, 5, (2,))
        assert torch.equal(runner.run(x=x)["y"], m(x))


@pytest.mark.case("C43")
def test_tied_weights_given_two_different_values_are_refused(case):
    runner = case.open(TIED, TOKENS)
    before = runner.model.head.weight.clone()
    with pytest.raises(WeightsError, match=r"head\.weight"):
        runner.load_weights({"embedding.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)})
    assert torch.equal(runner.model.head.weight, before)


OUTSIDE = {
    "an attribute of a plain object": (
        """
        class Store:
            pass

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.store = Store()
                self.store.t = torch.ones(3)

            def forward(self, x):
                return x * self.store.t
        """,
        lambda m: setattr(m.store, "t", torch.zeros(3)),
        "model.store.t",
    ),
    "a deleted attribute": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.t = torch.ones(3)

            def forward(self, x):
                return x * self.t
        """,
        lambda m: delattr(m, "t"),
        "model.t",
    ),
    "a global": (
        """
        TABLE = torch.ones(3)

        class Model(nn.Module):
            def forward(self, x):
                return x * TABLE
        """,
        lambda m: m.forward.__func__.__globals__.update(TABLE=torch.zeros(3)),
        "TABLE",
    ),
    "a closure": (
        """
        def make():
            table = torch.ones(3)

            def forward(x):
                return x * table

            def replace():
                nonlocal table
                table = torch.zeros(3)

            forward.replace = replace
            return forward

        def Model():
            return make()
        """,
        lambda m: m.replace(),
        "table",
    ),
    "a class attribute": (
        """
        class Model(nn.Module):
            table = torch.ones(3)

            def forward(self, x):
                return x * self.table
        """,
        lambda m: setattr(type(m), "table", torch.zeros(3)),
        "table",
    ),
    "a class attribute that an instance shadows": (
        """
        class Model(nn.Module):
            table = torch.ones(3)

            def forward(self, x):
                return x * self.table
        """,
        lambda m: setattr(m, "table", torch.zeros(3)),
        "table",
    ),
    "a default argument": (
        """
        def forward(x, table=torch.ones(3)):
            return x * table

        def Model():
            return forward
        """,
        lambda m: setattr(m, "__defaults__", (torch.zeros(3),)),
        "__defaults__",
    ),
    "a lazily made cache": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cache = {}

            def forward(self, x):
                if 3 not in self.cache:
                    self.cache[3] = torch.arange(3.0)
                return x * self.cache[3]
        """,
        lambda m: m.cache.clear(),
        "model.cache[3]",
    ),
    "a cache that evicts": (
        """
        import functools

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.ones(3)
                self.get = lambda: self.table

            def forward(self, x):
                return x * self.get()
        """,
        lambda m: setattr(m, "table", torch.zeros(3)),
        "model.table",
    ),
    "a tensor of a submodule in a list": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = [nn.Linear(3, 3), nn.Linear(3, 3)]

            def forward(self, x):
                for part in self.parts:
                    x = part(x)
                return x
        """,
        lambda m: m.parts.__setitem__(1, nn.Linear(3, 3)),
        "model.parts[1]",
    ),
    "a view of a buffer": (
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.ones(6))
                self.part = self.table[:3]

            def forward(self, x):
                return x * self.part
        """,
        lambda m: setattr(m, "part", torch.zeros(3)),
        "model.part",
    ),
    "a slot of a dataclass": (
        """
        import dataclasses

        @dataclasses.dataclass
        class Tables:
            k: torch.Tensor

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tables = Tables(torch.ones(3))

            def forward(self, x):
                return x * self.tables.k
        """,
        lambda m: setattr(m.tables, "k", torch.zeros(3)),
        "model.tables.k",
    ),
}


@pytest.mark.case("C62")
@pytest.mark.parametrize(("model", "change", "name"), OUTSIDE.values(), ids=OUTSIDE.keys())
def test_an_undeclared_tensor_that_is_rebound_or_deleted_is_refused_by_name(case, model, change, name):
    runner = case.open(model, SPEC)
    for _ in range(2):
        x = torch.randn(2, 3)
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))
    change(runner.model)
    with case.refused(GuardError, name):
        runner.run(x=torch.randn(2, 3))


@pytest.mark.case("C62")
def test_a_tensor_that_nothing_leads_to_is_kept_alive_and_warned_of(case):
    model = """
        import numpy

        HELD = numpy.empty(1, dtype=object)
        HELD[0] = torch.full((3,), 2.0)

        class Model(nn.Module):
            def forward(self, x):
                return x * HELD[0]
    """
    runner = case.open(model, SPEC)
    assert any("leads to" in warning for warning in runner.warnings)
    runner.model.forward.__func__.__globals__["HELD"][0] = torch.zeros(3)
    with case.refused(GuardError, "model.py:HELD"):
        runner.run(x=torch.randn(2, 3))


@pytest.mark.case("C62")
def test_a_tensor_that_only_a_weak_reference_leads_to_is_kept_alive_for_eager_too(case):
    model = """
        import weakref

        HELD = [torch.full((3,), 2.0)]
        SEEN = weakref.ref(HELD[0])

        class Model(nn.Module):
            def forward(self, x):
                return x * SEEN()
    """
    runner = case.open(model, SPEC)
    runner.model.forward.__func__.__globals__["HELD"].clear()
    x = torch.randn(2, 3)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C62")
def test_a_state_the_model_owns_that_is_replaced_is_refused_by_name(case):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.cache = torch.zeros(2, 3)

        def forward(self, x):
            self.cache.add_(x)
            return self.cache * 1
        """,
        SPEC.replace("buffers:", "buffers:\n      cache: {role: state, attr: model.cache}"),
    )
    assert runner.run(x=torch.ones(2, 3))["y"].sum() == 6
    runner.model.cache = torch.zeros(2, 3)
    with case.refused(GuardError, "model.cache"):
        runner.run(x=torch.ones(2, 3))


@pytest.mark.case("C41")
def test_data_swapped_and_swapped_back_never_gives_the_swapped_values(case):
    runner = opened(case)
    old = runner.model.linear.weight.data
    runner.model.linear.weight.data = torch.full((3, 3), 9.0)
    with case.refused(GuardError, "model.linear.weight"):
        runner.run(x=torch.randn(2, 3))
    runner.model.linear.weight.data = old
    x = torch.randn(2, 3)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C40")
def test_a_guard_also_watches_what_only_one_bucket_or_region_reads(case):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.ones(3), torch.ones(3)

        def first(self, x):
            return x * self.a

        def second(self, x):
            return x * self.b
        """,
        """
        dims: {batch: [1, 4]}
        buffers:
          x: {shape: [batch, 3], dtype: float32}
          y: {role: output, shape: [batch, 3], dtype: float32}
        regions:
          first: {call: model.first, inputs: [x], outputs: h}
          second: {call: model.second, inputs: [h], outputs: y}
        replay: [first, second]
        """,
    )
    runner.model.b = torch.zeros(3)
    with case.refused(GuardError, "model.b"):
        runner.run(x=torch.ones(1, 3))


@pytest.mark.case("C42")
@pytest.mark.parametrize("wrong", [3, None, [1]])
def test_weights_of_another_kind_are_refused_with_what_is_taken(case, wrong):
    runner = opened(case)
    with case.refused(WeightsError, "a file or a mapping", type(wrong).__name__):
        runner.load_weights(wrong)
