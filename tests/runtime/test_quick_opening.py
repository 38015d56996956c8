"""What makes opening quicker leaves the process as it was, and misses nothing."""

import gc
import threading
from collections import OrderedDict

import pytest
import torch
from torch import nn

import graphspec
from graphspec.runtime.holdings.objects import PythonState
from graphspec.runtime.holdings.reach import reach
from graphspec.runtime.opened.collections import no_full_collections


def test_full_collections_come_back_when_the_last_block_ends_whichever_began_first():
    before, inside, leave = gc.get_threshold(), threading.Event(), threading.Event()

    def other():
        with no_full_collections():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with no_full_collections():
        assert gc.get_threshold()[:2] == before[:2]
        thread.start()
        inside.wait()
    assert gc.get_threshold() != before
    leave.set()
    thread.join()
    assert gc.get_threshold() == before


def test_thresholds_are_as_before_when_opening_fails(tmp_path):
    before = gc.get_threshold()
    (tmp_path / "model.yaml").write_text("graphspec: 1\nname: a\nmodel: {factory: nothing.py:build}\nregions: {}\n")
    with pytest.raises(graphspec.GraphSpecError):
        graphspec.open(tmp_path / "model.yaml")
    assert gc.get_threshold() == before


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.number = 1
        self.table = {"a": 1}
        self.ordered = OrderedDict(a=1, b=2)
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight * self.number


@pytest.mark.parametrize(
    "write",
    [
        lambda model: setattr(model, "number", 2),
        lambda model: model.table.update(a=2),
        lambda model: model.table.pop("a"),
        lambda model: model.ordered.pop("b"),
        lambda model: model._parameters.update(weight=nn.Parameter(torch.zeros(2))),
        lambda model: setattr(model, "__dict__", {**vars(model), "number": 3}),
        lambda model: setattr(model, "table", {"a": 1, "b": 1}),
    ],
)
def test_what_rested_for_long_and_is_written_then_is_put_back_each_time(write):
    model = Holder()
    state = PythonState(reach({"model": model}))
    for _ in range(3):
        assert state.restore() == ((), ())
    for _ in range(3):
        weight = model.weight
        write(model)
        changes, created = state.restore()
        assert changes
        assert not created
        assert (model.number, model.table, list(model.ordered)) == (1, {"a": 1}, ["a", "b"])
        assert model.weight is weight
        assert state.restore() == ((), ())


def test_the_order_of_an_ordered_dict_is_put_back():
    model = Holder()
    state = PythonState(reach({"model": model}))
    for _ in range(3):
        state.restore()
        model.ordered.move_to_end("a")
    state.restore()
    assert list(model.ordered) == ["a", "b"]
