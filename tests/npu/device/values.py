"""Values on the device: lent results, what eager regions keep, and rows that a bucket adds."""

import pytest
import torch

from graphspec.errors import HazardError, OrderError

HEADER = """
    dims: {batch: [2, 4]}
    buffers:
      x: {shape: [batch, 2], dtype: float32}
      y: {role: output, shape: [batch, 2], dtype: float32MORE}
"""
MODEL = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("h", torch.ones(4, 2))

        def forward(self, x):
            BODY
"""


def spec(more="", rest="regions:\n      main: {call: model, inputs: [x], outputs: y}\n    replay: [main]"):
    return HEADER.replace("MORE", more) + f"    {rest}\n"


def test_a_lent_result_survives_a_recapture_and_so_do_runs(case):
    runner = case.open(MODEL.replace("BODY", "return x * 2"), spec(", copy: false"))
    x = torch.arange(8.0).reshape(4, 2).npu()
    for _ in range(3):
        lent = runner.run(x=x)["y"]
        runner.recapture()
        assert lent.cpu().tolist() == (x * 2).cpu().tolist()
        again = runner.run(x=x + 1)["y"]
        assert again.cpu().tolist() == ((x + 1) * 2).cpu().tolist()
        del lent
    runner.run(x=x)
    with pytest.raises(OrderError):
        again.cpu()


def test_rows_of_the_models_that_no_state_declares_are_refused(case):
    body = "h = self.h[:x.shape[0]]; h.mul_(.5).add_(x); return h * 1"
    with pytest.raises(HazardError, match=r"GS752.*model\.h"):
        case.open(MODEL.replace("BODY", body), spec())
    declared = spec().replace("    regions", "      h: {role: state, attr: model.h, shape: [batch, 2]}\n    regions")
    runner = case.open(MODEL.replace("BODY", body), declared)
    x = torch.zeros(3, 2).npu()
    assert runner.run(x=x)["y"].cpu().tolist() == [[0.5, 0.5]] * 3
    assert runner.model.h.cpu()[:, 0].tolist() == [0.5, 0.5, 0.5, 1]


def test_slots_that_padded_indices_overwrite_are_refused_unless_they_are_scratch(case):
    model = MODEL.replace("forward(self, x)", "forward(self, x, slots)").replace(
        "BODY", "self.h.index_copy_(0, slots, x); return x * 1"
    )
    slots = "      slots: {shape: [batch], dtype: int64, pad: 0, sample: {randint: [1, 4]}}\n"
    text = spec().replace("    regions", f"{slots}      h: {{role: state, attr: model.h}}\n    regions")
    text = text.replace("[x]", "[x, slots]")
    with pytest.raises(HazardError, match="GS752"):
        case.open(model, text)
    runner = case.open(model, text.replace("outputs: y}", "outputs: y, pad_rows: {h: [0]}}"))
    runner.run(x=torch.full((3, 2), 5.0).npu(), slots=torch.tensor([1, 2, 3]).npu())
    assert runner.model.h.cpu()[1:, 0].tolist() == [5, 5, 5]


def test_what_an_eager_region_keeps_is_its_own(case):
    model = (
        MODEL.replace("BODY", "return x * 2")
        + """
        def look(self, y, x):
            self.kept = [*getattr(self, "kept", []), y]
            return y + 1
    """
    )
    runner = case.open(
        model,
        spec(
            rest="""regions:
      main: {call: model, inputs: [x], outputs: y}
      look: {call: model.look, inputs: [y, x], outputs: z, eager: true}
    replay: [main, look]"""
        ).replace("    regions", "      z: {role: output, shape: [batch, 2], dtype: float32}\n    regions"),
    )
    for value in (1.0, 5.0, 7.0, 9.0):
        runner.run(x=torch.full((4, 2), value).npu())
    assert [each.cpu()[0, 0].item() for each in runner.model.kept] == [2, 10, 14, 18]
