"""Hooks, profilers, threads, modes of torch and of the caller around captures and runs."""

import cProfile
import pstats
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphspec.errors import GraphSpecError, GuardError, HazardError, ReplayError, SpecError

SPEC = """
    buffers:
      x: {shape: [2, 4], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: yMORE}
    replay: [main]
"""
LINEAR = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.calls = []

        def forward(self, x):
            return self.linear(x).relu()
"""


def plain(more=""):
    return SPEC.replace("MORE", more)


HOOKS = {
    "a forward hook": "m.linear.register_forward_hook(lambda mod, args, out: CALLS.append(1))",
    "a forward pre-hook": "m.linear.register_forward_pre_hook(lambda mod, args: CALLS.append(1))",
    "a forward hook of the model": "m.register_forward_hook(lambda mod, args, out: out * 2)",
    "a global forward hook": (
        "GLOBAL.append(nn.modules.module.register_module_forward_hook(lambda mod, args, out: None))"
    ),
}


def hooked(hook):
    return f"""
        CALLS, GLOBAL = [], []

        class Base(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                return self.linear(x).relu()

        def Model():
            m = Base()
            {hook}
            return m
    """


@pytest.fixture
def no_global_hooks():
    yield
    for hooks in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        getattr(torch.nn.modules.module, hooks).clear()


@pytest.mark.case("C92")
@pytest.mark.usefixtures("no_global_hooks")
@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS.keys())
def test_a_hooked_module_is_refused_by_name(case, hook):
    with case.refused(HazardError, "GS712", "hooks: allow") as caught:
        case.open(hooked(hook), plain())
    assert "GLOBAL" in hook or "model" in str(caught.value)


@pytest.mark.case("C92")
@pytest.mark.parametrize("hook", ["m.linear.register_forward_hook(lambda mod, args, out: out * 2)",
                                  "m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))"])  # fmt: skip
def test_an_allowed_hook_that_only_computes_is_captured_and_equals_eager(case, hook):
    runner = case.open(hooked(hook), plain(", hooks: allow"))
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(2, 4)
        assert torch.equal(runner.run(x=x)["y"], eager(x))


@pytest.mark.case("C92")
@pytest.mark.parametrize("add", [
    lambda m: m.linear.register_forward_hook(lambda _mod, _args, out: out * 2),
    lambda m: m.register_forward_pre_hook(lambda _mod, args: (args[0] + 1,)),
    lambda _: torch.nn.modules.module.register_module_forward_hook(lambda _mod, _args, out: out * 2),
])  # fmt: skip
@pytest.mark.usefixtures("no_global_hooks")
def test_a_hook_registered_after_the_capture_is_refused_by_the_next_run(case, add):
    runner = case.open(LINEAR, plain())
    handle = add(runner.model)
    with case.refused(GuardError, "hook"):
        runner.run(x=torch.randn(2, 4))
    handle.remove()
    x = torch.randn(2, 4)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C94")
def test_the_profiler_sees_each_run_under_the_name_of_its_region(case):
    runner = case.open(LINEAR, plain())
    x = torch.randn(2, 4)
    with torch.profiler.profile() as profile:
        for _ in range(3):
            y = runner.run(x=x)["y"]
    assert torch.equal(y, runner.model(x))
    names = [event.name for event in profile.events()]
    assert any("main" in name for name in names), sorted(set(names))


@pytest.mark.case("C94")
def test_a_capture_under_the_profiler_works(case):
    with torch.profiler.profile():
        runner = case.open(LINEAR, plain())
    x = torch.randn(2, 4)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))


def called_after_the_capture():
    return sys.version


@pytest.mark.case("C94")
def test_a_capture_under_the_profiler_of_python_works_and_the_profile_goes_on(case):
    profile = cProfile.Profile()
    with profile:
        runner = case.open(LINEAR, plain())
        called_after_the_capture()
    x = torch.randn(2, 4)
    assert torch.equal(runner.run(x=x)["y"], runner.model(x))
    assert any(name == "called_after_the_capture" for _, _, name in pstats.Stats(profile).stats)


class Seen(TorchDispatchMode):
    """A dispatch mode of the user's."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


AROUND = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "a dispatch mode": Seen,
    "a default device": lambda: torch.device("cpu"),
    "a function mode": torch.overrides.BaseTorchFunctionMode,
    "anomaly mode": torch.autograd.detect_anomaly,
    "deterministic": lambda: deterministic(),  # noqa: PLW0108 - defined below
    "float64 by default": lambda: default_dtype(torch.float64),
    "three threads": lambda: threads(3),
}


