"""What cannot be captured is named; capture modes, dumps, super kernels and devices are as the spec says."""

import gc
import json

import pytest
import torch
from attending import SPEC, model

import graphspec
from graphspec.errors import CaptureError, DeviceError, GraphSpecError

ADD = """
class Model(nn.Module):
    def forward(self, x):
        return x + 1
"""


def spec(head="", region=""):
    return f"""
{head}
buffers:
  x: {{shape: [4], dtype: float32}}
regions:
  main: {{call: model, inputs: [x], outputs: y{region}}}
replay: [main]
"""


def runs(runner):
    x = torch.arange(4.0)
    assert torch.equal(runner.run(x=x.npu())["y"].cpu(), x + 1)


# aclop operators fail in every way in the emulator, so this one is reached in the fifth call only: the capture.
ACLOP = """
from pathlib import Path

CALLS = Path(__file__).with_name("calls")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(2, 2)
        self.register_buffer("hidden", torch.zeros(2, 2))

    def forward(self, x):
        x = x.view(2, 2)
        with CALLS.open("ab") as calls:  # nothing that the model holds counts them
            number = calls.tell()
            calls.write(b".")
        if number < 4:
            return x + sum(tensor.sum() for tensor in (*self.cell.parameters(), self.hidden))
        return self.cell(x, (self.hidden, self.hidden))[0]  # here
"""


def test_an_operator_that_falls_back_to_aclop_is_named_with_its_region_and_line(case):
    with pytest.raises(CaptureError) as caught:
        case.open(ACLOP, spec())
    text = str(caught.value)
    assert "region 'main'" in text
    assert "lstm" in text.lower()
    assert case.line("# here") in text
    assert "DynamicRNNV2" in text
    assert "mark the region eager" in text
    runs(case.open(ADD, spec()))


# A copy from pageable host memory: an operator that runs, and that a graph cannot hold.
PAGEABLE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.ones(4)

    def forward(self, x):
        return x + self.table.to(x.device)
"""


def test_what_cannot_be_captured_is_refused_and_works_in_an_eager_region(case):
    with pytest.raises(GraphSpecError) as caught:
        case.open(PAGEABLE, spec())
    text = str(caught.value)
    assert "region 'main'" in text
    assert case.line("self.table.to") in text
    runs(case.open(PAGEABLE, spec(region=", eager: true")))


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_every_capture_mode_captures(case, mode):
    runs(case.open(ADD, spec(f"capture: {{error_mode: {mode}}}")))


def test_garbage_is_collected_before_each_capture_where_the_spec_asks_for_it(case, monkeypatch):
    collected = []
    monkeypatch.setattr(gc, "collect", lambda *_: collected.append(1))
    case.open(ADD, spec())
    before = len(collected)
    case.open(ADD, spec("capture: {gc: true}"))
    assert len(collected) > 2 * before


def test_a_graph_is_dumped_into_the_folder_that_the_spec_names(case):
    runner = case.open(ADD, spec("npu: {debug_dump: dumps}"))
    runs(runner)
    (dump,) = (runner.plan.folder / "dumps").glob("main.json")
    assert json.loads(dump.read_text())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{preload_kode: 1}", "preload_kode"),
        ("{stream_fusion: yes please}", "stream_fusion"),
        ("{aggressive_opt_strategies: {event: 1}}", "event"),
        ("{debug: {debug_sink: 1}}", "debug_sink"),
    ],
)
def test_an_option_of_super_kernels_that_torch_npu_does_not_take_is_refused_by_name(case, options, words):
    with pytest.raises(CaptureError) as caught:
        case.open(ADD, spec(f"npu: {{super_kernel: {options}}}"))
    text = str(caught.value)
    assert "region 'main': npu.super_kernel was refused" in text
    assert words in text
    runs(case.open(ADD, spec()))


def test_the_second_device_is_used_where_the_spec_says_so_and_the_first_stays_current(case):
    runner = case.open(ADD, spec("device: npu:1"), device=None)
    assert runner.device == torch.device("npu:1")
    y = runner.run(x=torch.zeros(4, device="npu:1"))["y"]
    assert y.device == torch.device("npu:1")
    assert y.tolist() == [1.0] * 4
    assert torch.npu.current_device() == 0


TOLD = """
class Model(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.offset = torch.ones(4, device=str(device))

    def forward(self, x):
        from late import K

        return x + self.offset * K
"""


@pytest.mark.parametrize("device", ["npu:0", "npu:1"])
def test_a_factory_is_told_the_device_and_its_region_imports_the_file_beside_it(case, device):
    path = case.write(TOLD, spec(), late="K = 1")
    path.write_text(path.read_text().replace("py:Model}", "py:Model, args: {device: {device: true}}}"))
    with graphspec.open(path, device=device) as runner:
        assert runner.model.offset.device == torch.device(device)
        assert runner.run(x=torch.zeros(4, device=device))["y"].tolist() == [1.0] * 4


def test_a_device_that_is_not_there_is_refused(case):
    with pytest.raises(DeviceError, match=r"there is no npu:7: this machine has npu:0 to npu:1"):
        graphspec.open(case.write(ADD, spec()), device="npu:7")


def test_a_model_that_fails_leaves_streams_modes_and_generators_as_they_were(case):
    source = """
    from pathlib import Path

    CALLS = Path(__file__).with_name("calls")


    class Model(nn.Module):
        def forward(self, x):
            with CALLS.open("ab") as calls:  # nothing that the model holds counts them
                number = calls.tell()
                calls.write(b".")
            if number == 4:
                raise ValueError("out of ideas")
            return torch.nn.functional.dropout(x, 0.5, training=True)
    """
    path = case.write(source, spec())
    model = case.module(path).Model().npu().eval()
    before = (torch.get_rng_state(), torch.npu.get_rng_state())
    with pytest.raises(GraphSpecError, match="out of ideas"):
        graphspec.open(path, device="npu", model=model)
    for state, now in zip(before, (torch.get_rng_state(), torch.npu.get_rng_state()), strict=True):
        assert torch.equal(state, now)
    runs(case.open(ADD, spec()))


def test_a_replay_of_one_runner_is_not_disturbed_by_closing_another(case):
    first, second = case.open(model(), SPEC), case.open(model(), SPEC)
    x = torch.randn(2, 4, 1, 8).npu()
    wanted = first.run(query=x, lengths=[3, 9])["y"].cpu()
    second.close()
    assert torch.equal(first.run(query=x, lengths=[3, 9])["y"].cpu(), wanted)


def test_a_capture_without_warm_up_leaves_what_the_region_writes_as_it_was(case):
    source = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.ones(4))

        def forward(self, x):
            self.seen.add_(x)
            return self.seen * 2
    """
    runner = case.open(source, spec(region=", warmup: 0"))
    assert runner.model.seen.tolist() == [1.0] * 4
    assert runner.run(x=torch.ones(4).npu())["y"].tolist() == [4.0] * 4
    assert runner.model.seen.tolist() == [2.0] * 4
