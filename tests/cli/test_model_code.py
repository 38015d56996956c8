"""What the model's own code may do to a command: end it, print into it, or hand it what it cannot use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphspec.cli import main

MODEL = """
import contextlib
import os
import sys

import torch
from torch import nn

{at_import}


class Batch:
    def __init__(self, x):
        self.x = x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {in_factory}
        self.linear = nn.Linear(3, 3)
        self.register_buffer("scope", torch.zeros(3))

    def forward(self, x):
        {in_forward}
        return self.linear(x)

    def batched(self, batch):
        assert isinstance(batch, Batch)
        return self.linear(batch.x)

    def number(self, x):
        return 3

    @property
    def broken(self):
        raise ValueError("no such part")

    @property
    def leaving(self):
        sys.exit(0)

    @contextlib.contextmanager
    def failing(self, x):
        yield
        raise ValueError("no way out")


class Fixed(Model):
    def train(self, mode=True):
        raise ValueError("always in eval mode")


class Rooted(Model):
    def to(self, *args, **kwargs):
        raise ValueError("stays where it is")


def meta():
    return nn.Linear(3, 3, device="meta")
"""

SPEC = """
graphspec: 1
name: small
model: {{factory: "model.py:{factory}"{more}}}
dims: {{batch: [1, 4]}}
buffers:
  x: {{shape: [batch, 3], dtype: float32}}
  y: {{role: output, shape: [batch, 3], dtype: float32}}
regions:
  main: {{call: {call}, inputs: {inputs}, outputs: y{around}}}
replay: [main]
"""

COMMANDS = [("run", "--steps", "1", "--device", "cpu"), ("check",)]


@pytest.fixture
def write(tmp_path):
    def written(*, factory="Model", more="", call="model", inputs="[x]", around="", **code):
        places = {"at_import": "", "in_factory": "pass", "in_forward": "pass", **code}
        (tmp_path / "model.py").write_text(MODEL.format(**places))
        path = tmp_path / "spec.yaml"
        path.write_text(SPEC.format(factory=factory, more=more, call=call, inputs=inputs, around=around))
        return str(path)

    return written


def graphspec(*arguments, cwd=None):
    command = [sys.executable, "-m", "graphspec", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", ["0", "1", "None", "'bye'"])
@pytest.mark.parametrize("place", ["at_import", "in_factory"])
def test_a_model_that_calls_sys_exit_has_failed_whatever_it_exits_with(write, capsys, command, value, place):
    code = main([*command, write(**{place: f"sys.exit({value})"})])
    captured = capsys.readouterr()
    assert code == 3
    assert captured.out == ""
    said = "SystemExit" if value == "None" else f"SystemExit: {value}".replace("'", "")
    assert f"failed: {said}\n" in captured.err
    assert "a reason of its own" not in captured.err


def test_a_forward_that_calls_sys_exit_is_a_failure_of_its_region(write, capsys):
    assert main([*COMMANDS[0], write(in_forward="sys.exit(0)")]) == 3
    assert "region 'main' (model) failed: SystemExit: 0" in capsys.readouterr().err
    assert main(["check", write(in_forward="sys.exit(0)")]) == 1
    assert "region 'main' (model) failed: SystemExit: 0" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise type('Own', (BaseException,), {})('odd')", "Own: odd"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})", "Mute: its message cannot be made"),
    ],
)
def test_whatever_a_factory_raises_is_its_own_failure(write, capsys, command, body, said):
    assert main([*command, write(in_factory=body)]) == 3
    error = capsys.readouterr().err
    assert f"the factory model.py:Model failed: {said}" in error
    assert "a reason of its own" not in error


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"factory": "meta"}, "model.weight on meta"),
        ({"more": ", dtype: int64"}, "model.dtype is int64"),
        ({"more": ", dtype: bool"}, "model.dtype is bool"),
        ({"factory": "Fixed"}, "setting what model.py:Fixed returned to eval failed: ValueError: always in eval mode"),
        ({"factory": "Rooted"}, "moving what model.py:Rooted returned to cpu failed: ValueError: stays where it is"),
        ({"call": "model.broken"}, "region 'main': reading 'broken' failed: ValueError: no such part"),
        ({"call": "model.leaving"}, "region 'main': reading 'leaving' failed: SystemExit: 0"),
        ({"around": ", around: model.number"}, "around: model.number) returned a int, not a context manager"),
        ({"around": ", around: model.scope"}, "around: model.scope is a tensor, not a callable"),
        ({"around": ", around: model.failing"}, "around: model.failing) failed: ValueError: no way out"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_saying_what_it_has(write, capsys, command, changes, words):
    assert main([*command, write(**changes)]) in {1, 3}
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
    assert "a reason of its own" not in captured.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_state_whose_attribute_cannot_be_read_is_refused_with_the_models_own_exception(write, capsys, command):
    path = Path(write())
    path.write_text(path.read_text().replace("buffers:", "buffers:\n  kept: {role: state, attr: model.broken}"))
    assert main([*command, str(path)]) in {1, 3}
    captured = capsys.readouterr()
    assert "buffer 'kept': reading 'broken' failed: ValueError: no such part" in captured.out + captured.err
    assert "a reason of its own" not in captured.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_file_is_executed_once_also_for_what_its_arguments_are_made_with(write, tmp_path, capsys, command):
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('.')"
    spec = write(at_import=count, call="model.batched", inputs='[{make: "model.py:Batch", with: {x: x}}]')
    assert main([*command, spec]) == 0, capsys.readouterr().err
    assert (tmp_path / "count").read_text() == "."


@pytest.mark.parametrize("command", COMMANDS)
def test_an_edited_model_file_is_read_anew_by_the_next_command(write, capsys, command):
    assert main([*command, write()]) == 0
    assert main([*command, write(in_factory="raise ValueError('edited')")]) == 3
    assert "edited" in capsys.readouterr().err
