"""Updates: one argument has one source, and what does not fit is refused at its entry in the spec."""

import pytest
import torch
from click.testing import CliRunner

from graphspec.cli import group
from graphspec.errors import HazardError, InputError

MODEL = """
class Inner(nn.Module):
    def forward(self, x, s): return x * s

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, s): return self.inner(x, s) + 1
"""
SPEC = """
    params: {{s: {{type: float, default: {default}}}}}
    buffers:
      x: {{shape: [4], dtype: float32}}
    regions:
      r:
        call: model
        inputs: [x, s]
        outputs: y
        updates:
{updates}
    replay: [r]
"""


def spec(*updates, default=2.0):
    return SPEC.format(updates="\n".join(f"          - {update}" for update in updates), default=default)


@pytest.mark.parametrize(
    "updates",
    [
        ('{op: "aten::mul.Tensor", arg: other, from: s, at: [0]}', '{op: "aten::mul", arg: other, from: s, at: [0]}'),
        ('{op: "aten::mul", arg: other, from: s, within: "model.*"}',
         '{op: "aten::mul", arg: other, from: s, within: model.inner}'),
        ('{op: "aten::mul.Tensor", arg: other, from: s, at: [0]}',
         '{op: "aten::mul.Tensor", arg: other, from: s, within: model.inner, at: [0]}'),
    ],
)  # fmt: skip
def test_two_updates_that_meet_in_one_argument_are_refused_by_name(case, updates):
    with case.refused(HazardError, "GS510", "two updates", "'other' of aten::mul.Tensor", "from 's'"):
        case.open(MODEL, spec(*updates))


def test_updates_of_one_operator_within_different_modules_are_no_second_update(case):
    model = MODEL.replace("self.inner(x, s) + 1", "self.inner(x, s) + self.other(x, s)").replace(
        "self.inner = Inner()", "self.inner, self.other = Inner(), Inner()"
    )
    updates = ('{op: "aten::mul", arg: other, from: s, within: model.inner}',
               '{op: "aten::mul", arg: other, from: s, within: model.other}')  # fmt: skip
    assert case.open(model, spec(*updates)).run(x=torch.ones(4), s=3.0)["y"].tolist() == [6.0] * 4


@pytest.mark.parametrize(
    ("update", "key"),
    [
        ('{op: "aten::mul.Tensor", arg: othr, from: s}', "othr"),
        ('{op: "aten::mull", arg: other, from: s}', "aten::mull"),
        ('{op: "aten::mul", arg: other, from: s, at: [7]}', "7]"),
        ('{op: "aten::mul", arg: other, from: s, within: model.nowhere}', "model.nowhere"),
    ],
)
def test_check_places_an_update_that_does_not_fit_at_its_key_in_the_spec(case, update, key):
    path = case.write(MODEL, spec(update))
    (line,) = (number for number, text in enumerate(path.read_text().splitlines(), 1) if key in text)
    done = CliRunner().invoke(group, ["check", str(path), "--device", "cpu"])
    assert done.exit_code == 1
    assert f"model.yaml:{line}:" in done.stdout
    assert "GS510" in done.stdout


def test_a_binding_that_fits_nothing_knows_its_path_in_the_spec(case):
    with pytest.raises(HazardError) as caught:
        case.open(MODEL, spec('{op: "aten::mul.Tensor", arg: othr, from: s}'))
    paths = [found.path for found in caught.value.diagnostics if found.code == "GS510"]
    assert paths == [("regions", "r", "updates", 0, "arg")]


def test_an_infinite_default_of_an_updated_param_is_compared_with_a_finite_value(case):
    runner = case.open(MODEL, spec('{op: "aten::mul", arg: other, from: s}', default=".inf"))
    assert runner.run(x=torch.ones(4))["y"].tolist() == [float("inf")] * 4
    assert runner.run(x=torch.ones(4), s=3.0)["y"].tolist() == [4.0] * 4


@pytest.mark.parametrize("value", [1 << 63, 1 << 64, -(1 << 63) - 1])
def test_an_integer_too_large_for_the_updated_argument_is_refused_and_the_next_run_works(case, value):
    update = '{op: "aten::mul", arg: other, from: s}'
    runner = case.open(MODEL, spec(update, default="2").replace("{type: float,", "{type: int,"))
    with case.refused(InputError, "param 's'", value):
        runner.run(x=torch.ones(4), s=value)
    assert runner.run(x=torch.ones(4), s=3)["y"].tolist() == [4.0] * 4
