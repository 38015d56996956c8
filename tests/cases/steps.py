"""Whole training steps: a model trained by graphs beside its equal in plain Python, compared after every run."""

import torch

SPEC = """
    model: {{factory: model.py:Model, mode: train}}
    buffers:
      x: {{shape: [2, 4], dtype: float32}}
      y: {{shape: [2], dtype: int64, sample: {{randint: [0, 3]}}}}
    regions:
      step: {{call: model.step, inputs: [x, y], outputs: loss, optimizer: model.optimizer{more}}}
"""
NET = "nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))"
SGD = "torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)"
ADAMW = "torch.optim.AdamW(self.parameters(), lr=0.01, fused=True)"
ZERO, KEEP = "self.optimizer.zero_grad()", "self.optimizer.zero_grad(set_to_none=False)"
BACK, STEP = "loss.backward()", "self.optimizer.step()"


def model(*body, optimizer=SGD, net=NET, loss="F.cross_entropy(self.net(x), y)", more=""):
    """A model with a step of these lines; ``LOSS`` among them computes the loss."""
    lines = "\n".join(f"            {line}" for line in (f"loss = {loss}" if line == "LOSS" else line for line in body))
    return f"""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = {net}
            self.spare = nn.Linear(2, 2)
            self.optimizer = {optimizer}
            {more}

        def step(self, x, y):
{lines}
            return loss
    """


PLAIN = model(ZERO, "LOSS", BACK, STEP)


def data(number, rows=2):
    generator = torch.Generator().manual_seed(number)
    return {"x": torch.randn(rows, 4, generator=generator), "y": torch.randint(0, 3, (rows,), generator=generator)}


def tensors_of(optimizer):
    return [value for held in optimizer.state.values() for value in held.values() if isinstance(value, torch.Tensor)]


class Pair:
    """A model that is trained by plain Python, and its equal that is trained by graphs."""

    def __init__(self, case, source, spec=SPEC, more="", optimizers=("optimizer",)):
        self.runner = case.open(source, spec.format(more=more) if "{{" in spec else spec)
        self.eager, self.replayed = case.eager(train=True), self.runner.model
        self.optimizers = optimizers
        self.held = []
        self.losses = []
        self.state = torch.random.manual_seed(7).get_state()

    def both(self, change):
        """The same, done to both."""
        change(self.eager)
        change(self.replayed)

    def run(self, number, sequence="step", *, verify=False, **inputs):
        inputs = inputs or data(number)
        torch.set_rng_state(self.state)
        with torch.enable_grad():
            wanted = getattr(self.eager, sequence)(**inputs)
        after = torch.get_rng_state()
        torch.set_rng_state(self.state)
        one = self.runner[sequence] if len(self.runner.sequences) > 1 else self.runner
        came = (one.verify if verify else one.run if one is self.runner else one)(**inputs)
        assert torch.equal(torch.get_rng_state(), after), "the random streams differ"
        self.state = after
        for value in came.values():
            assert torch.equal(value, wanted), f"run {number}"
            self.losses.append(value)
        self.compare(number)

    def compare(self, number=0):
        for (name, one), other in zip(self.eager.named_parameters(), self.replayed.parameters(), strict=True):
            assert torch.equal(one, other), f"run {number}: {name}"
            assert (one.grad is None) == (other.grad is None), f"run {number}: {name}.grad"
            if one.grad is not None:
                assert torch.equal(one.grad, other.grad), f"run {number}: {name}.grad"
                self.held.append((one.grad, other.grad))
        for one, other in zip(self.eager.buffers(), self.replayed.buffers(), strict=True):
            assert torch.equal(one, other), f"run {number}"
        for name in self.optimizers:
            one, other = (tensors_of(getattr(model, name)) for model in (self.eager, self.replayed))
            if one:  # a graph is captured with the state of the first step
                assert all(map(torch.equal, one, other)), f"run {number}: {name}"
                assert len(one) == len(other)
        assert all(torch.equal(*pair) for pair in self.held), f"run {number} changed a gradient that is held"

    def train(self, steps, between=lambda *_: None, verify=()):
        for number in range(steps):
            self.both(lambda model, at=number: between(model, at))
            self.run(number, verify=number in verify)


def disturbed(model, number):
    """What a user may do to gradients between two steps."""
    if number % 3 == 1:
        for position, parameter in enumerate(model.net.parameters()):
            parameter.grad = torch.full_like(parameter, 0.01 * position) if position % 2 else None
    if number % 4 == 2:
        model.zero_grad(set_to_none=False)
    if number % 5 == 3:
        model.zero_grad()
