"""From the spec's `model` to a model: what the factory is told, what it may leave behind, how its faults are told."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import graphspec
from graphspec.cli import main
from graphspec.errors import GraphSpecError, ModelError

SPEC = """
graphspec: 1
name: small
model: {{factory: "model.py:build", args: {args}{mode}}}
buffers:
  x: {{shape: [2], dtype: float32}}
  y: {{role: output, shape: [2], dtype: float32}}
{more}regions:
  main: {{call: {call}, inputs: {inputs}, outputs: {outputs}{keys}}}
"""

MODEL = """
import contextlib
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, made=None):
        super().__init__()
        self.made = made
        self.states = {{0: torch.zeros(2), "two": torch.zeros(2), -1: torch.zeros(2)}}
        self.layers = nn.ModuleList([nn.Linear(2, 2)])
        self.functions = {{7: lambda x: x * 7, "double": lambda x: x * 2}}

    def forward(self, x, state=None):
        return x * 2 if self.made is None else x + self.made

    def counting(self, x):
        self.states[0].add_(x)
        return {{3: self.states[0] * 1, "t": (x, [x * 2])}}

    def surroundings(self, *args):
        return contextlib.nullcontext()

def build({signature}):
    {body}
"""


@pytest.fixture
def spec(tmp_path):
    def write(signature="", body="return Model()", args="{}", **parts):
        (tmp_path / "model.py").write_text(MODEL.format(signature=signature, body=body))
        path = tmp_path / "spec.yaml"
        plain = {"mode": "", "call": "model", "inputs": "[x]", "outputs": "y", "keys": "", "more": ""}
        path.write_text(SPEC.format(args=args, **{**plain, **parts}))
        return path

    return write


def run(path):
    with graphspec.open(path, device="cpu") as runner:
        return runner.run(x=torch.ones(2))["y"].tolist()


def refused(path, capsys):
    """What `run` and `check` say, the same."""
    with pytest.raises(ModelError) as error:
        graphspec.open(path, device="cpu")
    assert main(["check", str(path)]) == 3
    assert str(error.value) in capsys.readouterr().err
    return str(error.value)


@pytest.mark.parametrize("where", ["device", "torch.device(device)", "str(device)", "device.type", "more[0]['where']"])
def test_a_factory_that_allocates_is_told_the_device_of_the_graphs(spec, where):
    body = f"assert device == torch.device('cpu'); return Model(torch.ones(2, device={where}))"
    path = spec("device, more", body, "{device: {device: true}, more: [{where: {device: true}}]}")
    assert run(path) == [2, 2]
    assert main(["check", str(path), "--device", "npu"]) == 0  # what it makes there is on the device


def test_a_tensor_that_a_factory_makes_elsewhere_is_found_also_where_it_is_told_the_device(spec, capsys):
    path = spec("device", "return Model(torch.ones(2))", "{device: {device: true}}")
    assert main(["check", str(path), "--device", "npu"]) == 1
    assert "GS746" in capsys.readouterr().out


def test_only_the_very_form_is_the_device(spec):
    body = "assert (a, b, c) == ({'device': 'cpu'}, {'device': True, 'n': 1}, {'device': False}); return Model()"
    assert run(spec("a, b, c", body, "{a: {device: cpu}, b: {device: true, n: 1}, c: {device: false}}")) == [2, 2]


@pytest.mark.parametrize(
    ("signature", "args", "said"),
    [
        (
            "layers=1",
            "{layer: 3}",
            "the factory model.py:build takes no argument 'layer'\n  fix: did you mean `layers`?",
        ),
        ("layers, *, width=2", "{layers: 1, wdith: 3}", "takes no argument 'wdith'\n  fix: did you mean `width`?"),
        ("", "{a: 3, b: 4}", "takes no argument 'a', 'b'\n  fix: it takes none"),
        ("layers, width", "{layers: 3}", "needs 'width'\n  fix: give it under `model.args`; it takes layers, width"),
        ("layers, **more", "{width: 3}", "needs 'layers'\n  fix: give it under `model.args`; it takes layers"),
    ],
)
def test_a_factory_called_with_other_arguments_than_it_takes_is_refused_with_the_nearest(
    spec, capsys, signature, args, said
):
    assert said in refused(spec(signature, args=args), capsys)


def test_a_type_error_of_the_factorys_own_is_its_own(spec, capsys):
    said = refused(spec("a", "int(2, 3, 4)", "{a: 3}"), capsys)
    assert "the factory model.py:build failed: TypeError: int() takes" in said


@pytest.mark.parametrize(
    ("device", "fix"),
    [("cdua", "did you mean 'cuda'?"), ("cpuu:0", "did you mean 'cpu'?"), ("gpu", "{device: {device: true}}")],
)
def test_a_device_that_torch_does_not_know_is_refused_with_what_to_write(spec, device, fix):
    with pytest.raises(ModelError) as error:
        graphspec.open(spec("device", "return Model(torch.ones(2, device=device))", f"{{device: '{device}'}}"))
    assert fix in error.value.hint


@pytest.mark.parametrize("end", ["return Model()", "raise KeyError('own')"])
@pytest.mark.parametrize("before", [None, "cpu"])
def test_a_factory_that_leaves_meta_as_the_default_device_is_refused_and_it_is_put_back(spec, capsys, end, before):
    torch.set_default_device(before)
    try:
        said = refused(spec(body=f"torch.set_default_device('meta'); {end}"), capsys)
        assert ("default device at meta" if "return" in end else "KeyError: 'own'") in said
        assert torch.get_default_device() == torch.device("cpu")
    finally:
        torch.set_default_device(None)
    assert run(spec()) == [2, 2]


@pytest.mark.parametrize(
    ("call", "outputs", "expected"),
    [
        ("model.functions.7", "y", [7, 7]),
        ("model.functions.double", "y", [2, 2]),
        ("model.counting", "{y: '3'}", [1, 1]),
        ("model.counting", "{y: t.1.0}", [2, 2]),
    ],
)
def test_a_path_goes_through_integer_keys_of_dicts(spec, call, outputs, expected):
    more = '  s: {role: state, attr: "model.states.0"}\n' if "counting" in call else ""
    path = spec(call=call, outputs=outputs, more=more)
    assert run(path) == expected
    assert main(["check", str(path), "--device", "cpu"]) == 0


@pytest.mark.parametrize("key", ["0", "two", "*"])
def test_a_state_may_be_an_entry_of_a_dict_whatever_its_key(spec, key):
    path = spec(more=f'  s: {{role: state, attr: "model.states.{key}"}}\n')
    with graphspec.open(path, device="cpu") as runner:
        runner.model.states[0].fill_(3)
        runner.run(x=torch.ones(2))
        runner.reset()
        assert runner.model.states[0].tolist() == ([0, 0] if key in "0*" else [3, 3])


def state_at(attr):
    return {"more": f'  s: {{role: state, attr: "{attr}"}}\n'}


NOWHERE = [
    ({"call": "model.layers.0.wieght"}, "regions.main.call", "model.layers.0 (a Linear) has no 'wieght'", "'weight'"),
    (
        {"call": "model.functions.8"},
        "regions.main.call",
        "model.functions (a dict with the keys 7, 'double') has no '8'",
        "",
    ),
    ({"call": "model.layers.1"}, "regions.main.call", "model.layers (a ModuleList) has no '1'", ""),
    (
        {"keys": ", around: model.sourroundings"},
        "regions.main.around",
        "model (a Model) has no 'sourroundings'",
        "'surroundings'",
    ),
    ({"keys": ", around: model.made"}, "regions.main.around", "around: model.made is a NoneType, not a callable", ""),
    (state_at("model.states.1"), "buffers.s.attr", "model.states (a dict with the keys 0, 'two', -1) has no '1'", ""),
    (state_at("model.layers.*.scale"), "buffers.s.attr", "model.layers.0 (a Linear) has no 'scale'", ""),
    (state_at("model.layers.*"), "buffers.s.attr", "leads to no tensor: model.layers.0 is a Linear", ""),
]


@pytest.mark.parametrize(("changes", "place", "said", "meant"), NOWHERE)
def test_a_path_that_leads_nowhere_says_where_it_stops_and_points_at_its_key(spec, capsys, changes, place, said, meant):
    path = spec(**changes)
    assert main(["check", str(path), "--device", "cpu", "--format", "json"]) == 1
    (found,) = (each for each in json.loads(capsys.readouterr().out)["diagnostics"] if each["code"] == "GS740")
    assert ".".join(found["path"]) == place
    assert found["message"].endswith(said)
    assert meant in (found["hint"] or "")
    with pytest.raises(GraphSpecError, match=re.escape(said)):
        graphspec.open(path, device="cpu")


def modes(train=(), model=None):
    model = model or nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.ReLU()))
    model.eval()
    for name in train:
        model.get_submodule(name).training = True
    return model


@pytest.mark.parametrize(
    ("model", "mode", "named"),
    [
        (modes([""]), "", "model"),
        (modes(["1.0"]), "", "model.1.0"),
        (modes(["1.0", "0"]), "", "model.0, model.1.0"),
        (modes(), ", mode: train", "model, model.0, model.1, model.1.0, model.1.1"),
        (nn.Sequential(*[nn.ReLU() for _ in range(20)]), "", "model.6 and 13 more"),
    ],
)
def test_a_given_model_in_another_mode_is_refused_naming_its_modules_and_both_ways_out(spec, model, mode, named):
    path = spec(mode=mode)
    with pytest.raises(ModelError) as error:
        graphspec.open(path, device="cpu", model=model)
    assert error.value.message.endswith(named)
    way, other = ("model.train()", "mode: eval") if mode else ("model.eval()", "mode: train")
    assert way in error.value.hint
    assert other in error.value.hint
    model.train(bool(mode))
    graphspec.open(path, device="cpu", model=model, capture=False).close()


class Frozen(nn.Sequential):
    def train(self, mode=True):  # noqa: FBT002 - torch's own signature
        super().train(mode)
        self[1].eval()
        return self


def test_a_model_that_decides_about_the_modes_below_it_may_be_given(spec):
    model = Frozen(nn.Linear(2, 2), nn.Dropout()).train()
    graphspec.open(spec(mode=", mode: train"), device="cpu", model=model, capture=False).close()


def test_a_given_model_may_be_in_any_mode_where_every_region_sets_its_own(spec):
    with graphspec.open(spec(keys=", mode: eval"), device="cpu", model=modes([""])) as runner:
        assert runner.model.training


def test_the_folder_of_the_process_may_be_gone(spec, tmp_path, monkeypatch, capsys):
    path = spec()

    def gone(*args):  # a command that loads torch leaves the folder, so each is in one anew
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        return main([*args])

    assert gone("validate", "spec.yaml") == 1
    assert "there is no file spec.yaml" in capsys.readouterr().out
    assert gone("validate", str(path)) == 0
    assert gone("run", str(path), "--device", "cpu", "--steps", "1", "--no-check") == 0
    assert gone("run", str(path), "--device", "cpu", "--output", "y.npz") == 2
    assert "the working directory was deleted" in capsys.readouterr().err
    assert gone("run", str(path), "--device", "cpu", "--input", "x=x.npy") == 2


def test_in_a_folder_that_is_gone_a_program_says_so_instead_of_loading_torch(tmp_path):
    (tmp_path / "gone").mkdir()
    script = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd()); import graphspec.recording"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert "DeviceError: the current folder was deleted, and torch cannot be loaded in it" in done.stderr
