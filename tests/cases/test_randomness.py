"""Random numbers: every run draws anew, a seed gives what eager gives, and a capture moves no stream."""

import random

import numpy as np
import pytest
import torch

from graphspec.errors import HazardError

SPEC = """
    model: {factory: model.py:Model, mode: train}
    buffers:
      x: {shape: [64], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: yMORE}
    replay: [main]
"""
DROPOUT = "def forward(self, x): return F.dropout(x, 0.5, self.training) + torch.rand_like(x)"


@pytest.mark.case("C57")
def test_two_runs_differ_and_equal_seeds_give_equal_runs_and_what_eager_gives(case):
    runner = case.open(DROPOUT, SPEC.replace("MORE", ""))
    eager = case.eager(train=True)
    x = torch.ones(64)
    assert not torch.equal(runner.run(x=x)["y"], runner.run(x=x)["y"])
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        first, second = runner.run(x=x)["y"], runner.run(x=x)["y"]
        torch.manual_seed(seed)
        assert torch.equal(first, eager(x))
        assert torch.equal(second, eager(x))


DRAWS = {
    "rand": "x + torch.rand(64)",
    "randn": "x + torch.randn(64)",
    "randn_like": "x + torch.randn_like(x)",
    "randint": "x + torch.randint(0, 100, (64,))",
    "randperm": "x[torch.randperm(64)]",
    "normal_": "torch.empty(64).normal_() + x",
    "uniform_": "torch.empty(64).uniform_(-1, 1) + x",
    "bernoulli": "torch.bernoulli(x.sigmoid())",
    "multinomial": "torch.multinomial(x.abs() + 1, 8, replacement=True).float()",
    "exponential_": "torch.empty(64).exponential_() + x",
    "poisson": "torch.poisson(x.abs())",
    "alpha_dropout": "F.alpha_dropout(x, 0.5, True)",
    "gumbel_softmax": "F.gumbel_softmax(x)",
    "random_": "torch.empty(64).random_(0, 10) + x",
    "normal of tensors": "x + torch.normal(0.0, 1.0, (64,))",
    "dropout of attention": (
        "F.scaled_dot_product_attention(*[x.view(1, 1, 8, 8)] * 3, attn_mask=torch.zeros(8, 8), dropout_p=0.5).view(-1)"
    ),
    "rrelu": "F.rrelu(x, training=True)",
    "trunc_normal_": "nn.init.trunc_normal_(torch.empty(64)) + x",
    "geometric_": "torch.empty(64).geometric_(0.5) + x",
}


@pytest.mark.case("C57")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_every_random_operator_draws_anew_and_equals_eager_after_a_seed_or_is_refused(case, draw):
    try:
        runner = case.open(f"def forward(self, x): return {draw}", SPEC.replace("MORE", ""))
    except HazardError as error:
        assert "region 'main'" in str(error)  # noqa: PT017
        return
    eager = case.eager(train=True)
    x = torch.randn(64)
    results = []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        results.append(runner.run(x=x)["y"])
        torch.manual_seed(seed)
        assert torch.equal(results[-1], eager(x))
    assert not torch.equal(results[0], results[1])


@pytest.mark.case("C57")
@pytest.mark.parametrize("warmup", [0, 3])
def test_opening_capturing_and_recapturing_move_no_stream(case, warmup):
    path = case.write(DROPOUT, SPEC.replace("MORE", f", warmup: {warmup}"))
    import graphspec

    with graphspec.open(path, device="cpu", capture=False) as runner:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002 - the global stream is what is watched
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        runner.capture()
        runner.recapture()
        after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]


@pytest.mark.case("C57")
def test_the_seed_of_a_spec_makes_the_same_model_whatever_the_callers_stream_is_at(case):
    model = """
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            return self.linear(x)
    """
    torch.manual_seed(5)
    first = case.open(model, SPEC.replace("MORE", ""))
    torch.manual_seed(6)
    second = case.open(model, SPEC.replace("MORE", ""))
    assert torch.equal(first.model.linear.weight, second.model.linear.weight)


