"""Files beside a model file: each folder has its own, as they are on disk, whenever and from wherever they come."""

import contextlib
import dataclasses
import gc
import importlib
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from pathlib import Path

import pytest
import torch

import graphspec
from graphspec.errors import ModelError
from graphspec.runtime.importing.folder import imported
from graphspec.runtime.importing.references import import_object

SPEC = """
graphspec: 1
name: small
model: {factory: "model.py:build"}
buffers:
  x: {shape: [2], dtype: float32}
  y: {role: output, shape: [2], dtype: float32}
regions:
  main: {call: model, inputs: [x], outputs: y%s}
"""

MODEL = """
import torch
from torch import nn
{top}

class Model(nn.Module):
    def forward(self, x):
        {body}

def build():
    {factory}
    return Model()
"""


def folder(path, *, top="", body="return x * K", factory="pass", eager=False, **files):
    path.mkdir(parents=True, exist_ok=True)
    (path / "spec.yaml").write_text(SPEC % (", eager: true" if eager else ""))
    (path / "model.py").write_text(MODEL.format(top=top, body=body, factory=factory))
    for name, text in files.items():
        file = path / f"{name.replace('__in__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return path


def opened(path, **options):
    return graphspec.open(path / "spec.yaml", device="cpu", **options)


def factor(runner):
    return float(runner.run(x=torch.ones(2))["y"][0])


def rewritten(path, text):
    """Other content of the same size, at the same time."""
    before = path.stat()
    assert len(text) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


WAYS = {
    "from": "from helper import K",
    "plain": "import helper; K = helper.K",
    "renamed": "import helper as h; K = h.K",
    "relative": "from .helper import K",
    "relative module": "from . import helper; K = helper.K",
    "star": "from helper import *",
    "import_module": "import importlib; K = importlib.import_module('helper').K",
    "from importlib": "from importlib import import_module; K = import_module('helper').K",
    "dunder": "K = __import__('helper').K",
    "through another": "from between import K",
    "package": "from pack import K",
    "package part": "import pack.part; K = pack.part.K",
    "package part renamed": "import pack.part as p; K = p.K",
    "folder": "from plain.part import K",
    "in a try": "try:\n    from helper import K\nexcept ImportError:\n    K = 0",
}


def helpers(k):
    return {
        "helper": f"K = {k}",
        "between": "from helper import K",
        "pack__in____init__": "from .part import K\nfrom pack import part\nassert part.K == K",
        "pack__in__part": "from helper import K\nfrom ..helper import K as same\nassert K == same",
        "plain__in__part": "import helper\nK = helper.K",
    }


@pytest.mark.parametrize("way", WAYS)
def test_two_folders_with_helpers_of_the_same_name_each_compute_with_their_own(tmp_path, way):
    for name, k in (("a", 2), ("b", 7)):
        folder(tmp_path / name, top=WAYS[way], **helpers(k))
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b, opened(tmp_path / "a") as again:
        assert (factor(a), factor(b), factor(again), factor(a)) == (2, 7, 2, 2)
    assert not sys.modules.keys() & {"helper", "between", "pack", "pack.part", "plain", "plain.part"}


@pytest.mark.parametrize("way", [way for way in WAYS if way != "star"])
@pytest.mark.parametrize("place", ["factory", "forward", "eager"])
def test_a_file_beside_the_model_is_found_however_late_it_is_imported(tmp_path, way, place):
    late = WAYS[way].replace("\n", "\n        ") + "\n        "
    where = {"factory": late.replace("\n    ", "\n") + "\n    Model.k = K", "body": "return x * self.k"}
    if place != "factory":
        where = {"body": late + "return x * K", "eager": place == "eager"}
    for name, k in (("a", 2), ("b", 7)):
        folder(tmp_path / name, **where, **helpers(k))
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        assert (factor(a), factor(b), factor(a)) == (2, 7, 2)


def test_a_file_that_an_eager_region_imports_in_a_thread_is_its_folders_own(tmp_path):
    body = """
        import threading
        got = []
        def work():
            from helper import K
            got.append(K)
        thread = threading.Thread(target=work); thread.start(); thread.join()
        return x * got[0]"""
    for name, k in (("a", 2), ("b", 7)):
        folder(tmp_path / name, body=body, eager=True, **helpers(k))
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        assert (factor(a), factor(b)) == (2, 7)


