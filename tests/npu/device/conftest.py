"""Test modules that run in a process with torch_npu and the emulated CANN; ../conftest.py starts it."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import textwrap
from pathlib import Path

import pytest

if sys.modules.get("torch_npu", ...) is None:  # hidden by tests/conftest.py from every other test
    del sys.modules["torch_npu"]

import torch

import graphspec
from graphspec.backends.npu import load_torch_npu

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "cann")]

from attending import HEADER, PRELUDE  # noqa: E402  beside this file


def pytest_configure():
    reason = load_torch_npu()
    if reason is not None:
        raise pytest.UsageError(reason)


class Case:
    """Models and specs from strings, opened on the NPU."""

    def __init__(self, folder):
        self.folder = folder
        self._numbers = itertools.count()
        self._opened = []
        self.source = ""

    def write(self, model, spec, **files):
        folder = self.folder / f"case{next(self._numbers)}"
        folder.mkdir()
        self.source = PRELUDE + textwrap.dedent(model).strip("\n") + "\n"
        (folder / "model.py").write_text(self.source)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        path = folder / "model.yaml"
        path.write_text(HEADER + textwrap.dedent(spec).strip("\n") + "\n")
        return path

    def open(self, model, spec, device="npu", **files):
        runner = graphspec.open(self.write(model, spec, **files), device=device)
        self._opened.append(runner)
        return runner

    def module(self, path):
        """The written model.py, imported by itself."""
        found = importlib.util.spec_from_file_location(f"case_{path.parent.name}", path.parent / "model.py")
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module

    def line(self, text):
        (number,) = [n for n, line in enumerate(self.source.splitlines(), 1) if text in line]
        return f"model.py:{number}"

    def close(self):
        for runner in self._opened:
            runner.close()


@pytest.fixture
def case(tmp_path):
    made = Case(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def default_stream():
    """Every test begins and ends on the default stream, without modes."""
    torch.npu.set_device(0)
    before = torch.npu.default_stream()
    with torch.no_grad():
        yield
    assert torch.npu.current_stream() == before
    assert torch._C._len_torch_dispatch_stack() == 0
