"""Every kind of argument, input, region and sequence, each equal to what the user's own loop gives."""

import pytest
import torch

from graphspec.errors import GuardError, InputError


@pytest.mark.case("C34")
def test_constants_attributes_lists_dicts_and_made_arguments_reach_the_call(case):
    model = """
        import dataclasses

        @dataclasses.dataclass
        class Batch:
            x: torch.Tensor
            scale: float

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.arange(3.0)

            def forward(self, pair, *, options, table, batch, flag):
                return (pair[0] - pair[1]) * options["k"] + table + batch.x * batch.scale + (1 if flag else 0)
    """
    runner = case.open(
        model,
        """
        buffers:
          x: {shape: [3], dtype: float32}
          z: {shape: [3], dtype: float32}
        regions:
          main:
            call: model
            inputs:
              pair: {list: [x, z]}
              options: {dict: {k: {const: 4}}}
              table: {attr: model.table}
              batch: {make: "model.py:Batch", with: {x: z, scale: {const: 0.5}}}
              flag: {const: true}
            outputs: y
        replay: [main]
        """,
    )
    for _ in range(3):
        x, z = torch.randn(3), torch.randn(3)
        want = (x - z) * 4 + torch.arange(3.0) + z * 0.5 + 1
        torch.testing.assert_close(runner.run(x=x, z=z)["y"], want)
    runner.model.table = torch.zeros(3)
    with case.refused(GuardError, "model.table"):
        runner.run(x=x, z=z)


@pytest.mark.case("C34")
def test_a_context_entered_around_a_region_reaches_its_code(case):
    model = """
        import contextlib

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.current = None

            @contextlib.contextmanager
            def scope(self, x, lens):
                self.current = lens
                try:
                    yield
                finally:
                    self.current = None

            def forward(self, x, lens):
                return x * self.current
    """
    runner = case.open(
        model,
        """
        buffers:
          x: {shape: [3], dtype: float32}
          lens: {shape: [3], dtype: float32}
        regions:
          main: {call: model, around: model.scope, inputs: [x, lens], outputs: y}
        replay: [main]
        """,
    )
    for _ in range(3):
        x, lens = torch.randn(3), torch.randn(3)
        assert torch.equal(runner.run(x=x, lens=lens)["y"], x * lens)
    assert runner.model.current is None


@pytest.mark.case("C34", "C71")
def test_optional_and_held_inputs_in_every_bucket(case):
    runner = case.open(
        """
        def forward(self, x, scale, mask=None):
            y = x * scale
            return y if mask is None else y * mask
        """,
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          scale: {shape: [], dtype: float32, hold: true}
          mask: {shape: [batch], dtype: float32, optional: true}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: {x: x, scale: scale, mask: mask}, outputs: y}
        replay: [main]
        """,
    )
    scale = torch.tensor(3.0)
    runner.run(x=torch.ones(1), scale=scale)
    for rows, masked, given in (
        (3, True, False),
        (1, False, True),
        (4, True, True),
        (2, True, False),
        (3, False, False),
    ):
        x, mask = torch.randn(rows), torch.rand(rows)
        inputs = {"x": x}
        if masked:
            inputs["mask"] = mask
        if given:
            inputs["scale"] = scale = torch.randn(())
        runner.poison()
        want = x * scale * (mask if masked else 1)
        torch.testing.assert_close(runner.run(**inputs)["y"], want)


@pytest.mark.case("C71")
def test_a_held_input_with_rows_must_come_again_with_another_size(case):
    runner = case.open(
        "def forward(self, x, m): return x * m",
        """
        dims: {batch: [2, 4]}
        buffers:
          x: {shape: [batch], dtype: float32}
          m: {shape: [batch], dtype: float32, hold: true}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x, m], outputs: y}
        replay: [main]
        """,
    )
    x, m = torch.randn(3), torch.randn(3)
    assert torch.equal(runner.run(x=x, m=m)["y"], x * m)
    assert torch.equal(runner.run(x=x * 2)["y"], x * 2 * m)
    with case.refused(InputError, "'m'"):
        runner.run(x=torch.randn(4))
    m = torch.randn(1)
    assert torch.equal(runner.run(x=torch.ones(1), m=m)["y"], m)


@pytest.mark.case("C70")
@pytest.mark.parametrize("rows", ["real", "bucket"])
def test_an_eager_region_sees_real_rows_or_those_of_its_bucket(case, rows):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.seen = []

        def look(self, h):
            self.seen.append(h.shape[0])
            return h * 2

        def a(self, x):
            return x + 1

        def b(self, h):
            return h - 1
        """,
        f"""
        dims: {{batch: [2, 4]}}
        buffers:
          x: {{shape: [batch], dtype: float32}}
          y: {{role: output, shape: [batch], dtype: float32}}
        regions:
          a: {{call: model.a, inputs: [x], outputs: h}}
          look: {{call: model.look, inputs: [h], outputs: k, eager: true, rows: {rows}}}
          b: {{call: model.b, inputs: [k], outputs: y}}
        replay: [a, look, b]
        """,
    )
    runner.model.seen.clear()
    for count in (3, 4, 1):
        x = torch.randn(count)
        torch.testing.assert_close(runner.run(x=x)["y"], (x + 1) * 2 - 1)
    assert runner.model.seen == ([3, 4, 1] if rows == "real" else [4, 4, 2])


