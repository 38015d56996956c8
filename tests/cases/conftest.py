"""Cases: a model and a spec, written from strings, opened on the CPU, and held against the model's own eager code.

Each test carries the id of the case it shows: ``@pytest.mark.case("C01")``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import graphspec
from graphspec.errors import GraphSpecError, HazardError, ModelError
from graphspec.runtime.check import check_spec

sys.path.insert(0, str(Path(__file__).parent))  # steps.py

PRELUDE = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
HEADER = {"graphspec": "graphspec: 1", "name": "name: case", "model": "model: {factory: model.py:Model}"}


def pytest_configure(config):
    config.addinivalue_line("markers", "case(*ids): the cases this test shows")


class Case:
    """One model.py and one model.yaml. A model given as bare methods becomes ``class Model(nn.Module)``."""

    def __init__(self, folder):
        self._folder = folder
        self._numbers = itertools.count()
        self._opened = []
        self.refused_at_capture = []
        self.needs_values = False  # what is refused shows in values only, which `check` has not
        self.source = ""

    def write(self, model, spec):
        """The path of the spec, in a folder of its own."""
        folder = self._folder / f"case{next(self._numbers)}"
        folder.mkdir()
        model, spec = textwrap.dedent(model).strip("\n"), textwrap.dedent(spec).strip("\n")
        if not re.search(r"^(class|def) Model\b", model, re.MULTILINE):
            model = f"class Model(nn.Module):\n{textwrap.indent(model, '    ')}"
        self.source = PRELUDE + model + "\n"
        (folder / "model.py").write_text(self.source)
        header = [line for key, line in HEADER.items() if not re.search(rf"^{key}:", spec, re.MULTILINE)]
        path = folder / "model.yaml"
        path.write_text("\n".join([*header, spec]) + "\n")
        self.path = path
        return path

    def open(self, source, spec, **options):
        """The opened runner; closed when the test ends."""
        path = self.write(source, spec)
        try:
            runner = graphspec.open(path, device="cpu", **options)
        except HazardError:
            self.refused_at_capture.append(path)
            raise
        self._opened.append(runner)
        return runner

    def line(self, text):
        """``model.py:LINE`` of the one source line that holds ``text``."""
        (number,) = [n for n, line in enumerate(self.source.splitlines(), 1) if text in line]
        return f"model.py:{number}"

    def module(self):
        """The written model.py, imported anew."""
        found = importlib.util.spec_from_file_location(
            f"eager_{id(self)}_{next(self._numbers)}", self.path.parent / "model.py"
        )
        module = importlib.util.module_from_spec(found)
        sys.modules[found.name] = module
        found.loader.exec_module(module)
        return module

    def eager(self, *args, name="Model", train=False, **kwargs):
        """The model built once more, seeded as a spec seeds it, and never touched by graphspec."""
        module = self.module()
        torch.manual_seed(0)
        model = getattr(module, name)(*args, **kwargs)
        return model.train(train) if isinstance(model, torch.nn.Module) else model

    @contextmanager
    def refused(self, kind, *words):
        """The block raises ``kind``, with a fix, and the message has every one of ``words``."""
        with pytest.raises(GraphSpecError) as caught:
            yield caught
        error, text = caught.value, str(caught.value)
        assert isinstance(error, kind), f"{type(error).__name__}: {text}"
        assert "fix: " in text, f"no fix is named: {text}"
        missing = [str(word) for word in words if str(word() if callable(word) else word) not in text]
        assert not missing, f"{missing} not in: {text}"

    def close(self):
        for runner in self._opened:
            runner.close()


#: What takes real values, real threads or a real first input to be seen, by the end of a test's name.
ONLY_AT_CAPTURE = (
    "[data_ptr through ctypes]", "[lazy module]", "[quantized]",
    "test_work_given_to_another_thread_inside_a_region_is_refused[body4]",
)  # fmt: skip


@pytest.fixture
def case(tmp_path, request):
    made = Case(tmp_path)
    yield made
    made.close()
    hidden = made.needs_values or request.node.name.endswith(ONLY_AT_CAPTURE)
    for path in made.refused_at_capture:
        with contextlib.suppress(ModelError):  # a factory that only real tensors can build
            found = [each for each in check_spec(graphspec.load(path), "cpu").findings if each.severity == "error"]
            assert bool(found) != hidden, f"a capture refuses {path}, and `check` finds {found}"


@pytest.fixture(autouse=True)
def _ambient():
    """Every test starts from the same streams, without autograd."""
    torch.manual_seed(123)
    with torch.no_grad():
        yield
