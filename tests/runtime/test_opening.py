"""Opening a spec: the names a device may have, and buffers that no machine can hold."""

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch

import graphspec
from graphspec.cli import main
from graphspec.errors import DeviceError, InputError, ReplayError

MODEL = """
from torch import nn


class Model(nn.Module):
    def forward(self, x, s):
        return x * 2, s + 1
"""

SPEC = """
graphspec: 1
name: small
model: {{factory: "model.py:Model"}}
dims: {{batch: {sizes}}}
buffers:
  x: {{shape: [batch, 3], dtype: float32}}
  s: {{role: state, shape: [2], dtype: float32}}
  y: {{role: output, shape: [batch, 3], dtype: float32}}
regions:
  main: {{call: model, inputs: [x, s], outputs: [y, s]}}
replay: [main]
"""


@pytest.fixture
def spec(tmp_path):
    def write(sizes="[1, 4]"):
        (tmp_path / "model.py").write_text(MODEL)
        (tmp_path / "spec.yaml").write_text(SPEC.format(sizes=sizes))
        return str(tmp_path / "spec.yaml")

    return write


@pytest.mark.parametrize("device", ["cpu", "auto", torch.device("cpu"), torch.device("cpu", 0)])
def test_a_device_is_given_by_name_or_as_a_torch_device(spec, device):
    with graphspec.open(spec(), device=device) as runner:
        assert runner.run(x=torch.ones(2, 3))["y"].sum() == 12


@pytest.mark.parametrize("device", ["auto:3", "cpu:5", "cuda:x", "cuda:", "tpu", "", torch.device("meta")])
def test_a_device_no_spec_may_name_is_refused_with_the_names_there_are(spec, device):
    with pytest.raises(DeviceError, match="there is no device") as caught:
        graphspec.open(spec(), device=device)
    assert "one of auto, cpu, cuda, npu" in str(caught.value)


@pytest.mark.parametrize("device", [0, 1.5, True, ["cpu"]])
def test_a_device_that_is_no_name_is_refused_by_its_type(spec, device):
    with pytest.raises(InputError, match=f"device takes a name or a torch.device, and a {type(device).__name__} came"):
        graphspec.open(spec(), device=device)


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("device", ["auto:3", "cpu:5", "cuda:x", "tpu", ""])
def test_commands_refuse_the_devices_that_a_spec_may_not_name(spec, capsys, command, device):
    assert main([command, spec(), "--device", device]) == 2
    assert f"there is no device '{device}'" in capsys.readouterr().err


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy])
def test_the_states_of_a_runner_are_neither_pickled_nor_copied(spec, make):
    with graphspec.open(spec(), device="cpu") as runner:
        with pytest.raises(ReplayError, match="cannot be pickled or copied"):
            make(runner.state)
        assert dict(runner.state)["s"].shape == (2,)


def test_a_buffer_that_cannot_be_allocated_is_named_with_its_bytes(spec, capsys):
    path = spec("[1, 99999999999999]")
    with pytest.raises(DeviceError, match=re.escape("buffer 'x' needs 1,199,999,999,999,988 bytes")):
        graphspec.open(path, device="cpu")
    assert main(["run", path, "--device", "cpu"]) == 3
    assert "a reason of its own" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ("[1, 4000000000000000000]", "buffer 'x' needs 48,000,000,000,000,000,000 bytes"),
        ("[1, 9223372036854775808]", "dim 'batch' has the size 9223372036854775808"),
        ("9223372036854775808", "dim 'batch' has the size 9223372036854775808"),
    ],
)
def test_a_size_that_no_tensor_can_have_is_refused_by_name(spec, capsys, command, sizes, words):
    assert main([command, spec(sizes)]) in {1, 3}
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
    assert "a reason of its own" not in captured.err


PARAM = """
graphspec: 1
name: small
model: {factory: "model.py:Model"}
params: {s: {type: float, default: 1.0}}
buffers:
  x: {shape: [2], dtype: float32}
  y: {role: output, shape: [2], dtype: float32}
regions:
  main: {call: model, inputs: [x, s], outputs: [y, z]}
replay: [main]
"""


@pytest.mark.parametrize("text", ["", " ", "# nothing"])
def test_a_param_without_a_value_is_told_so_and_not_that_a_file_is_empty(spec, capsys, text):
    path = Path(spec())
    path.write_text(PARAM)
    assert main(["run", str(path), "--param", f"s={text}"]) == 2
    assert capsys.readouterr().err == (
        "error: --param s: no value came after the '='\n  fix: an empty text is written NAME='\"\"'\n"
    )


def test_a_value_that_is_two_documents_is_not_called_a_file(spec, capsys):
    path = Path(spec())
    path.write_text(PARAM)
    assert main(["run", str(path), "--param", "s=1\n---\n2"]) == 2
    error = capsys.readouterr().err
    assert "a second document begins in it" in error
    assert "file" not in error
