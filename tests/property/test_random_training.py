"""Random training steps: networks, losses, optimizers, orders of zeroing, accumulation, in-place steps, and what a user
does in between. Each is trained by plain Python and by graphs beside it; losses, weights, gradients, states of the
optimizer and random streams are compared bit by bit. To draw more:

    python tests/property/test_random_training.py 500 [FIRST_SEED]
"""

import importlib.util
import random
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import graphspec
from graphspec.errors import GraphSpecError

DRAWS = 24

LAYERS = (
    "nn.Linear(6, 6)", "nn.Linear(6, 6, bias=False)", "nn.Tanh()", "nn.ReLU()", "nn.GELU()", "nn.Dropout(0.2)",
    "nn.LayerNorm(6)", "nn.BatchNorm1d(6)", "nn.Sequential(nn.Linear(6, 6), nn.SiLU())", "nn.Softmax(-1)",
)  # fmt: skip
LOSSES = (
    "F.cross_entropy({h}, {y})",
    "F.mse_loss({h}, {x})",
    "({h}.logsumexp(-1) - {h}.gather(-1, {y}[:, None])[:, 0]).sum()",
    "F.huber_loss({h}, {x}.roll(1, -1)) + 0.01 * sum(each.abs().sum() for each in self.net.parameters())",
    "F.cross_entropy({h}, {y}, label_smoothing=0.1) + F.cross_entropy(self.net({x}.neg()), {y})",
)
OPTIMIZERS = (
    "SGD({p}, lr=0.05)",
    "SGD({p}, lr=0.05, momentum=0.9)",
    "SGD({p}, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01, foreach=True)",
    "SGD({p}, lr=torch.tensor(0.05), momentum=0.9, fused=True)",
    "SGD({p}, lr=0.05, momentum=0.9, dampening=0.5)",
    "Adam({p}, lr=0.01, fused=True, amsgrad=True)",
    "Adam({p}, lr=0.01)",
    "AdamW({p}, lr=torch.tensor(0.01), fused=True, maximize=True)",
    "RMSprop({p}, lr=0.01, momentum=0.5)",
    "Adagrad({p}, lr=0.05, fused=True)",
    "Adadelta({p}, weight_decay=0.01)",
)
GROUPS = (
    "self.parameters()",
    "[{'params': list(self.net.parameters())[:1], 'weight_decay': 0.1}, {'params': list(self.net.parameters())[1:]}]",
    "list(self.net.parameters())[1:]",
)
ZEROS = ("self.optimizer.zero_grad()", "self.optimizer.zero_grad(set_to_none=False)", "self.zero_grad()")
EXTRAS = (
    "nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)",
    "nn.utils.clip_grad_value_(self.net.parameters(), 0.05)",
    "self.seen.add_(loss.detach())",
    "torch._foreach_mul_([each.grad for each in self.net.parameters() if each.grad is not None], 0.9)",
)
AFTER = (
    "[each.clamp_(-1, 1) for each in map(torch.Tensor.detach, self.net.parameters())]",
    "[kept.lerp_(each.detach(), 0.2) for kept, each in zip(self.average, self.net.parameters())]",
)
MODEL = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential({layers})
        self.spare = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(()))
        {before}
        self.average = [each.detach().clone() for each in self.net.parameters()]
        self.optimizer = torch.optim.{optimizer}

    def learn(self, x, y):
        {learn}
        return loss

    def update(self):
        {update}
        return sum(each.detach().sum() for each in self.net.parameters())

    def step(self, x, y):
        {step}
        return loss
"""
SPEC = """
graphspec: 1
name: drawn
model: {{factory: model.py:Model, mode: train}}
buffers:
  x: {{shape: [3, 6], dtype: float32}}
  y: {{shape: [3], dtype: int64, sample: {{randint: [0, 6]}}}}