@pytest.mark.case("C71")
def test_a_fallback_to_eager_moves_a_state_that_no_bucket_bounds(case):
    runner = case.open(
        "def forward(self, x, s): return x + s, s + x.sum()",
        """
        dims: {batch: [2]}
        buffers:
          x: {shape: [batch], dtype: float32}
          s: {role: state, shape: [1], dtype: float32, init: 0}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x, s], outputs: [y, s], on_miss: eager}
        replay: [main]
        """,
    )
    s = torch.zeros(1)
    for rows in (2, 5, 1, 3, 2):
        x = torch.randn(rows)
        torch.testing.assert_close(runner.run(x=x)["y"], x + s)
        s = s + x.sum()
        torch.testing.assert_close(runner.state["s"], s)
    assert runner.stats.fallbacks == 2


@pytest.mark.case("C20")
@pytest.mark.parametrize(
    ("made", "call"),
    [
        ("def Model(): return lambda x: x * 2", "model"),
        ("class Model:\n    def __call__(self, x): return x * 2", "model"),
        ("class Model:\n    def step(self, x): return x * 2", "model.step"),
        ("class Model:\n    @staticmethod\n    def step(x): return x * 2", "model.step"),
        ("class Model:\n    @classmethod\n    def step(cls, x): return x * 2", "model.step"),
        ("import functools\ndef Model(): return functools.partial(torch.mul, other=2)", "model"),
        (
            (
                "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                "        self.parts = nn.ModuleList([nn.Identity(), nn.Sequential(nn.Identity())])\n"
                "        self.parts[1].forward = lambda x: x * 2"
            ),
            "model.parts.1",
        ),
        (
            "from types import SimpleNamespace\ndef Model(): return SimpleNamespace(f=[torch.neg, lambda x: x * 2])",
            "model.f.1",
        ),
    ],
)
def test_whatever_callable_a_path_leads_to_is_captured(case, made, call):
    runner = case.open(
        made,
        f"""
        buffers:
          x: {{shape: [3], dtype: float32}}
        regions:
          main: {{call: {call}, inputs: [x], outputs: y}}
        replay: [main]
        """,
    )
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(runner.run(x=x)["y"], x * 2)