class deterministic:  # noqa: N801
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)


class default_dtype:  # noqa: N801
    def __init__(self, dtype):
        self.dtype = dtype

    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_):
        torch.set_default_dtype(self.before)


class threads:  # noqa: N801
    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.count)

    def __exit__(self, *_):
        torch.set_num_threads(self.before)


@pytest.mark.case("C94")
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
def test_runs_inside_any_mode_of_the_caller_equal_eager_and_leave_the_mode_on(case, around):
    runner = case.open(LINEAR, plain())
    eager = case.eager()
    inputs = [torch.randn(2, 4) for _ in range(3)]
    want = [eager(x) for x in inputs]
    for x, expected in zip(inputs, want, strict=True):
        with around():
            grad = torch.is_grad_enabled()
            y = runner.run(x=x)["y"]
            assert torch.is_grad_enabled() == grad
        torch.testing.assert_close(y, expected)
        assert not y.requires_grad
    torch.testing.assert_close(runner.run(x=inputs[0])["y"] + 1, want[0] + 1)


@pytest.mark.case("C94")
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
def test_a_capture_inside_any_mode_of_the_caller_equals_eager_outside_of_it_or_is_refused(case, around):
    try:
        with around():
            runner = case.open(LINEAR, plain())
    except GraphSpecError as error:
        assert "region 'main'" in str(error)  # noqa: PT017
        return
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C94")
def test_a_run_under_the_callers_autocast_is_what_was_captured_or_refused(case):
    runner = case.open(LINEAR, plain())
    x = torch.randn(2, 4)
    want = runner.model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            y = runner.run(x=x)["y"]
        except GraphSpecError as error:
            assert "autocast" in str(error)  # noqa: PT017
            return
    assert y.dtype == torch.float32
    assert torch.equal(y, want)


