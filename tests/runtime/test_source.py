"""The model's own line, and the module that is being called."""

import dataclasses
import types
from pathlib import Path

import numpy as np
import torch
from torch import nn

from graphspec.recording import source
from graphspec.recording.calls import Recorder
from graphspec.recording.source import ModuleNames, Site, module_stack, site, torch_callers


def sites_of(call, *args):
    """The file and line of every operator that a call reaches."""
    with Recorder("decode") as recorder:
        call(*args)
    return {(made.site.file, made.site.line) for made in recorder.recording.calls}


def line_of(function, offset):
    return function.__code__.co_firstlineno + offset


def test_a_site_is_the_line_of_the_caller_with_its_text():
    here = site()  # this very line
    assert here.file == __file__
    assert here.text == "here = site()  # this very line"
    assert str(here) == f"test_source.py:{here.line}"
    assert here.function.endswith("test_a_site_is_the_line_of_the_caller_with_its_text")


def test_frames_of_torch_are_passed_over():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def call():
        return model(torch.ones(2))

    assert sites_of(call) == {(__file__, line_of(call, 1))}


def test_frames_of_numpy_and_the_standard_library_are_passed_over():
    def call(x):
        return np.stack([x, x]), sorted([x[0], x[1]], key=float)

    assert sites_of(call, torch.ones(2)) == {(__file__, line_of(call, 1))}


def test_generated_code_without_source_is_passed_over():
    @dataclasses.dataclass
    class Holder:
        place: Site = dataclasses.field(default_factory=site)

    holder = Holder()
    assert holder.place.file == __file__


def test_a_folder_with_torch_in_its_name_is_model_code(tmp_path):
    folder = tmp_path / "my_torch_graphspec_model"
    folder.mkdir()
    file = folder / "model.py"
    file.write_text("def forward(site):\n    return site()\n")
    module = types.ModuleType("model")
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)  # noqa: S102
    place = module.forward(site)
    assert (place.file, place.line, place.text) == (str(file), 2, "return site()")


def test_a_library_is_model_code_and_graphspec_is_not():
    import transformers

    assert source._owner(transformers.__file__) is source._Owner.MODEL
    assert source._owner(source.__file__) is source._Owner.HIDDEN
    assert source._owner(torch.nn.__file__) is source._Owner.HIDDEN
    assert source._owner(str(Path(torch.__file__).parents[1] / "torch_geometric" / "nn.py")) is source._Owner.MODEL
    assert source._owner(dataclasses.__file__) is source._Owner.LIBRARY
    assert source._owner("<frozen importlib._bootstrap>") is source._Owner.HIDDEN


def test_a_site_without_any_model_frame_is_nowhere():
    places = []
    saved = source._owner
    source._owner = lambda _: source._Owner.HIDDEN
    try:
        places.append(site())
    finally:
        source._owner = saved
    assert places == [source.NOWHERE]


class Attention(nn.Module):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def forward(self, x):
        self.log.append(module_stack())
        return x

    def decode(self, x):
        return self.forward(x)


class Block(nn.Module):
    def __init__(self, log):
        super().__init__()
        self.attn = Attention(log)

    def forward(self, x):
        return self.attn(x)


def test_the_modules_being_called_are_listed_outermost_first():
    log = []
    model = nn.Sequential(Block(log), Block(log))
    model(torch.ones(1))
    assert [list(stack) for stack in log] == [[model, block, block.attn] for block in model]
    assert module_stack() == ()


def test_a_method_other_than_forward_runs_inside_its_module():
    log = []
    attention = Attention(log)
    attention.decode(torch.ones(1))
    attention.forward(torch.ones(1))
    assert log == [(attention,), (attention,)]


def test_names_come_from_the_root_and_a_shared_module_has_all_of_its_names():
    log = []
    model = nn.Module()
    model.layers = nn.ModuleList([Block(log)])
    model.tied = model.layers[0]
    names = ModuleNames(model)
    assert names.of(model) == ("model",)
    assert set(names.of(model.layers[0].attn)) == {"model.layers.0.attn", "model.tied.attn"}
    assert names.of(nn.Linear(1, 1)) == ()
    inside = []
    model.layers[0].attn.register_forward_pre_hook(lambda *_: inside.append(names.inside()))
    model.layers[0](torch.ones(1))
    assert inside == [("model.layers.0", "model.tied", "model.layers.0.attn", "model.tied.attn")]


def test_a_root_that_is_no_module_names_the_modules_it_holds():
    root = types.SimpleNamespace(net=nn.Sequential(nn.ReLU()))
    assert ModuleNames(root).of(root.net[0]) == ("model.net.0",)


def test_the_functions_of_torch_above_a_call_are_known_and_whether_graphspec_made_it():
    seen = []

    def asked(_seed):
        seen.append(torch_callers())

    original = torch.cuda.manual_seed_all
    torch.cuda.manual_seed_all = asked
    try:
        torch.manual_seed(torch.initial_seed())
        asked(0)
    finally:
        torch.cuda.manual_seed_all = original
    (names, ours), direct = seen
    assert "manual_seed" in names
    assert not ours
    assert direct == ((), False)