OWN = """
    def __init__(self):
        super().__init__()
        self.noise = torch.Generator().manual_seed(3)

    def forward(self, x):
        return x + torch.rand(64, generator=self.noise)
"""


@pytest.mark.case("C58")
def test_an_undeclared_generator_is_refused_by_its_attribute(case):
    with case.refused(HazardError, "GS704", "model.noise", "generators: [model.noise]"):
        case.open(OWN, SPEC.replace("MORE", ""))


@pytest.mark.case("C58")
def test_a_declared_generator_draws_anew_and_equals_eager(case):
    runner = case.open(OWN, SPEC.replace("MORE", ", generators: [model.noise]"))
    eager = case.eager(train=True)
    x = torch.zeros(64)
    for _ in range(3):
        assert torch.equal(runner.run(x=x)["y"], eager(x))
    runner.model.noise.manual_seed(11)
    eager.noise.manual_seed(11)
    assert torch.equal(runner.run(x=x)["y"], eager(x))
    runner.recapture()
    assert torch.equal(runner.run(x=x)["y"], eager(x))


@pytest.mark.case("C58")
def test_a_declared_generator_that_is_replaced_is_refused_or_used(case):
    runner = case.open(OWN, SPEC.replace("MORE", ", generators: [model.noise]"))
    eager = case.eager(train=True)
    eager(torch.zeros(64))
    runner.run(x=torch.zeros(64))
    runner.model.noise = torch.Generator().manual_seed(99)
    eager.noise = torch.Generator().manual_seed(99)
    with case.refused(Exception, "model.noise"):
        runner.run(x=torch.zeros(64))
    runner.recapture()
    assert torch.equal(runner.run(x=torch.zeros(64))["y"], eager(torch.zeros(64)))


@pytest.mark.case("C58")
@pytest.mark.parametrize(
    "model",
    [
        """
        G = torch.Generator().manual_seed(3)

        class Model(nn.Module):
            def forward(self, x):
                return x + torch.rand(64, generator=G)
        """,
        """
        class Model(nn.Module):
            def forward(self, x):
                return x + torch.rand(64, generator=torch.Generator().manual_seed(3))
        """,
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = [torch.Generator().manual_seed(3)]

            def forward(self, x):
                return x + torch.empty(64).normal_(generator=self.parts[0])
        """,
        """
        class Model(nn.Module):
            def forward(self, x):
                torch.manual_seed(3)
                return x + torch.rand(64)
        """,
        """
        class Model(nn.Module):
            def forward(self, x):
                with torch.random.fork_rng():
                    return x + torch.rand(64)
        """,
        """
        class Model(nn.Module):
            def forward(self, x):
                torch.set_rng_state(torch.get_rng_state())
                return x + torch.rand(64)
        """,
        """
        class Model(nn.Module):
            def forward(self, x):
                torch.default_generator.manual_seed(3)
                return x + torch.rand(64)
        """,
    ],
)
def test_other_generators_and_seeds_inside_a_region_are_refused(case, model):
    with case.refused(HazardError, "region 'main'"):
        case.open(model, SPEC.replace("MORE", ""))


@pytest.mark.case("C58")
def test_a_declared_generator_that_does_not_exist_is_refused_by_path(case):
    with pytest.raises(Exception, match=r"model\.nosie"):
        case.open(OWN, SPEC.replace("MORE", ", generators: [model.nosie]"))


@pytest.mark.case("C58")
def test_a_declared_attribute_that_is_no_generator_is_refused_by_path(case):
    model = OWN.replace("super().__init__()", "super().__init__(); self.other = 3")
    with pytest.raises(Exception, match=r"model\.other"):
        case.open(model, SPEC.replace("MORE", ", generators: [model.noise, model.other]"))