@pytest.mark.parametrize("name", ["helper.py", "between.py", "pack/part.py"])
def test_an_edited_file_is_what_the_next_opening_runs(tmp_path, name):
    path = folder(tmp_path / "a", top="from pack import K", **helpers(2))
    (path / "pack/part.py").write_text("from between import K\n")
    with opened(path) as first:
        assert factor(first) == 2
        (path / name).write_text("K = 5\n")
        with opened(path) as second:
            assert (factor(first), factor(second)) == (2, 5)


@pytest.mark.parametrize("name", ["helper", "model"])
@pytest.mark.parametrize("bytecode", ["on disk", "none"])
def test_a_file_that_was_rewritten_with_its_size_and_time_kept_is_what_runs(tmp_path, monkeypatch, name, bytecode):
    monkeypatch.setattr(sys, "dont_write_bytecode", bytecode == "none")
    path = folder(tmp_path / "a", top="from helper import K as L; K = L + 0", helper="K = 2")
    if bytecode == "on disk":
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(path)], check=True)
    with opened(path) as runner:
        assert factor(runner) == 2
    file = path / f"{name}.py"
    rewritten(file, file.read_text().replace("K = 2", "K = 4").replace("L + 0", "L + 2"))
    with opened(path) as runner:
        assert factor(runner) == 4


def test_two_revisions_whose_files_are_links_have_their_own_helpers(tmp_path):
    blobs = folder(tmp_path / "blobs", top="from helper import K", one="K = 2", two="K = 7")
    for revision, helper in (("r1", "one"), ("r2", "two")):
        (tmp_path / revision).mkdir()
        for name, blob in (("spec.yaml", "spec.yaml"), ("model.py", "model.py"), ("helper.py", f"{helper}.py")):
            (tmp_path / revision / name).symlink_to(blobs / blob)
    with opened(tmp_path / "r1") as one, opened(tmp_path / "r2") as two:
        assert (factor(one), factor(two)) == (2, 7)


def test_a_link_to_a_folder_that_leads_elsewhere_today_gives_the_files_of_today(tmp_path):
    for name, k in (("v1", 2), ("v2", 7)):
        folder(tmp_path / name, body="from helper import K; return x * K", eager=True, helper=f"K = {k}")
    link = tmp_path / "current"
    link.symlink_to("v1")
    with opened(link) as one:
        link.unlink()
        link.symlink_to("v2")
        with opened(link) as two:
            assert (factor(one), factor(two)) == (2, 7)


@pytest.fixture
def unimported():
    """Names that a test imports into the program."""
    names = ("helper", "between")
    yield
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("unimported")
@pytest.mark.parametrize("program", ["another file", "this very file", "edited", "on the path"])
@pytest.mark.parametrize("bytecode", [True, False])
def test_a_file_that_the_program_imports_too_is_shared_while_it_is_this_very_file(
    tmp_path, monkeypatch, program, bytecode
):
    path = folder(tmp_path / "a", top="import helper", body="return x * helper.K", eager=True, helper="K = 2")
    other = folder(tmp_path / "b", helper="K = 9")
    monkeypatch.setattr(sys, "dont_write_bytecode", not bytecode)
    monkeypatch.syspath_prepend(other if program == "another file" else path)
    if program == "this very file" and not bytecode:
        monkeypatch.setattr("graphspec.runtime.importing.program._process_began", time.time)
    if program != "on the path":
        importlib.import_module("helper")
    if program == "edited":
        rewritten(path / "helper.py", "K = 5")
    warned = pytest.warns(RuntimeWarning, match=r"helper\.py") if program == "edited" else contextlib.nullcontext()
    with warned, opened(path) as runner:
        expected = 5 if program == "edited" else 2
        assert factor(runner) == expected
        helper = importlib.import_module("helper")
        helper.K = 4
        assert factor(runner) == (4 if program in ("this very file", "on the path") else expected)
        assert sys.modules["helper"] is helper


