"""After any failure the next capture or run works and all is as before; nothing of a closed runner lives on."""

import builtins
import copy
import gc
import os
import pickle
import random
import resource
import signal
import threading
import weakref
from pathlib import Path

import pytest
import torch

import graphspec
from graphspec.errors import CaptureError, GraphSpecError, HazardError, ModelError, ReplayError

SPEC = """
    buffers:
      x: {shape: [4], dtype: float32}
    regions:
      main: {call: model, inputs: [x], outputs: y}
    replay: [main]
"""
LINEAR = """
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        self.n.add_(1)
        return self.linear(x) + self.n
"""
REPETITIONS = 100


def resident():
    """Bytes of memory this process holds now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@pytest.mark.case("C64")
def test_a_hundred_runners_leave_memory_flat_and_nothing_alive(case):
    source = LINEAR.replace("nn.Linear(4, 4)", "nn.Linear(4, 4); self.table = torch.ones(512, 512)")
    path = case.write(source.replace("+ self.n", "+ self.n + self.table[0, 0]"), SPEC)
    gone = []

    def once():
        with graphspec.open(path, device="cpu") as runner:
            for _ in range(3):
                runner.run(x=torch.randn(4))
            gone.extend((weakref.ref(runner), weakref.ref(runner.model), weakref.ref(runner.model.linear.weight)))

    for _ in range(10):
        once()
    gc.collect()
    before, objects = resident(), len(gc.get_objects())
    gone.clear()
    for _ in range(REPETITIONS):
        once()
    gc.collect()
    assert [ref for ref in gone if ref() is not None] == []
    assert len(gc.get_objects()) - objects < 10 * REPETITIONS
    assert resident() - before < 64 << 20  # a leaked weight would be 100 MiB


@pytest.mark.case("C64")
def test_a_closed_runner_lets_its_model_and_memory_go_although_it_is_still_held(case):
    runner = case.open(LINEAR, SPEC)
    weight = weakref.ref(runner.model.linear.weight)
    assert runner.run(x=torch.ones(4))["y"].shape == (4,)
    runner.close()
    assert weight() is not None  # runner.model is still its caller's
    assert runner.graphs == ()
    del runner
    case._opened.clear()
    gc.collect()
    assert weight() is None


@pytest.mark.case("C64")
def test_ten_thousand_replays_leave_memory_flat(case):
    runner = case.open(LINEAR, SPEC)
    x = torch.randn(4)
    for _ in range(1000):
        runner.run(x=x)
    gc.collect()
    before, objects = resident(), len(gc.get_objects())
    for _ in range(10_000):
        runner.run(x=x)
    gc.collect()
    assert len(gc.get_objects()) - objects < 1000
    assert resident() - before < 8 << 20
    assert runner.model.n.item() == 11_000


def ambient():
    """What a failure could leave behind in this process."""
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        len(torch.overrides._get_current_function_mode_stack()),
        len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
        torch.nn.Module.__call__,
        torch.Tensor.item,
        torch.load,
        Path.cwd(),
    )


FAILING = """
    import io

    class Bad(ValueError):
        pass

    class Model(nn.Module):
        fail_at = 0

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("n", torch.zeros(()))
            self.calls = io.BytesIO(CALLS)  # where a file stands, nobody puts back

        def forward(self, x):
            self.n.add_(1)
            if self.calls.read(1) == b"x":
                raise Bad("the user's own text")
            return self.linear(x) + self.n
