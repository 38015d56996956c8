"""Files of tensors on the command line: what cannot be read or written is one line that names the file and says why."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import graphspec
from graphspec.cli import main
from graphspec.errors import WeightsError
from graphspec.runtime.values.files import write_tensors

MODEL = """
import torch
from torch import nn


class Model(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)

    def forward(self, x):
        return super().forward(x), x.to(torch.bfloat16)


def counted():
    open("built", "w").close()
    return Model()
"""

SPEC = """
graphspec: 1
name: small
model: {{factory: "model.py:counted"{model}}}
buffers:
  x: {{shape: [4, 3], dtype: float32{x}}}
  {result}: {{role: output, shape: [4, 3], dtype: float32}}
  half: {{role: output, shape: [4, 3], dtype: bfloat16}}
regions:
  main: {{call: model, inputs: [x], outputs: [{result}, half]}}
replay: [main]
"""


def written(name):
    path = Path(name)
    kind = path.stem
    if kind == "folder":
        path.mkdir()
    elif path.suffix == ".npy" and kind not in ("junk", "pointer"):
        arrays = {
            "text": np.array(["a"]),
            "date": np.array(["2020-01-01"], dtype="datetime64[D]"),
            "struct": np.zeros(2, dtype=[("a", int)]),
            "long": np.zeros(2, dtype=np.longdouble),
            "object": np.array([{}], dtype=object),
        }
        np.save(path, arrays[kind], allow_pickle=True)
    elif kind == "code":
        path.write_bytes(pickle.dumps({"x": pickle.loads}))
    elif kind == "class":
        torch.save({"x": torch.nn.Linear(1, 1)}, path)
    elif kind == "script":
        torch.jit.script(torch.nn.Linear(1, 1)).save(path)
    elif kind == "pointer":
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind.startswith("long"):
        return str(path)
    elif kind == "list":
        torch.save([1], path)
    else:
        path.write_bytes({"empty": b"", "hello": b"hello", "junk": b"junk" * 9}[kind])
    return str(path)


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(model="", x="", result="y"):
        Path("model.py").write_text(MODEL)
        Path("spec.yaml").write_text(SPEC.format(model=model, x=x, result=result))
        return "spec.yaml"

    return write


def run(*arguments):
    return main(["run", "--steps", "1", "--device", "cpu", "--no-check", *arguments])


KINDS = ("empty", "hello", "junk", "folder", "pointer", "pipe", f"long{'g' * 300}")
CODE = {"code.pt": "", "class.pt": "it holds torch.nn.modules.linear.Linear, which is code", "script.pt": "TorchScript"}
TORCH = [*(f"{kind}{suffix}" for kind in KINDS for suffix in (".pt", ".safetensors")), *CODE]
NUMPY = [f"{kind}.npy" for kind in ("text", "date", "struct", "long", "object", "junk", "pointer")]


@pytest.mark.parametrize("name", [*NUMPY, *TORCH, "list.pt"])
def test_an_input_file_that_cannot_be_read_is_one_line_with_its_name_and_exit_code_2(spec, capsys, name):
    assert run(spec(), "--input", f"x={written(name)}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert CODE.get(name, "") in line
    assert not advice(line)
    assert not Path("built").exists()


def advice(line):
    """What torch says a user may do to run the code in a file after all."""
    return re.search(r"weights_only|safe_globals|trusted", line)


@pytest.mark.parametrize("name", ["text.npy", "hello.pt", "junk.safetensors", "class.pt"])
def test_a_sample_file_that_cannot_be_read_is_one_line_with_its_name(spec, capsys, name):
    assert run(spec(x=f", sample: {{file: {written(name)}}}")) == 2
    error = capsys.readouterr().err
    assert "a reason of its own" not in error
    assert f"{name} cannot be read" in error


@pytest.mark.parametrize("name", [*TORCH, "list.pt"])
def test_weights_that_cannot_be_read_are_a_weights_error_with_the_name_of_the_file(spec, name):
    path = written(name)
    with pytest.raises(WeightsError, match=f"the weights file .*{name} cannot be read: ") as error:
        graphspec.open(spec(model=f", weights: {path}"), device="cpu")
    assert not advice(str(error.value))
    assert ("git lfs pull" in str(error.value)) == ("pointer" in name)
    with graphspec.open(spec(), device="cpu") as runner:
        with pytest.raises(WeightsError, match=f"the weights file .*{name} cannot be read: "):
            runner.load_weights(path)
        with pytest.raises(WeightsError, match="cannot be read: it is a folder"):
            runner.load_weights(".")
        runner.run(x=torch.ones(4, 3))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("where", ["folder", "/proc/y", "loop"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_built(spec, capsys, suffix, where):
    path = Path(f"{where}{suffix}")
    if where == "folder":
        path.mkdir()
    elif where == "loop":
        path.symlink_to(path)
    assert run(spec(), "--output", str(path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --output: {path.absolute()} cannot be written: ")
    assert not Path("built").exists()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_run_that_is_refused_leaves_no_output_and_an_older_one_as_it_was(spec, suffix):
    new, old, link = Path(f"new{suffix}"), Path(f"old{suffix}"), Path(f"link{suffix}")
    old.write_text("before")
    link.symlink_to(f"target{suffix}")
    for path in (new, old, link):
        assert run(spec(model=", args: {no: 1}"), "--output", str(path)) == 3
    assert not new.exists()
    assert old.read_text() == "before"
    assert link.is_symlink()
    assert not link.exists()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_an_output_that_fails_at_the_end_still_has_its_report_on_stdout(spec, capsys, monkeypatch, suffix):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zipfile.ZipFile.open", full)
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert run(spec(), "--output", f"y{suffix}") == 2
    captured = capsys.readouterr()
    assert "results" in captured.out
    assert captured.err.splitlines()[-1].endswith(f"y{suffix} cannot be written: No space left on device")


@pytest.mark.parametrize(("suffix", "read"), [(".npz", np.load), (".safetensors", load_file)])
@pytest.mark.parametrize("result", ["y", "file"])
def test_an_output_follows_a_link_and_has_the_mode_of_any_new_file(spec, suffix, read, result):
    link, target = Path(f"link{suffix}"), Path(f"target{suffix}")
    link.symlink_to(target)
    before = os.umask(0o022)
    try:
        assert run(spec(result=result), "--output", str(link)) == 0
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o644
    found = read(str(target))
    assert set(found) == {result, "half"}
    assert len({float(value) for value in torch.as_tensor(found["half"]).flatten()}) > 1


@pytest.mark.parametrize(("suffix", "read"), [(".npz", np.load), (".safetensors", load_file)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.bool, torch.complex64])
def test_results_of_every_dtype_are_written_with_their_values(tmp_path, suffix, read, dtype):
    value = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    write_tensors(tmp_path / f"y{suffix}", {"y": value.T, "z": value.T})
    assert torch.equal(torch.as_tensor(read(str(tmp_path / f"y{suffix}"))["y"]).to(dtype), value.T)


def test_an_input_of_a_kind_that_has_no_rows_is_refused_by_name(spec, capsys):
    torch.save(torch.ones(4, 3).to_sparse(), "sparse.pt")
    assert run(spec(), "--input", "x=sparse.pt") == 2
    assert "sparse.pt holds a torch.sparse_coo tensor" in capsys.readouterr().err
    torch.save(torch.nn.Parameter(torch.ones(4, 3)), "parameter.pt")
    assert run(spec(), "--input", "x=parameter.pt") == 0


@pytest.mark.parametrize("what", ["factory", "weights", "sample", "make", "handler"])
@pytest.mark.parametrize("name", [f"{'long' * 80}", "folder", "no\\0such"])
def test_a_name_that_no_file_can_have_is_a_finding_at_its_place(spec, capsys, what, name):
    suffix = {"weights": ".pt", "sample": ".npy"}.get(what, ".py")
    file = f"{name}{suffix}"
    if name == "folder":
        Path(file).mkdir()
    changes = {"weights": {"model": f', weights: "{file}"'}, "sample": {"x": f', sample: {{file: "{file}"}}'}}
    path = spec(**changes.get(what, {}))
    text = Path(path).read_text()
    if what == "factory":
        text = text.replace("model.py:counted", f"{file}:counted")
    elif what == "make":
        text = text.replace("[x]", f'[{{make: "{file}:Batch", with: {{x: x}}}}]')
    elif what == "handler":
        text += f'npu: {{handlers: ["{file}:register"]}}\n'
    Path(path).write_text(text)
    code = main(["validate", path])
    shown = capsys.readouterr().out
    assert code == (0 if what == "weights" else 1)
    assert ("GS215" if what == "weights" else "GS214") in shown
    assert "cannot be read" in shown