@pytest.mark.usefixtures("unimported")
def test_an_edit_is_run_also_by_files_that_the_program_shares_and_that_import_the_edited_one(tmp_path, monkeypatch):
    path = folder(tmp_path / "a", top="from between import K", **helpers(2))
    monkeypatch.syspath_prepend(path)
    with opened(path) as runner:
        assert factor(runner) == 2
    rewritten(path / "helper.py", "K = 5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with opened(path) as runner:
            assert factor(runner) == 5


def test_files_beside_the_model_come_before_installed_packages_and_the_standard_library(tmp_path):
    top = "import calendar, click, math, sys\nfrom colour import K\nassert sys.modules and math.pi > 3"
    files = {
        "calendar": "K = 2",
        "click": "K = 3",
        "sys": "modules = {}",
        "colour": "import calendar, click\nK = calendar.K * click.K",
    }
    path = folder(tmp_path / "a", top=top, **files)
    with opened(path) as runner:
        assert factor(runner) == 6
    assert Path(importlib.import_module("calendar").__file__).parent == Path(os.__file__).parent
    assert "colour" not in sys.modules


HERE = "import os, sys; here = os.path.dirname(os.path.abspath(__file__))\n"
ADDED = {
    "inside": ("sys.path.insert(0, here + '/lib')", "lib__in__net"),
    "inside, last": ("sys.path.append(os.path.join(here, 'lib'))", "lib__in__net"),
    "around": ("sys.path.insert(0, os.path.dirname(here))", "..__in__net"),
    "once": ("here + '/lib' in sys.path or sys.path.insert(1, here + '/lib')", "lib__in__net"),
}


@pytest.mark.parametrize("place", ["top", "factory"])
@pytest.mark.parametrize("added", ADDED)
def test_folders_that_a_model_file_puts_on_the_path_nearby_are_its_own(tmp_path, added, place):
    put, file = ADDED[added]
    late = f"{HERE.strip()}; {put}; from net import K; Model.k = K"
    where = (
        {"top": f"{HERE}{put}\nfrom net import K"} if place == "top" else {"factory": late, "body": "return x * self.k"}
    )
    before = list(sys.path)
    for name, k in (("a", 2), ("b", 7)):
        folder(tmp_path / name / "spec", **where, **{file: f"from other import K\nassert K == {k}"}, other=f"K = {k}")
    with opened(tmp_path / "a/spec") as a, opened(tmp_path / "b/spec") as b, opened(tmp_path / "a/spec") as again:
        assert (factor(a), factor(b), factor(again)) == (2, 7, 2)
    assert sys.path == before
    (tmp_path / "a/spec" / f"{file.replace('__in__', '/')}.py").write_text("K = 3")
    with opened(tmp_path / "a/spec") as a:
        assert factor(a) == 3


def test_a_folder_elsewhere_that_a_model_file_puts_on_the_path_stays_there(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)  # puts the path back afterwards
    elsewhere = folder(tmp_path / "library", installed_here="K = 2").as_posix()
    path = folder(tmp_path / "a", top=f"import sys; sys.path.append({elsewhere!r}); from installed_here import K")
    with opened(path) as runner:
        assert factor(runner) == 2
    assert sys.path[-1] == elsewhere
    assert sys.modules.pop("installed_here").K == 2


def test_what_a_model_file_puts_last_on_the_path_comes_after_installed_packages(tmp_path):
    top = f"{HERE}sys.path.append(here + '/lib')\nimport yaml; K = 2 if yaml.safe_load('1') else 0"
    path = folder(tmp_path / "a", top=top, lib__in__yaml="raise KeyError")
    with opened(path) as runner:
        assert factor(runner) == 2


def test_a_folder_of_data_does_not_hide_an_installed_package_of_its_name(tmp_path):
    path = folder(tmp_path / "a", top="import yaml; K = 2 if yaml.safe_load('1') else 0", yaml__in__notes="")
    with opened(path) as runner:
        assert factor(runner) == 2


def test_what_is_defined_beside_the_model_can_be_pickled_and_looked_up_by_its_module(tmp_path):
    helper = """
        from __future__ import annotations
        import dataclasses, enum, sys, typing
        @dataclasses.dataclass
        class Config:
            k: int = 2
            kinds: typing.ClassVar[int] = 3
        class Kind(enum.Enum):
            ONE = 1
        assert sys.modules[__name__].Config is Config
    """
    path = folder(
        tmp_path / "a",
        top="from helper import Config, Kind\nK = 2",
        factory="Model.config = Config(k=2)",
        helper=helper,
    )
    with opened(path) as first:
        kept = first.model
        assert [field.name for field in dataclasses.fields(kept.config)] == ["k"]
        (path / "helper.py").write_text((path / "helper.py").read_text() + "\n")
        with opened(path) as second:  # a newer set of modules is there
            for model in (kept, second.model):
                config = pickle.loads(pickle.dumps(model.config))  # noqa: S301 - our own
                assert config == model.config
                assert type(config) is type(model.config)
            assert kept.config != second.model.config
        assert type(pickle.loads(pickle.dumps(second.model))) is type(second.model)  # noqa: S301 - the same


def test_a_checkpoint_of_classes_beside_the_model_is_read_while_the_model_is_built(tmp_path, monkeypatch):
    for name, k in (("a", 2), ("b", 7)):
        path = folder(
            tmp_path / name, body="return x * self.config.k", config="class Config:\n    pass",
            factory="Model.config = torch.load(__file__[:-8] + 'model.pt', weights_only=False)['config']",
        )  # fmt: skip
        with monkeypatch.context() as patch:
            patch.syspath_prepend(path)
            made = importlib.import_module("config").Config()
            made.k = k
            torch.save({"config": made}, path / "model.pt")
            del sys.modules["config"]
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        assert (factor(a), factor(b)) == (2, 7)
    assert "config" not in sys.modules


def test_modules_of_a_folder_are_made_once_while_its_files_stay_as_they_are(tmp_path):
    path = folder(
        tmp_path / "a",
        top="from helper import K",
        helper="import torch\nK = 2\ntorch.made = getattr(torch, 'made', 0) + 1",
    )
    try:
        for _ in range(3):
            opened(path).close()
        assert torch.made == 1
    finally:
        del torch.made


def test_a_helper_that_imports_the_model_file_gets_the_one_of_its_own_opening(tmp_path):
    path = folder(
        tmp_path / "a", top="K = 2", factory="import helper; Model.same = helper.Model is Model",
        helper="from model import Model", body="return x * K if self.same else x",
    )  # fmt: skip
    for _ in range(2):
        with opened(path) as runner:
            assert factor(runner) == 2


def test_older_modules_go_when_nothing_uses_them(tmp_path):
    path = folder(
        tmp_path / "a", top="import helper; from helper import K", helper="K = 2", factory="Model.part = helper"
    )
    with opened(path) as runner:
        module = weakref.ref(runner.model.part)
    del runner
    (path / "helper.py").write_text("K = 3")
    opened(path).close()
    gc.collect()
    assert module() is None


def test_an_argument_is_made_by_the_class_that_the_model_knows(tmp_path):
    path = folder(tmp_path / "a", top="from batch import Batch", body="return x.x * 2 if isinstance(x, Batch) else x",
                  batch="class Batch:\n    def __init__(self, x): self.x = x")  # fmt: skip
    text = (path / "spec.yaml").read_text().replace("[x], outputs", "[{make: 'batch.py:Batch', with: {x: x}}], outputs")
    (path / "spec.yaml").write_text(text)
    with opened(path) as runner:
        assert factor(runner) == 2


def test_a_module_that_is_not_there_is_called_as_the_import_calls_it(tmp_path):
    for wrong in ("import pack.missing", "from pack import missing", "from .missing import K", "import missing"):
        path = folder(tmp_path / "a", top=wrong, **helpers(2))
        with pytest.raises(ModelError) as error:
            opened(path)
        assert "missing" in str(error.value)
        assert "graphspec_model" not in str(error.value)


def test_a_helper_that_fails_fails_by_its_own_exception_and_is_tried_again(tmp_path):
    path = folder(tmp_path / "a", top="from helper import K", helper="raise KeyError('own')")
    before = list(sys.path)
    with pytest.raises(ModelError, match="KeyError: 'own'") as error:
        opened(path)
    assert isinstance(error.value.__cause__, KeyError)
    (path / "helper.py").write_text("K = 2")
    with opened(path) as runner:
        assert factor(runner) == 2
    assert sys.path == before


@pytest.mark.parametrize("error", ["ImportError", "ImportError('own')", "ImportError('own', name='x')", "SyntaxError"])
def test_an_import_error_of_a_helpers_own_is_its_own(tmp_path, error):
    path = folder(
        tmp_path / "a", top="from helper import K", helper=f"raise {error}" if "(" in error else f"raise {error}()"
    )
    with pytest.raises(ModelError, match=rf"failed: {error[:11]}"):
        opened(path)
    path = folder(
        tmp_path / "a", top="try:\n    from helper import K\nexcept ImportError:\n    K = 2", helper="raise ImportError"
    )
    with opened(path) as runner:
        assert factor(runner) == 2


@pytest.mark.usefixtures("unimported")
@pytest.mark.parametrize("end", ["pass", "raise KeyError('own')"])
@pytest.mark.parametrize(
    "remove", ["sys.path.remove(os.path.dirname(__file__))", "sys.path.pop(0)", "sys.path[:] = sys.path[1:]"]
)
def test_a_model_file_may_take_its_folder_out_of_the_path(tmp_path, monkeypatch, remove, end):
    path = folder(tmp_path / "a", top=f"import os, sys\n{remove}\nfrom helper import K\n{end}", helper="K = 2")
    for own in (False, True):  # whether the program has it there too
        if own:
            monkeypatch.syspath_prepend(path)
        before = list(sys.path)
        if end == "pass":
            with opened(path) as runner:
                assert factor(runner) == 2
        else:
            with pytest.raises(ModelError, match="KeyError: 'own'"):
                opened(path)
        assert sys.path == before


def test_threads_that_import_folders_at_once_each_get_their_own_files(tmp_path):
    for k in range(4):
        body = "from late import L; return x * K * L"
        folder(tmp_path / str(k), top="from helper import K", body=body, **helpers(k + 2), late=f"L = {k + 3}")
    got = {k: set() for k in range(4)}

    def work(k):
        for _ in range(20):
            model = import_object("model.py:build", tmp_path / str(k))()
            got[k].add(float(model(torch.ones(2))[0]))

    before = list(sys.path)
    threads = [threading.Thread(target=work, args=(k,)) for k in (*range(4), 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {k: {(k + 2) * (k + 3)} for k in range(4)}
    assert sys.path == before


def test_what_an_import_inside_of_a_trace_makes_is_real(tmp_path):
    from graphspec.cli import main

    path = folder(
        tmp_path / "a",
        body="from late import TABLE; return x * TABLE",
        late="import torch\nTABLE = torch.full((2,), 3.0)",
    )
    main(["check", str(path / "spec.yaml")])
    with opened(path) as runner:
        assert factor(runner) == 3


def test_the_module_that_a_name_finds_can_be_asked_for(tmp_path):
    path = folder(tmp_path / "a", top="import helper", body="return x * helper.K", helper="K = 2")
    with opened(path) as runner:
        namespace = type(runner.model).forward.__globals__
        assert imported("helper", namespace) is namespace["helper"]
        assert imported("math", namespace) is sys.modules["math"]
        assert imported("helper", {}) is None


def test_a_program_in_the_folder_shares_its_context_with_the_model(tmp_path):
    context = "K = 2\ndef set(k):\n    global K\n    K = k\ndef get():\n    return K"
    path = folder(tmp_path / "a", body="from context import get; return x * get()", eager=True, context=context)
    (path / "serve.py").write_text("""
import torch, graphspec, context
with graphspec.open("spec.yaml", device="cpu") as runner:
    context.set(5)
    print(runner.run(x=torch.ones(2))["y"])
""")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "serve.py"], cwd=path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "tensor([5., 5.])\n", done.stderr