"""


@pytest.mark.case("C35")
@pytest.mark.parametrize("at", [0, 1, 2, 3, 4])
def test_an_exception_in_any_pass_comes_first_and_leaves_everything_as_before(case, at):
    source = FAILING.replace("CALLS", f"b'.' * {at} + b'x'")
    model = None
    for _ in range(3):
        case.write(source, SPEC)
        module = case.module()
        model = module.Model().eval()
        before, weight = ambient(), model.linear.weight.clone()
        with pytest.raises(ModelError) as caught:
            graphspec.open(case.path, model=model, device="cpu")
        assert isinstance(caught.value.__cause__, module.Bad)
        assert "the user's own text" in str(caught.value)
        assert "region 'main'" in str(caught.value)
        assert ambient() == before
        assert model.n.item() == 0
        assert torch.equal(model.linear.weight, weight)
        assert not model.training
    with graphspec.open(case.path, model=model, device="cpu") as runner:
        x = torch.randn(4)
        assert torch.equal(runner.run(x=x)["y"], model.linear(x) + 1)


@pytest.mark.case("C35")
def test_a_failing_factory_is_the_users_exception_with_no_trace_left(case):
    path = case.write("class Model(nn.Module):\n    def __init__(self):\n        raise KeyError('weights')\n", SPEC)
    for _ in range(3):
        before = ambient()[1:]
        with pytest.raises(ModelError, match="weights") as caught:
            graphspec.open(path, device="cpu")
        assert isinstance(caught.value.__cause__, KeyError)
        assert ambient()[1:] == before


@pytest.mark.case("C35")
@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit", "MemoryError", "RecursionError", "GeneratorExit"])
def test_an_interrupt_during_capture_passes_through_and_the_next_capture_works(case, kind):
    source = LINEAR.replace("self.n.add_(1)", f"self.n.add_(1)\n        if self.fail: raise {kind}('stop')")
    source = source.replace("super().__init__()", "super().__init__()\n        self.fail = True")
    runner = case.open(source, SPEC, capture=False)
    before = ambient()
    with pytest.raises((getattr(builtins, kind), ModelError)):
        runner.capture()
    assert ambient() == before
    assert runner.model.n.item() == 0
    runner.model.fail = False
    runner.capture()
    x = torch.randn(4)
    assert torch.equal(runner.run(x=x)["y"], runner.model.linear(x) + 1)


@pytest.mark.case("C35")
def test_a_refused_capture_repeated_a_hundred_times_leaves_memory_flat_and_then_a_good_one_works(case):
    runner = case.open(
        LINEAR.replace("return ", "if self.read: x = x * x[0].item()\n        return ").replace(
            "super().__init__()", "super().__init__()\n        self.read = True"
        ),
        SPEC,
        capture=False,
    )

    def refused(times):
        for _ in range(times):
            with pytest.raises(HazardError):
                runner.capture()

    refused(10)
    gc.collect()
    before, objects, size = ambient(), len(gc.get_objects()), resident()
    refused(REPETITIONS)
    gc.collect()
    assert ambient() == before
    assert len(gc.get_objects()) - objects < 10 * REPETITIONS
    assert resident() - size < 64 << 20
    runner.model.read = False
    runner.capture()
    x = torch.randn(4)
    assert torch.equal(runner.run(x=x)["y"], runner.model.linear(x) + 1)


EAGER = """
    def prepare(self, x):
        if x[0] > 100:
            raise ValueError("too large")
        return x * 2

    def forward(self, h, s):
        return h + s, s + 1
