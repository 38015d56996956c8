"""Whole training steps: after every run losses, weights, gradients, optimizer states and random streams are eager's."""

import pytest
import torch
from steps import ADAMW, BACK, KEEP, NET, PLAIN, SPEC, STEP, ZERO, Pair, data, disturbed, model

import graphspec
from graphspec.errors import GraphSpecError, GuardError, HazardError, MismatchError, SpecError

STEPS = {
    "zeroed first": (ZERO, "LOSS", BACK, STEP),
    "zeroed first, in place": (KEEP, "LOSS", BACK, STEP),
    "zeroed last": ("LOSS", BACK, STEP, ZERO),
    "zeroed last, in place": ("LOSS", BACK, STEP, KEEP),
    "zeroed by the user": ("LOSS", BACK, STEP),
    "set to None by hand": ("for p in self.parameters(): p.grad = None", "LOSS", BACK, STEP),
    "set by hand": (
        "LOSS",
        "weights = list(self.net.parameters())",
        "for p, g in zip(weights, torch.autograd.grad(loss, weights)): p.grad = g",
        STEP,
    ),
    "norm clipped": (ZERO, "LOSS", BACK, "torch.nn.utils.clip_grad_norm_(self.parameters(), 0.1)", STEP),
    "values clipped": (ZERO, "LOSS", BACK, "torch.nn.utils.clip_grad_value_(self.parameters(), 0.01)", STEP),
    "two backwards": (ZERO, "LOSS", "loss.backward(retain_graph=True)", BACK, STEP),
    "zeroed between two backwards": ("LOSS", BACK, ZERO, "LOSS", BACK, STEP),
    "micro-batches inside": (
        ZERO,
        "for k in range(2):",
        "    loss = F.cross_entropy(self.net(x[k:k + 1]), y[k:k + 1]) / 2",
        "    loss.backward()",
        STEP,
    ),
    "a second order": (
        ZERO,
        "LOSS",
        "first = torch.autograd.grad(loss, list(self.net.parameters()), create_graph=True)",
        "loss = loss + sum(each.pow(2).sum() for each in first)",
        BACK,
        STEP,
    ),
}


@pytest.mark.case("C50", "C51")
@pytest.mark.parametrize("lines", STEPS.values(), ids=STEPS)
def test_a_step_leaves_what_eager_leaves_whatever_is_in_grad_before(case, lines):
    Pair(case, model(*lines)).train(9, disturbed, verify=(5,))


@pytest.mark.case("C51")
@pytest.mark.parametrize("grads", ["overwrite", "accumulate"])
def test_grads_is_what_the_step_does_and_no_history(case, grads):
    accumulates = model("LOSS", BACK)
    spec = SPEC.replace("optimizer: model.optimizer{more}", "grads: " + grads)
    if grads == "overwrite":
        with case.refused(HazardError, "GS760", "adds to", "model.net.0.weight.grad"):
            case.open(accumulates, spec.format())
        Pair(case, model(ZERO, "LOSS", BACK), spec.format()).train(6, disturbed)
    else:
        Pair(case, accumulates, spec.format()).train(6, disturbed)


@pytest.mark.case("C50")
def test_a_gradient_that_is_held_keeps_its_value_and_one_that_was_there_is_added_to(case):
    pair = Pair(
        case, model("LOSS", BACK), SPEC.replace("optimizer: model.optimizer{more}", "grads: accumulate").format()
    )
    pair.run(0)
    weight = pair.replayed.net[0].weight
    held = weight.grad
    pair.run(1)
    assert weight.grad is held  # as eager adds in place
    weight.grad, pair.eager.net[0].weight.grad = None, None
    before = held.clone()
    pair.run(2)
    assert weight.grad is not held
    assert torch.equal(held, before)