@pytest.mark.case("C94")
def test_autocast_is_declared_by_region_and_then_equals_eager_under_it(case):
    runner = case.open(LINEAR, plain(", autocast: bfloat16"))
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(2, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            want = eager(x)
        assert torch.equal(runner.run(x=x)["y"], want)
    assert runner.run(x=x)["y"].dtype == torch.bfloat16


@pytest.mark.case("C94")
@pytest.mark.parametrize(
    "body",
    ["with torch.inference_mode():\n                return self.linear(x) * 2",
     "with torch.enable_grad():\n                return self.linear(x).detach() * 2",
     "with torch.autocast('cpu', dtype=torch.bfloat16):\n                return self.linear(x)",
     "with torch.profiler.record_function('inner'):\n                return self.linear(x) * 2",
     "return torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)",
     "return torch.func.functional_call(self.linear, dict(self.linear.named_parameters()), (x,))",
     "return torch.vmap(self.linear)(x)",
     "return torch.func.jvp(lambda v: v.sin(), (x,), (x,))[1]",
     "return torch.func.grad(lambda v: (v**3).sum())(x)"],
)  # fmt: skip
def test_modes_and_transforms_inside_a_region_equal_eager_or_are_refused(case, body):
    source = f"""
        import torch.utils.checkpoint

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                {body.replace("                return", "                    return")}
    """
    case.write(source, plain())
    case.eager()(torch.randn(2, 4))  # eager at least takes it
    try:
        runner = case.open(source, plain())
    except GraphSpecError as error:
        assert "region 'main'" in str(error)  # noqa: PT017
        return
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(runner.run(x=x)["y"], eager(x))


STATE = """
    buffers:
      x: {shape: [64], dtype: float32}
      s: {role: state, shape: [64], dtype: float32, init: 0}
    regions:
      main: {call: model, inputs: [x, s], outputs: [y, s]}
    replay: [main]
"""


@pytest.mark.case("C94")
def test_threads_that_run_at_once_each_get_their_own_result(case):
    runner = case.open("def forward(self, x, s): return x * 2 + s * 0, s + 1", STATE)

    def work(number):
        for step in range(50):
            value = float(number * 1000 + step)
            y = runner.run(x=torch.full((64,), value))["y"]
            assert torch.equal(y, torch.full((64,), value * 2)), (number, step)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert runner.state["s"].tolist() == [200] * 64


@pytest.mark.case("C94")
def test_a_run_while_another_thread_captures_another_spec_is_undisturbed(case):
    runner = case.open(LINEAR, plain())
    path = case.write(LINEAR, plain())
    import graphspec

    stop, failures = threading.Event(), []

    def replay():
        while not stop.is_set():
            x = torch.randn(2, 4)
            try:
                if not torch.equal(runner.run(x=x)["y"], runner.model(x)):
                    failures.append("other values")
            except Exception as error:  # noqa: BLE001 - whatever it was is the finding
                failures.append(repr(error))

    thread = threading.Thread(target=replay)
    thread.start()
    try:
        for _ in range(5):
            with graphspec.open(path, device="cpu") as other:
                x = torch.randn(2, 4)
                assert torch.equal(other.run(x=x)["y"], other.model(x))
    finally:
        stop.set()
        thread.join()
    assert failures == []


@pytest.mark.case("C94")
@pytest.mark.parametrize(
    "body",
    ["with ThreadPoolExecutor(1) as pool: return pool.submit(lambda: x * 2).result()",
     "out = []; t = threading.Thread(target=lambda: out.append(x * 2)); t.start(); t.join(); return out[0]",
     "with ThreadPoolExecutor(2) as pool: return sum(pool.map(lambda k: x * k, [1, 2]))",
     "from multiprocessing.pool import ThreadPool; return ThreadPool(1).apply(lambda: x * 2)",
     ("import _thread; out = []; _thread.start_new_thread(lambda: out.append(x * 2), ())\n"
     "                while not out: pass\n                return out[0]")],
)  # fmt: skip
def test_work_given_to_another_thread_inside_a_region_is_refused(case, body):
    source = f"""
        import threading
        from concurrent.futures import ThreadPoolExecutor

        class Model(nn.Module):
            def forward(self, x):
                {body}
    """
    with case.refused(HazardError, "region 'main'"):
        case.open(source, plain())


@pytest.mark.case("C94")
def test_a_run_from_inside_the_region_of_its_own_runner_is_refused(case):
    runner = case.open(
        """
        def eager(self, x):
            return self.again(x) if self.again else x * 1

        def forward(self, x):
            return x * 2

        again = None
        """,
        """
        buffers:
          x: {shape: [2, 4], dtype: float32}
        regions:
          first: {call: model.eager, inputs: [x], outputs: h, eager: true}
          main: {call: model, inputs: [h], outputs: y}
        replay: [first, main]
        """,
    )
    runner.model.again = lambda x: runner.run(x=x)["y"]
    with pytest.raises(ReplayError, match="already running"):
        runner.run(x=torch.ones(2, 4))
    runner.model.again = None
    assert runner.run(x=torch.ones(2, 4))["y"].tolist() == [[2.0] * 4] * 2


TRAINING = {
    "allow_unused": "allow_unused: true, backward: true",
}


@pytest.mark.case("C50", "C51", "C52", "C53", "C54", "C55", "C56")
@pytest.mark.parametrize("key", TRAINING.values(), ids=TRAINING.keys())
def test_a_training_key_is_refused_as_not_yet_supported_at_its_place(case, key):
    with pytest.raises(SpecError, match="GS6") as caught:
        case.open(
            LINEAR, plain(f", {key}").replace("buffers:", "params: {lr: {type: float, default: 0.1}}\n    buffers:")
        )
    assert "not supported yet" in str(caught.value)
    assert all(finding.line for finding in caught.value.diagnostics)


@pytest.mark.case("C50", "C51", "C53")
def test_a_backward_pass_inside_a_region_is_refused_or_equals_eager(case):
    source = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(4))
                self.optimizer = torch.optim.SGD([self.w], lr=0.1)

            def forward(self, x):
                with torch.enable_grad():
                    self.optimizer.zero_grad()
                    loss = (x * self.w).sum()
                    loss.backward()
                    self.optimizer.step()
                return loss.detach()
    """
    try:
        runner = case.open(source, plain())
    except GraphSpecError as error:
        assert "region 'main'" in str(error)  # noqa: PT017
        return
    eager = case.eager()
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(runner.run(x=x)["y"], eager(x))
        torch.testing.assert_close(runner.model.w, eager.w)


@pytest.mark.case("C55")
@pytest.mark.parametrize("warmup", [0, 3])
def test_batch_norm_in_train_mode_counts_and_averages_runs_only(case, warmup):
    runner = case.open(
        """
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            return self.norm(x)
        """,
        f"""
        model: {{factory: model.py:Model, mode: train}}
        buffers:
          x: {{shape: [2, 2], dtype: float32}}
        regions:
          main: {{call: model, inputs: [x], outputs: y, warmup: {warmup}}}
        replay: [main]
        """,
    )
    eager = case.eager(train=True)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    torch.testing.assert_close(runner.run(x=x)["y"], eager(x))
    assert runner.model.norm.num_batches_tracked.item() == 1
    torch.testing.assert_close(runner.model.norm.running_mean, torch.tensor([0.2, 0.3]))
    for _ in range(2):
        x = torch.randn(2, 2)
        torch.testing.assert_close(runner.run(x=x)["y"], eager(x))
        torch.testing.assert_close(runner.model.norm.running_var, eager.norm.running_var)


@pytest.mark.filterwarnings("error")
def test_capture_and_replay_warn_of_nothing_that_eager_does_not_warn_of(case):
    model = """
        def forward(self, x):
            labels = (x[:, 0] > 0).long()
            losses = F.mse_loss(x, x * 2), F.huber_loss(x, x * 2), F.binary_cross_entropy(x.sigmoid(), x.sigmoid())
            return F.cross_entropy(x, labels), *losses
    """
    spec = """
        buffers:
          x: {shape: [4, 6], dtype: float32}
        regions:
          main: {call: model, inputs: [x], outputs: y}
        replay: [main]
    """
    runner, x = case.open(model, spec), torch.randn(4, 6)
    for got, want in zip(runner.run(x=x)["y"], runner.model(x), strict=True):
        assert torch.equal(got, want)


def test_a_model_may_ask_whether_it_is_captured_and_do_the_same_otherwise(case):
    model = """
        def asked():
            try:
                return torch.cuda.is_current_stream_capturing()
            except RuntimeError:
                return False

        class Model(nn.Module):
            def forward(self, x):
                return x + x if asked() else x * 2
    """
    runner, x = case.open(model, SPEC.replace("MORE", "")), torch.randn(2, 4)
    assert torch.equal(runner.run(x=x)["y"], x * 2)


@pytest.mark.parametrize("masked", [False, True])
def test_a_causal_language_model_without_a_cache_is_captured(case, masked):
    model = f"""
        from transformers import LlamaConfig, LlamaForCausalLM

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
                self.llama = LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).eval()

            def forward(self, x):
                given = dict(attention_mask=(x >= 0).long()) if {masked} else {{}}
                return self.llama(x, use_cache=False, **given).logits
    """
    spec = """
        buffers:
          x: {shape: [2, 8], dtype: int64, sample: {randint: [0, 15]}}
        regions:
          main: {call: model, inputs: [x], outputs: y}
        replay: [main]
    """
    runner, x = case.open(model, spec), torch.randint(0, 15, (2, 8))
    torch.testing.assert_close(runner.run(x=x)["y"], runner.model(x))