regions:
{regions}
replay: {replay}
"""
ONE = "  step: {{call: model.step, inputs: [x, y], outputs: loss, optimizer: model.optimizer{grads}}}"
TWO = """  learn: {call: model.learn, inputs: [x, y], outputs: loss, grads: accumulate}
  update: {call: model.update, outputs: total, optimizer: model.optimizer}"""


class Drawn:
    """One program: the source of a model, its spec, and what is done with it."""

    def __init__(self, seed):
        self.seed = seed
        self.draw = draw = random.Random(seed)  # noqa: S311
        layers = ["nn.Linear(6, 6)", *draw.choices(LAYERS, k=draw.randint(0, 4))]
        loss, times = draw.choice(LOSSES), draw.choice((1, 1, 1, 2))
        rows = [f"loss = {loss.format(h='self.net(x)', x='x', y='y')}", "loss.backward()"] * times
        if draw.random() < 0.2:  # micro-batches inside
            part = loss.format(h="self.net(x[k:k + 2])", x="x[k:k + 2]", y="y[k:k + 2]")
            rows = ["for k in range(2):", f"    loss = {part} / 2", "    loss.backward()"]
        extras = [each for each in EXTRAS if draw.random() < 0.25]
        after = [f"with torch.no_grad(): {each}" for each in AFTER if draw.random() < 0.2]
        zero, at = draw.choice(ZEROS), draw.choice(("first", "first", "last", "never"))
        self.split = draw.random() < 0.3
        before = ["pass"]
        if draw.random() < 0.2:
            before.append("self.net[0].bias.requires_grad_(False)")
        if draw.random() < 0.15:
            before.append("self.net.append(nn.Linear(6, 6)); self.net[-1].weight = self.net[0].weight")
        lines = [zero] * (at == "first") + [*rows, *extras, "self.optimizer.step()", *after] + [zero] * (at == "last")
        update = [each for each in extras if "loss" not in each] + ["self.optimizer.step()", *after]
        optimizer = draw.choice(OPTIMIZERS).format(p=draw.choice(GROUPS))
        joined = {"before": before, "learn": rows, "update": [*update, zero], "step": lines}
        self.model = MODEL.format(
            layers=", ".join(layers),
            optimizer=optimizer,
            **{key: "\n        ".join(each) for key, each in joined.items()},
        )
        grads = draw.choice(("", "", ", grads: accumulate", ", grads: overwrite"))
        regions = TWO if self.split else ONE.format(grads=grads)
        self.spec = SPEC.format(
            regions=regions, replay="{learn: [learn], update: [update]}" if self.split else "[step]"
        )

    def fault(self, folder):
        """What differs from eager, or None; `GraphSpecError` where the program is refused when it is opened."""
        (folder / "model.py").write_text(self.model)
        (folder / "model.yaml").write_text(self.spec)
        found = importlib.util.spec_from_file_location(f"drawn_{self.seed}_{id(self)}", folder / "model.py")
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        with torch.enable_grad():
            self.eager, self.replayed = module.Model().train(), module.Model().train()
        with graphspec.open(folder / "model.yaml", model=self.replayed, device="cpu") as self.runner:
            self.state = torch.random.manual_seed(self.seed).get_state()
            self.held = []
            self.ended = False
            return next((each for number in range(8) if not self.ended and (each := self._run(number))), None)

    def _run(self, number):
        """One thing that a user does, then one run of both."""
        for act in ("_between", "_once"):
            if said := getattr(self, act)(number):
                return f"run {number}: {said}"
        return None

    def _between(self, number):
        choice, position = self.draw.random(), self.draw.randrange(2)
        if number == 0:
            return
        if choice < 0.1:
            self.runner.recapture()
        for model in (self.eager, self.replayed):
            weights = list(model.net.parameters())
            if 0.1 <= choice < 0.2:
                weights[position].grad = torch.full_like(weights[position], 0.01)
            elif 0.2 <= choice < 0.3:
                weights[position].grad = None
            elif 0.3 <= choice < 0.4:
                model.zero_grad(set_to_none=False)
            elif 0.4 <= choice < 0.5:
                with torch.no_grad():
                    model.net.eval()(torch.ones(3, 6))
                model.train()
            elif 0.5 <= choice < 0.6:
                model.load_state_dict({key: value * 0.9 if value.is_floating_point() else value
                                       for key, value in model.state_dict().items()})  # fmt: skip
        return

    def _once(self, number):
        generator = torch.Generator().manual_seed(number)
        inputs = {"x": torch.randn(3, 6, generator=generator), "y": torch.randint(0, 6, (3,), generator=generator)}
        name = ("update" if number % 3 == 2 else "learn") if self.split else "step"
        inputs = {} if name == "update" else inputs
        torch.set_rng_state(self.state)
        with torch.enable_grad():
            eagerly = self.draw.random() < 0.1
            try:
                wanted = getattr(self.eager, name)(**inputs).detach()
            except TypeError:  # fused SGD fails where some parameters have made their first step and others have not
                self.ended = True
                return None
            after = torch.get_rng_state()
            torch.set_rng_state(self.state)
            try:
                if eagerly:
                    came = getattr(self.replayed, name)(**inputs).detach()
                else:
                    one = self.runner[name if self.split else "replay"]
                    (came,) = (one.verify if self.draw.random() < 0.1 else one)(**inputs).values()
            except graphspec.GuardError as error:
                torch.set_rng_state(self.state)  # refused by name: the user does as eager does
                if ".grad" not in str(error):
                    self.runner.recapture()
                came = getattr(self.replayed, name)(**inputs).detach()
        self.state = torch.get_rng_state()
        if not torch.equal(self.state, after):
            return "the random streams differ"
        if not torch.equal(wanted, came):
            return f"{wanted} in eager, {came} in replay"
        return self._differing()

    def _differing(self):
        for (name, one), other in zip(self.eager.named_parameters(), self.replayed.parameters(), strict=True):
            if not torch.equal(one, other):
                return name
            if (one.grad is None) != (other.grad is None) or (one.grad is not None and not one.grad.equal(other.grad)):
                return f"{name}.grad"
            if one.grad is not None:
                self.held.append((one.grad, other.grad))
        buffers = zip((*self.eager.buffers(), *self.eager.average), (*self.replayed.buffers(), *self.replayed.average),
                      strict=True)  # fmt: skip
        if not all(torch.equal(*pair) for pair in buffers):
            return "a buffer"
        pairs = zip(self.eager.parameters(), self.replayed.parameters(), strict=True)
        states = [(self.eager.optimizer.state.get(a), self.replayed.optimizer.state.get(b)) for a, b in pairs]
        for one, other in states:  # a parameter that has not made its first step in eager has none there
            if one and not all(torch.equal(one[key], other[key]) for key in one if isinstance(one[key], torch.Tensor)):
                return "the state of the optimizer"
        return None if all(torch.equal(*pair) for pair in self.held) else "a gradient that was held"


@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_drawn_training_step_equals_eager_or_is_refused(seed, tmp_path):
    drawn = Drawn(seed)
    try:
        fault = drawn.fault(tmp_path)
    except GraphSpecError as error:
        assert any(code in str(error) for code in ("GS701", "GS721", "GS760")), f"{error}\n{drawn.model}"  # noqa: PT017
        return
    assert fault is None, f"{fault}\n{drawn.model}{drawn.spec}"


def main(count, first):
    refused = wrong = 0
    for seed in range(first, first + count):
        drawn = Drawn(seed)
        with tempfile.TemporaryDirectory() as folder:
            try:
                fault = drawn.fault(Path(folder))
            except GraphSpecError as error:
                refused += 1
                known = any(code in str(error) for code in ("GS701", "GS721", "GS760"))
                fault = None if known else str(error)
            except Exception as error:  # noqa: BLE001 - a fault like another
                fault = f"{type(error).__name__}: {error}"
        if fault is not None:
            wrong += 1
            sys.stdout.write(f"seed {seed}: {fault}\n")
    sys.stdout.write(f"{count} draws, {refused} refused, {wrong} wrong\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else DRAWS))
