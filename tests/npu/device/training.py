"""Whole training steps on the emulated NPU: what graphs leave is what eager leaves there, within float32."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody does
from torch import nn

import graphspec

SPEC = """
graphspec: 1
name: training
device: npu
model: {{factory: model.py:build, mode: train}}
buffers:
  x: {{shape: [2, 4], dtype: float32}}
  y: {{shape: [2], dtype: int64, sample: {{randint: [0, 3]}}}}
regions:
  step: {{call: model.step, inputs: [x, y], outputs: loss, optimizer: model.optimizer{more}}}
"""


class Model(nn.Module):
    """A classifier and its optimizer, made on the device."""

    def __init__(self, make, form):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to("npu")
        self.optimizer = make(self.net.parameters())
        self.form = form

    def step(self, x, y):
        if self.form != "zeroed last":
            self.optimizer.zero_grad(set_to_none=self.form == "zeroed first")
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        if self.form == "zeroed last":
            self.optimizer.zero_grad()
        return loss


def data(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(2, 4, generator=generator), torch.randint(0, 3, (2,), generator=generator)


def close(one, other):
    return torch.allclose(one.cpu(), other.cpu(), rtol=1e-4, atol=1e-5)


def trained(tmp_path, make, form="zeroed first", more="", between=lambda *_: None):
    """Six steps of eager and of graphs beside each other."""
    torch.manual_seed(0)
    eager = Model(make, form).train()
    replayed = copy.deepcopy(eager)
    replayed.optimizer = make(replayed.net.parameters())
    (tmp_path / "model.yaml").write_text(SPEC.format(more=more))
    (tmp_path / "model.py").write_text("def build():\n    raise NotImplementedError\n")
    with graphspec.open(tmp_path / "model.yaml", model=replayed) as runner:
        for number in range(6):
            x, y = (each.to("npu") for each in data(number))
            for model in (eager, replayed):
                between(model, number)
            with torch.enable_grad():
                wanted = eager.step(x, y).detach()
            assert close(wanted, runner.run(x=x, y=y)["loss"]), number
            for one, other in zip(eager.parameters(), replayed.parameters(), strict=True):
                assert close(one, other), number
                assert (one.grad is None) == (other.grad is None)
                assert one.grad is None or close(one.grad, other.grad), number
        for one, other in zip(eager.buffers(), replayed.buffers(), strict=True):
            assert close(one.float(), other.float())


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True),
    "AdamW, lr in a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01, device="npu"), capturable=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01, capturable=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_equals_eager(tmp_path, make):
    trained(tmp_path, make)


@pytest.mark.parametrize("form", ["zeroed last", "zeroed in place"])
def test_whatever_is_in_grad_before_the_step_leaves_what_eager_leaves(tmp_path, form):
    def disturbed(model, number):
        if number % 3 == 1:
            for parameter in model.net.parameters():
                parameter.grad = torch.full_like(parameter, 0.01)
        if number % 4 == 2:
            model.net.zero_grad()

    trained(tmp_path, OPTIMIZERS["SGD"], form, between=disturbed)


def test_an_optimizer_that_reads_its_step_count_is_refused_naming_the_option(tmp_path):
    with pytest.raises(graphspec.GraphSpecError, match="capturable=True"):
        trained(tmp_path, lambda p: torch.optim.Adam(p, lr=0.01))
