"""Weights of every kind of file and value: checked whole before anything is loaded, and loaded as they are."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import graphspec
from graphspec.errors import WeightsError
from graphspec.loading import inspect
from graphspec.runtime.building.weights import StoredTensors, load_weights, read_weights

SPEC = """
graphspec: 1
model: {factory: "model.py:Model", weights: model.safetensors.index.json}
buffers:
  x: {shape: [3], dtype: float32}
  y: {role: output, shape: [3], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y}
"""

MODEL = """
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(3, 3) for _ in range(3))
        self.head.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(self.first(x)))
"""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(3, 3) for _ in range(3))
        self.head.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(self.first(x)))


def state():
    torch.manual_seed(1)
    return {name: torch.randn_like(tensor) for name, tensor in Model().state_dict().items() if name != "head.weight"}


SHARDS = {
    "one.safetensors": ("first.weight", "first.bias"),
    "two.safetensors": ("second.weight", "second.bias", "head.bias"),
}


def sharded(folder, tensors, **changes):
    """An index and its files; ``changes`` goes to what is listed for a key."""
    names = {name: file for file, held in SHARDS.items() for name in held if name in tensors}
    for file in SHARDS:
        save_file({name: tensors[name] for name, where in names.items() if where == file}, folder / file)
    listed = {**names, **{key.replace("__", "."): file for key, file in changes.items()}}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": listed}))
    return path


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path / "spec.yaml"


def test_a_sharded_checkpoint_with_tied_weights_is_loaded_from_its_index(spec):
    first = state()
    path = sharded(spec.parent, first)
    with graphspec.open(spec, device="cpu") as runner:
        for name, value in first.items():
            assert torch.equal(runner.model.state_dict()[name], value)
        assert torch.equal(runner.model.head.weight, first["first.weight"])
        second = {name: value + 1 for name, value in first.items()}
        sharded(spec.parent, second)
        runner.load_weights(path)
        x = torch.ones(3)
        assert torch.equal(runner.run(x=x)["y"], runner.model(x))
        assert torch.equal(runner.model.second.weight, second["second.weight"])


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def gone(*files):
    return lambda folder: [(folder / file).unlink() for file in files]


def says(text, file="model.safetensors.index.json"):
    return lambda folder: (folder / file).write_text(text)


def other(tensors, **changes):
    return lambda folder: sharded(folder, {**state(), **tensors}, **changes)


def cut(folder):
    (folder / "two.safetensors").write_bytes((folder / "two.safetensors").read_bytes()[:-4])


def a_folder(folder):
    (folder / "one.safetensors").unlink()
    (folder / "one.safetensors").mkdir()


def without(key):
    return lambda folder: sharded(folder, {name: value for name, value in state().items() if name != key})


WRONG = {
    "a file is missing": (gone("two.safetensors"), "two.safetensors: it does not exist"),
    "files are missing": (gone(*SHARDS), "one.safetensors: it does not exist\n  two.safetensors: it does not exist"),
    "a file is cut off": (cut, "two.safetensors cannot be read"),
    "a file is a pointer": (says(POINTER, "one.safetensors"), "one.safetensors: it is a pointer of Git LFS"),
    "a file is a folder": (a_folder, "one.safetensors: it is a folder"),
    "a file lacks a key": (other({}, first__bias="two.safetensors"), "first.bias: not in two.safetensors"),
    "a shape is another": (
        other({"head.bias": torch.ones(4)}),
        r"head.bias: the model wants \[3\], the weights have \[4\]",
    ),
    "the index lacks a key": (without("second.bias"), "second.bias: missing"),
    "the model lacks a key": (
        other({"head.bias": torch.ones(3), "extra": torch.ones(3)}, extra="two.safetensors"),
        "extra",
    ),
    "the index is no JSON": (says("{"), "it is not JSON"),
    "the index is a list": (says("[]"), "it has no `weight_map`"),
    "the index names no file": (says('{"weight_map": {"a": 1}}'), "it has no `weight_map`"),
    "the index is a pointer": (says(POINTER), "it is a pointer of Git LFS"),
    "the index is not there": (gone("model.safetensors.index.json"), "it does not exist"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_sharded_checkpoint_with_a_fault_is_refused_by_name_and_nothing_is_loaded(spec, wrong):
    path = sharded(spec.parent, state())
    with graphspec.open(spec, device="cpu") as runner:
        before = {name: value.clone() for name, value in runner.model.state_dict().items()}
        spoil, said = WRONG[wrong]
        spoil(spec.parent)
        with pytest.raises(WeightsError, match=said):
            runner.load_weights(path)
        for name, value in runner.model.state_dict().items():
            assert torch.equal(value, before[name])
    with pytest.raises(WeightsError, match=said):
        graphspec.open(spec, device="cpu")


def test_keys_and_shapes_are_checked_before_the_bytes_of_a_tensor_are_read(tmp_path, monkeypatch):
    path = sharded(tmp_path, {**state(), "second.weight": torch.ones(3, 4)})
    read = []
    monkeypatch.setattr(StoredTensors, "__getitem__", lambda _, name: read.append(name))
    with pytest.raises(WeightsError, match=r"second\.weight: the model wants \[3, 3\], the weights have \[3, 4\]"):
        load_weights(Model(), read_weights(path))
    assert read == []


def test_validate_warns_of_the_shards_that_are_not_there(spec):
    assert [each.code for each in inspect(spec)[1]] == ["GS215"]
    sharded(spec.parent, state())
    assert inspect(spec)[1] == []
    (spec.parent / "two.safetensors").unlink()
    (found,) = inspect(spec)[1]
    assert (found.code, found.severity) == ("GS215", "warning")
    assert "two.safetensors" in found.message


NOT_A_NUMBER = float("nan")


@pytest.mark.parametrize("kind", [".safetensors", ".pt", "mapping"])
@pytest.mark.parametrize("tied", ["one name", "both names"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_weights_with_nan_are_loaded_as_they_are(tmp_path, kind, tied, dtype):
    model = Model().to(dtype)
    model.head.weight = model.first.weight
    new = {name: value.to(dtype) for name, value in state().items()}
    new["first.weight"] = torch.tensor([[NOT_A_NUMBER, 1, -0.0]] * 3).to(dtype)
    if tied == "both names":
        new["head.weight"] = new["first.weight"].clone()
    weights = new
    if kind != "mapping":
        (save_file if kind == ".safetensors" else torch.save)(new, tmp_path / f"w{kind}")
        weights = read_weights(tmp_path / f"w{kind}")
    load_weights(model, weights)
    for name, value in new.items():
        assert torch.equal(model.state_dict()[name].view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2])
def test_tied_weights_with_other_values_are_refused_also_where_one_is_nan(dtype):
    model = Model().to(dtype)
    model.head.weight = model.first.weight
    new = {name: value.to(dtype) for name, value in state().items()}
    other = new["first.weight"].float().clone()
    other[0, 0] = NOT_A_NUMBER
    with pytest.raises(WeightsError, match=r"head\.weight: is tied to first\.weight"):
        load_weights(model, {**new, "head.weight": other.to(dtype)})


E8, F32, F16 = torch.float8_e4m3fn, torch.float32, torch.float16


@pytest.mark.parametrize(
    ("have", "given", "value", "fits"),
    [
        (F32, E8, 1.5, True),
        (E8, F32, 1.5, True),
        (F16, E8, 448.0, True),
        (E8, F32, 1e6, False),
        (F16, F32, 1e6, False),
        (torch.bfloat16, F16, 65504.0, True),
        (F32, torch.int64, 3, True),
        (F32, torch.complex64, 1j, False),
        (torch.int64, E8, 2.0, True),
        (torch.int64, E8, 1.5, False),
    ],
)
def test_weights_of_another_dtype_are_loaded_where_their_values_fit(tmp_path, have, given, value, fits):
    module = nn.Module()
    module.register_buffer("w", torch.zeros(2, dtype=have))
    save_file(
        {"w": torch.full((2,), value, dtype=torch.complex64 if given.is_complex else torch.float64).to(given)},
        tmp_path / "w.safetensors",
    )
    weights = read_weights(tmp_path / "w.safetensors")
    if fits:
        load_weights(module, weights)
        assert module.w.tolist() == torch.full((2,), value).to(have).tolist()
    else:
        with pytest.raises(WeightsError, match="do not fit"):
            load_weights(module, weights)


def test_a_mapping_of_packed_numbers_is_refused_by_name():
    module = nn.Module()
    module.register_buffer("w", torch.zeros(2))
    with pytest.raises(WeightsError, match=r"w: the model wants torch\.float32"):
        load_weights(module, {"w": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)})


def test_one_safetensors_file_is_loaded_tensor_by_tensor(tmp_path):
    save_file(state(), tmp_path / "w.safetensors")
    weights = read_weights(Path(tmp_path / "w.safetensors"))
    assert isinstance(weights, StoredTensors)
    assert len(weights) == len(dict(weights)) == 5
    model = Model()
    load_weights(model, weights)
    assert torch.equal(model.first.bias, state()["first.bias"])