def test_opening_changes_nothing_that_the_user_sees(case):
    path = case.write(PLAIN, SPEC.format(more=""))
    model = case.eager(train=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [parameter.grad for parameter in model.parameters()]
    state = torch.get_rng_state()
    with graphspec.open(path, model=model, device="cpu"):
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            assert parameter.grad is grad
            assert torch.equal(grad, torch.ones_like(parameter))


OPTIMIZERS = {
    "SGD": "SGD(self.parameters(), lr=0.1)",
    "SGD, momentum": "SGD(self.parameters(), lr=0.1, momentum=0.9)",
    "SGD, Nesterov": "SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)",
    "SGD, fused": "SGD(self.parameters(), lr=0.1, momentum=0.9, fused=True)",
    "SGD, foreach": "SGD(self.parameters(), lr=0.1, momentum=0.9, maximize=True, foreach=True)",
    "Adam": "Adam(self.parameters(), lr=0.01, fused=True, amsgrad=True)",
    "AdamW": "AdamW(self.parameters(), lr=0.01, fused=True)",
    "AdamW, lr in a tensor": "AdamW(self.parameters(), lr=torch.tensor(0.01), fused=True)",
    "Adagrad": "Adagrad(self.parameters(), lr=0.01, fused=True)",
    "RMSprop": "RMSprop(self.parameters(), lr=0.01, momentum=0.9, centered=True)",
    "Adadelta": "Adadelta(self.parameters())",
    "Rprop": "Rprop(self.parameters())",
    "two groups": "AdamW([{'params': self.net[0].parameters(), 'lr': 0.1}, {'params': self.net[3].parameters()}], "
    "lr=0.01, fused=True)",
}


@pytest.mark.case("C53", "C56")
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_captured_before_its_first_step_steps_as_in_eager(case, optimizer):
    Pair(case, model(ZERO, "LOSS", BACK, STEP, optimizer=f"torch.optim.{optimizer}")).train(6)


@pytest.mark.case("C53", "C56")
@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("Adam(self.parameters())", ("GS701", "fused=True")),
        ("Adagrad(self.parameters())", ("GS701", "fused=True")),
        ("NAdam(self.parameters())", ("GS701", "NAdam", "AdamW")),
        ("SGD(self.parameters(), momentum=0.9, dampening=0.5)", ("GS721", "aten::mul_")),
        ("LBFGS(self.parameters())", ("GS740", "LBFGS")),
    ],
)
def test_an_optimizer_that_no_graph_can_step_is_refused_with_the_way_out(case, optimizer, words):
    with case.refused(GraphSpecError, *words):
        case.open(model(ZERO, "LOSS", BACK, STEP, optimizer=f"torch.optim.{optimizer}"), SPEC.format(more=""))


@pytest.mark.case("C53")
def test_adam_steps_by_what_it_has_counted(case):
    source = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))
            self.optimizer = torch.optim.Adam([self.w], lr=0.1, fused=True)

        def step(self, x):
            self.optimizer.zero_grad()
            (self.w * x).sum().backward()
            self.optimizer.step()
            return self.w * 1
    """
    spec = "buffers: {x: {shape: [1], dtype: float32}}\nregions:\n"
    spec += "  step: {call: model.step, inputs: [x], outputs: w, optimizer: model.optimizer}"
    runner = case.open(source, spec)
    weights = [runner.run(x=torch.tensor([each]))["w"].item() for each in (1.0, -2.0, 3.0)]
    assert weights[-1] == pytest.approx(0.9023, abs=5e-5)


CHANGES = {
    "lr": (lambda m: m.optimizer.param_groups[0].update(lr=0.01), "model.optimizer.param_groups[0]['lr']"),
    "momentum": (lambda m: m.optimizer.param_groups[0].update(momentum=0.5), "param_groups[0]['momentum']"),
    "nesterov": (lambda m: m.optimizer.param_groups[0].update(nesterov=True), "param_groups[0]['nesterov']"),
    "a scheduler": (
        lambda m: torch.optim.lr_scheduler.StepLR(m.optimizer, 1, 0.1).step(),
        "model.optimizer.param_groups[0]['lr']",
    ),
    "frozen": (lambda m: m.net[0].weight.requires_grad_(False), "model.net.0.weight.requires_grad"),
    "a group": (
        lambda m: m.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
        "model.optimizer.param_groups",
    ),
    "a member": (lambda m: m.optimizer.param_groups[0]["params"].pop(), "model.optimizer.param_groups[0]['params']"),
    "a loaded state": (lambda m: m.optimizer.load_state_dict(m.optimizer.state_dict()), "model.optimizer.state"),
}


@pytest.mark.case("C54")
@pytest.mark.parametrize(("change", "name"), CHANGES.values(), ids=CHANGES)
def test_what_a_step_froze_is_guarded_by_name_and_recaptured(case, change, name):
    pair = Pair(case, PLAIN)
    pair.train(2)
    pair.both(change)
    with case.refused(GuardError, name, "recapture"):
        pair.runner.run(**data(2))
    pair.runner.recapture()
    pair.run(3)
    pair.run(4)


def test_a_number_that_changes_has_two_ways_out(case):
    pair = Pair(case, PLAIN)
    pair.replayed.optimizer.param_groups[0]["lr"] = 0.01
    with case.refused(GuardError, "torch.tensor", "bind: {model.optimizer.param_groups.0.lr: lr}"):
        pair.runner.run(**data(0))


@pytest.mark.case("C54")
def test_a_learning_rate_in_a_tensor_follows_a_scheduler(case):
    optimizer = "torch.optim.AdamW(self.parameters(), lr=torch.tensor(0.01), fused=True)"
    pair = Pair(case, model(ZERO, "LOSS", BACK, STEP, optimizer=optimizer))
    schedulers = [torch.optim.lr_scheduler.StepLR(m.optimizer, 2, 0.1) for m in (pair.eager, pair.replayed)]
    for number in range(6):
        pair.run(number)
        for each in schedulers:
            each.step()


BOUND = SPEC.replace("    buffers:", "    params: {{lr: {{type: float, default: 0.1}}}}\n    buffers:").format(
    more=", bind: {model.optimizer.param_groups.0.lr: lr}"
)


@pytest.mark.case("C54")
def test_a_bound_param_is_written_before_every_run(case):
    optimizer = "torch.optim.AdamW(self.parameters(), lr=torch.tensor(0.1), fused=True)"
    pair = Pair(case, model(ZERO, "LOSS", BACK, STEP, optimizer=optimizer), BOUND)
    assert pair.replayed.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)  # a capture leaves no trace
    for number in range(6):
        rate = 0.1 * 0.5**number
        pair.eager.optimizer.param_groups[0]["lr"].fill_(rate)
        torch.set_rng_state(pair.state)
        with torch.enable_grad():
            wanted = pair.eager.step(**data(number))
        torch.set_rng_state(pair.state)
        came = (pair.runner.verify if number == 3 else pair.runner.run)(**data(number), lr=rate)
        assert torch.equal(came["loss"], wanted)
        pair.compare(number)


def test_a_param_is_bound_to_a_tensor(case):
    with case.refused(MismatchError, "GS740", "model.optimizer.param_groups.0.lr", "float", "torch.tensor(0.1)"):
        case.open(PLAIN, BOUND)


@pytest.mark.case("C54")
def test_steps_of_sgd_by_a_schedule(case):
    source = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))
            self.optimizer = torch.optim.SGD([self.w], lr=torch.tensor(0.1), fused=True)

        def step(self, x):
            self.optimizer.zero_grad()
            (self.w * x).sum().backward()
            self.optimizer.step()
            return self.w * 1
    """
    spec = "buffers: {x: {shape: [1], dtype: float32}}\nregions:\n"
    spec += "  step: {call: model.step, inputs: [x], outputs: w, optimizer: model.optimizer}"
    runner = case.open(source, spec)
    scheduler = torch.optim.lr_scheduler.StepLR(runner.model.optimizer, 1, 0.1)
    for _ in range(3):
        weight = runner.run(x=torch.ones(1))["w"].item()
        scheduler.step()
    assert weight == pytest.approx(0.889)