@pytest.mark.case("C04")
def test_a_region_in_its_own_mode_leaves_the_mode_of_the_model(case):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x)
        """,
        """
        buffers:
          x: {shape: [64], dtype: float32}
        regions:
          noisy: {call: model, inputs: [x], outputs: noise, mode: train}
          plain: {call: model, inputs: [x], outputs: y}
        replay: {noisy: [noisy], plain: [plain]}
        """,
    )
    x = torch.ones(64)
    assert torch.equal(runner["plain"](x=x)["y"], x)
    torch.manual_seed(3)
    noise = runner["noisy"](x=x)["noise"]
    torch.manual_seed(3)
    assert torch.equal(noise, torch.dropout(x, 0.5, train=True))
    assert not runner.model.drop.training


@pytest.mark.case("C35")
def test_states_the_model_owns_are_read_written_reset_and_saved_by_their_paths(case):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Identity() for _ in range(2))
            for number, layer in enumerate(self.layers):
                layer.cache = torch.full((2,), float(number))

        def forward(self, x):
            for layer in self.layers:
                layer.cache.add_(x)
            return sum(layer.cache for layer in self.layers)
        """,
        """
        buffers:
          x: {shape: [2], dtype: float32}
          caches: {role: state, attr: "model.layers.*.cache"}
        regions:
          main: {call: model, inputs: [x], outputs: y}
        replay: [main]
        """,
    )
    assert runner.run(x=torch.ones(2))["y"].tolist() == [3, 3]
    read = runner.state["caches"]
    assert {path: value.tolist() for path, value in read.items()} == {
        "model.layers.0.cache": [1, 1],
        "model.layers.1.cache": [2, 2],
    }
    assert runner.run(x=torch.ones(2))["y"].tolist() == [5, 5]
    runner.reset()
    assert runner.model.layers[1].cache.tolist() == [1, 1]
    assert runner.run(x=torch.ones(2))["y"].tolist() == [3, 3]


@pytest.mark.case("C69")
def test_a_factory_may_size_the_model_by_the_largest_bucket(case):
    runner = case.open(
        """
        class Model(nn.Module):
            def __init__(self, rows):
                super().__init__()
                self.cache = torch.zeros(rows, 2)

            def forward(self, x):
                cache = self.cache[: x.shape[0]]
                cache.add_(x)
                return cache * 1
        """,
        """
        model: {factory: model.py:Model, args: {rows: {dim: batch}}}
        dims: {batch: [1, 2, 4]}
        buffers:
          x: {shape: [batch, 2], dtype: float32}
          cache: {role: state, attr: model.cache, shape: [batch, 2]}
          y: {role: output, shape: [batch, 2], dtype: float32}
        regions:
          main: {call: model, inputs: [x], outputs: y}
        replay: [main]
        """,
    )
    cache = torch.zeros(4, 2)
    for rows in (4, 2, 1, 4):
        x = torch.randn(rows, 2)
        cache[:rows] += x
        torch.testing.assert_close(runner.run(x=x)["y"], cache[:rows])
        torch.testing.assert_close(runner.state["cache"], cache)


@pytest.mark.case("C57")
def test_dropout_in_two_regions_and_two_buckets_follows_one_stream_as_eager_does(case):
    runner = case.open(
        """
        def a(self, x):
            return F.dropout(x, 0.5)

        def b(self, h):
            return h + torch.rand_like(h)
        """,
        """
        dims: {batch: {sizes: [8, 16], exact: true}}
        buffers:
          x: {shape: [batch], dtype: float32}
          y: {role: output, shape: [batch], dtype: float32}
        pools: {all: [a, b]}
        regions:
          a: {call: model.a, inputs: [x], outputs: h}
          b: {call: model.b, inputs: [h], outputs: y}
        replay: [a, b]
        """,
    )
    eager = case.eager()
    torch.manual_seed(9)
    got = [runner.run(x=torch.ones(rows))["y"] for rows in (8, 16, 8)]
    torch.manual_seed(9)
    want = [eager.b(eager.a(torch.ones(rows))) for rows in (8, 16, 8)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, want, strict=True))


@pytest.mark.case("C62")
def test_an_eager_region_that_keeps_its_first_input_keeps_the_callers(case):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.first = None

        def note(self, x):
            if self.first is None:
                self.first = x.clone()
            return x + self.first

        def forward(self, h):
            return h * 2
        """,
        """
        buffers:
          x: {shape: [3], dtype: float32}
        regions:
          note: {call: model.note, inputs: [x], outputs: h, eager: true}
          main: {call: model, inputs: [h], outputs: y}
        replay: [note, main]
        """,
    )
    first = torch.randn(3)
    for x in (first, torch.randn(3), torch.randn(3)):
        torch.testing.assert_close(runner.run(x=x)["y"], (x + first) * 2)