"""


@pytest.mark.case("C35")
def test_a_run_that_fails_half_way_is_the_users_exception_and_the_next_run_is_right(case):
    runner = case.open(
        EAGER,
        """
        buffers:
          x: {shape: [2], dtype: float32}
          s: {role: state, shape: [2], dtype: float32, init: 0}
        regions:
          prepare: {call: model.prepare, inputs: [x], outputs: h, eager: true}
          main: {call: model, inputs: [h, s], outputs: [y, s]}
        replay: [prepare, main]
        """,
    )
    done = 0
    for number in range(6):
        if number % 2:
            before = ambient()
            with pytest.raises(ModelError, match="too large") as caught:
                runner.run(x=torch.full((2,), 101.0))
            assert isinstance(caught.value.__cause__, ValueError)
            assert ambient() == before
            continue
        assert runner.run(x=torch.ones(2))["y"].tolist() == [2 + done] * 2
        done += 1
        assert runner.state["s"].tolist() == [done] * 2


@pytest.mark.case("C35")
@pytest.mark.parametrize("body", ["self.table[i]", "F.embedding(i, self.table)", "self.table.index_select(0, i)",
                                  "self.table.gather(0, i[:, None].expand(2, 3))"])  # fmt: skip
def test_an_operator_that_fails_in_a_replay_names_the_region_and_the_next_run_is_right(case, body):
    runner = case.open(
        f"""
        def __init__(self):
            super().__init__()
            self.table = torch.arange(12.0).view(4, 3)

        def forward(self, i, s):
            return {body} + s, s + 1
        """,
        """
        buffers:
          i: {shape: [2], dtype: int64}
          s: {role: state, shape: [1], dtype: float32, init: 0}
        regions:
          main: {call: model, inputs: [i, s], outputs: [y, s]}
        replay: [main]
        """,
    )
    table, good = torch.arange(12.0).view(4, 3), torch.tensor([1, 3])
    for count in range(4):
        if count:
            before = ambient()
            with case.refused(ReplayError, "region 'main'"):
                runner.run(i=torch.tensor([0, 99]))
            assert ambient() == before
        done = runner.state["s"]
        assert torch.equal(runner.run(i=good)["y"], table[good] + done)


@pytest.mark.case("C35")
def test_a_failed_recapture_leaves_a_runner_that_can_be_recaptured(case):
    runner = case.open(LINEAR, SPEC)
    good = runner.model.forward
    runner.model.linear.forward = lambda x: x * float(x.sum())
    with pytest.raises(GraphSpecError):
        runner.recapture()
    del runner.model.linear.forward
    runner.recapture()
    x = torch.randn(4)
    assert torch.equal(runner.run(x=x)["y"], runner.model.linear(x) + 1)
    assert good is not None


@pytest.mark.case("C93")
@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps, lambda r: copy.deepcopy({"r": r})])
def test_a_runner_is_neither_copied_nor_pickled_and_the_error_says_to_open_the_spec_again(case, make):
    runner = case.open(LINEAR, SPEC)
    with case.refused(ReplayError, "open the spec again"):
        make(runner)
    x = torch.randn(4)
    assert torch.equal(runner.run(x=x)["y"], runner.model.linear(x) + 1)


@pytest.mark.case("C93")
@pytest.mark.parametrize("make", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])  # noqa: S301 - its own bytes
def test_the_model_itself_can_be_copied_and_the_copy_is_independent(case, make):
    case.write(LINEAR, SPEC)
    runner = graphspec.open(case.path, device="cpu", model=torch.nn.Sequential(torch.nn.Linear(4, 4)).eval())
    with runner:
        other = make(runner.model)
        other[0].weight.data.zero_()
        x = torch.randn(4)
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))
        with graphspec.open(case.path, device="cpu", model=other) as second:
            assert torch.equal(second.run(x=x)["y"], other(x))
            assert torch.equal(runner.run(x=x)["y"], runner.model(x))


@pytest.mark.case("C93")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_open_the_spec_again_and_the_parent_is_unaffected(case):
    runner = case.open(LINEAR, SPEC)
    runner.run(x=torch.zeros(4))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            runner.run(x=torch.zeros(4))
            text = "it ran"
        except ReplayError as error:
            text = str(error)
        except BaseException as error:  # noqa: BLE001 - whatever it was is the finding
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert "open the spec again" in text
    x = torch.randn(4)
    assert torch.equal(runner.run(x=x)["y"], runner.model.linear(x) + 2)


@pytest.mark.case("C90")
def test_a_region_that_records_no_operator_and_makes_its_own_result_is_refused(case):
    model = """
        def __init__(self):
            super().__init__()
            self.table = torch.ones(4)

        def forward(self, x):
            return self.table
    """
    try:
        runner = case.open(model, SPEC)
    except (CaptureError, HazardError) as error:
        assert "region 'main'" in str(error)  # noqa: PT017
        return
    for value in (2.0, 3.0):  # else it is a pass-through of the model's tensor
        runner.model.table.fill_(value)
        assert runner.run(x=torch.zeros(4))["y"].tolist() == [value] * 4


@pytest.mark.case("C90")
def test_a_region_that_records_no_operator_and_returns_no_tensor_is_refused(case):
    with case.refused((CaptureError, HazardError), "region 'main'", "no operator"):
        case.open("def forward(self, x): return 3", SPEC)


@pytest.mark.case("C90")
def test_a_pass_through_of_inputs_records_no_operator_and_equals_eager(case):
    runner = case.open("def forward(self, x): return x, x.view(2, 2)", SPEC)
    for _ in range(3):
        x = torch.randn(4)
        got = runner.run(x=x)["y"]
        assert torch.equal(got[0], x)
        assert torch.equal(got[1], x.view(2, 2))


@pytest.mark.case("C90")
def test_a_device_that_is_not_there_is_one_clear_error(case):
    path = case.write(LINEAR, SPEC)
    with case.refused(GraphSpecError, "cuda"):
        graphspec.open(path, device="cuda:1")


@pytest.mark.case("C90")
def test_a_model_whose_tensors_are_elsewhere_is_refused_naming_device_and_tensor(case):
    case.write(LINEAR, SPEC)
    model = case.module().Model().to("meta")
    with case.refused(ModelError, "meta", "model.linear.weight", "model.n"):
        graphspec.open(case.path, device="cpu", model=model)


def test_interrupted_runs_leave_the_runner_usable_and_the_callers_modes_alone(case):
    runner = case.open("def forward(self, x): return x * 2 + 1", SPEC)
    x = torch.randn(4)
    interrupts, grad = 0, torch.is_grad_enabled()

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(300):
            torch.set_grad_enabled(number % 2 == 0)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + number % 97 / 50_000)
                while True:
                    runner.run(x=x)
            except KeyboardInterrupt:
                interrupts += 1
            assert torch.is_grad_enabled() == (number % 2 == 0)
    finally:
        torch.set_grad_enabled(grad)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts == 300
    assert torch.equal(runner.run(x=x)["y"], x * 2 + 1)
    answers = []
    other = threading.Thread(target=lambda: answers.append(runner.run(x=x)["y"]), daemon=True)
    other.start()
    other.join(30)
    assert torch.equal(answers[0], x * 2 + 1)


@pytest.mark.case("C63")
@pytest.mark.parametrize("wrong", [None, 0, ("main",), "mian"])
def test_a_sequence_of_another_name_or_kind_is_refused_with_those_there_are(case, wrong):
    runner = case.open("def forward(self, x): return x * 2", SPEC)
    with case.refused(ReplayError, "there is no sequence", "replay"):
        runner[wrong]


@pytest.mark.case("C63")
def test_a_graph_of_a_closed_runner_is_refused(case):
    runner = case.open("def forward(self, x): return x * 2", SPEC)
    runner.close()
    with case.refused(ReplayError, "closed"):
        runner.graph("main")