def test_a_region_that_trains_has_no_padded_rows(case):
    spec = (
        SPEC.format(more="")
        .replace("shape: [2", "shape: [batch")
        .replace("    buffers:", "    dims: {batch: DIM}\n    buffers:")
    )
    with case.refused(SpecError, "GS413", "'batch'", "exact: true"):
        case.open(PLAIN, spec.replace("DIM", "[2, 4]"))
    pair = Pair(case, PLAIN, spec.replace("DIM", "{sizes: [2, 4], exact: true}"))
    for number in range(6):
        pair.run(number, **data(number, rows=4 if number % 3 else 2))


def test_a_backward_that_nobody_declared_is_refused(case):
    source = PLAIN.replace("def step", "@torch.enable_grad()\n        def step")
    with case.refused(HazardError, "GS761", "backward", "optimizer: model.optimizer"):
        case.open(source, SPEC.replace(", optimizer: model.optimizer{more}", "").format())


TWO = """
    model: {factory: model.py:Model, mode: train}
    buffers:
      x: {shape: [2, 4], dtype: float32}
      y: {shape: [2], dtype: int64, sample: {randint: [0, 3]}}
    regions:
      learn: {call: model.learn, inputs: [x, y], outputs: loss, grads: accumulate}
      update: {call: model.update, outputs: done, optimizer: model.optimizer}
    replay: {learn: [learn], update: [update]}
"""
APART = f"""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = {NET}
            self.spare = nn.Linear(2, 2)
            self.optimizer = {ADAMW}

        def learn(self, x, y):
            loss = F.cross_entropy(self.net(x), y) / 2
            loss.backward()
            return loss

        def update(self):
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return self.net[0].bias * 1
"""


def test_gradients_are_held_between_two_sequences(case):
    pair = Pair(case, APART, TWO)
    number = 0
    for batches in (1, 2, 3, 1):
        for _ in range(batches):
            pair.run(number, "learn")
            number += 1
        pair.both(lambda m: m.net[3].weight.grad.mul_(0.5))  # what the user does in between counts
        update(pair)
    with case.refused(GuardError, "'update'", "model.net.0.weight.grad", "None"):
        pair.runner["update"]()


def update(pair):
    with torch.enable_grad():
        wanted = pair.eager.update()
    assert torch.equal(pair.runner["update"]()["done"], wanted)
    pair.compare()


@pytest.mark.parametrize("options", ["weight_decay=0.1", "momentum=0.9, weight_decay=0.1", "maximize=True"])
def test_a_gradient_that_an_optimizer_reads_is_not_made_up(case, options):
    """Weight decay adds to the gradient that it finds, as autograd does; eager leaves out what has none."""
    pair = Pair(case, APART.replace(ADAMW, f"torch.optim.SGD(self.parameters(), lr=0.1, {options})"), TWO)
    pair.run(0, "learn")
    pair.both(lambda m: setattr(m.net[0].weight, "grad", None))
    with case.refused(GuardError, "'update'", "model.net.0.weight.grad", "None"):
        pair.runner["update"]()
    pair.run(1, "learn")
    update(pair)
