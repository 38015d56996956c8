"""An operator whose kernel is Python code is captured as the calls of that code: on a device nothing else is there."""

import itertools

import pytest
import torch

from graphspec.errors import GuardError, HazardError

SPEC = """
    buffers:
      x: {shape: [batch, 2], dtype: float32}
      y: {role: output, shape: [batch, 2], dtype: float32}
    dims: {batch: [2, 4]}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
NAMES = itertools.count()


def model(kernel, more=""):
    """A model that calls an operator with this kernel, which may read ``self`` as ``MODEL[0]``."""
    library = f"python_kernels_{next(NAMES)}"
    return f"""
    MODEL, LIBRARY = [], torch.library.Library("{library}", "FRAGMENT")
    LIBRARY.define("f(Tensor x, int i) -> Tensor")
    {kernel}
    LIBRARY.impl("f", f, "CompositeExplicitAutograd")
    {more}
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.k, self.layers = nn.Parameter(torch.full((2,), 3.0)), 2.0, nn.ModuleList([nn.Linear(2, 2)])
            self.register_buffer("count", torch.zeros(()))
            MODEL.append(self)

        def forward(self, x):
            return torch.ops.{library}.f(x, 0)

"""


def test_what_the_kernel_reads_of_the_model_is_guarded(case):
    runner = case.open(model("def f(x, i): return x * MODEL[0].layers[i].weight[0]"), SPEC)
    x = torch.ones(2, 2)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))
    with torch.no_grad():
        runner.model.layers[0].weight.fill_(5.0)
    assert torch.equal(runner.run(x=x)["y"], x * 5)
    runner.model.layers[0].weight = torch.nn.Parameter(torch.full((2, 2), 7.0))
    with pytest.raises(GuardError, match=r"layers\.0\.weight|layers\[0\]"):
        runner.run(x=x)
    runner.recapture()
    assert torch.equal(runner.run(x=x)["y"], x * 7)


def test_what_the_kernel_loads_of_the_host_is_guarded(case):
    runner = case.open(model("def f(x, i): return x * MODEL[0].k"), SPEC)
    assert torch.equal(runner.run(x=torch.ones(2, 2))["y"], torch.full((2, 2), 2.0))
    runner.model.k = 4.0
    with pytest.raises(GuardError, match=r"k was 2\.0"):
        runner.run(x=torch.ones(2, 2))


@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        ("def f(x, i): return x * x.sum().item()", "GS701"),
        ("def f(x, i): return x * 2 if x.max() > 0 else x * 3", "GS701"),
        ("def f(x, i): return x * torch.from_numpy(x.numpy())", "GS701"),
        ("def f(x, i): return x + x[x > 0].sum()", "GS702"),
        ("def f(x, i): return x.mul_(2).clone()", "GS724"),
        ("def f(x, i): return x + torch.rand(2, generator=torch.Generator())", "GS704"),
    ],
)
def test_what_no_graph_may_do_is_refused_in_a_kernel_too(case, kernel, code):
    with pytest.raises(HazardError) as refused:
        case.open(model(kernel), SPEC)
    assert code in {each.code for each in refused.value.diagnostics}


def test_what_the_kernel_writes_is_written_by_every_replay_and_by_no_capture(case):
    kernel = "def f(x, i): MODEL[0].count.add_(1); return x + MODEL[0].count"
    runner = case.open(model(kernel), SPEC)
    assert runner.model.count.item() == 0
    for run in range(1, 4):
        x = torch.randn(3, 2)
        assert torch.equal(runner.run(x=x)["y"], x + run)


def test_an_operator_inside_of_an_operator_is_opened_too(case):
    inner = f"python_kernels_{next(NAMES)}"
    kernel = f"""
    INNER = torch.library.Library("{inner}", "FRAGMENT")
    INNER.define("g(Tensor x) -> Tensor")
    INNER.impl("g", lambda x: x * MODEL[0].k, "CPU")
    def f(x, i): return torch.ops.{inner}.g(x) + MODEL[0].w
"""
    runner = case.open(model(kernel), SPEC)
    x = torch.randn(3, 2)
    assert torch.equal(runner.run(x=x)["y"], x * 2 + 3)
    runner.model.k = 3.0
    with pytest.raises(GuardError, match=r"k was 2\.0"):
        runner.run(x=x)


def test_a_custom_operator_that_writes_its_argument_is_captured_as_its_calls(case):
    name = f"python_kernels_{next(NAMES)}::accumulate"
    runner = case.open(
        f"""
    @torch.library.custom_op("{name}", mutates_args=("into",))
    def accumulate(into: torch.Tensor, x: torch.Tensor) -> None:
        into.add_(x * SCALE["k"])

    SCALE = {{"k": 2.0}}

    class Model(nn.Module):
        def forward(self, x):
            y = torch.zeros_like(x)
            accumulate(y, x)
            return y

""",
        SPEC,
    )
    x = torch.randn(3, 2)
    assert torch.equal(runner.run(x=x)["y"], x * 2)
    assert runner.graphs[0].operators == 3
