"""Whole training steps of many kinds: scalers, autocast, checkpointing, several optimizers, resuming, hooks."""

import copy

import pytest
import torch
from steps import ADAMW, BACK, SPEC, STEP, ZERO, Pair, data, model

import graphspec
from graphspec.errors import GraphSpecError, HazardError
from graphspec.runtime.check import check_spec

HALF = "nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))"

KINDS = {
    "batch norm": {"net": "nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))"},
    "LSTM": {"net": "nn.LSTM(4, 3)", "loss": "F.cross_entropy(self.net(x[None])[0][0], y)"},
    "GRU": {"net": "nn.GRU(4, 3)", "loss": "F.cross_entropy(self.net(x[None])[0][0], y)"},
    "convolution": {
        "net": "nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 3, 1))",
        "loss": "F.cross_entropy(self.net(x[:, :, None, None].expand(2, 4, 4, 4)).mean((2, 3)), y)",
    },
    "attention": {
        "net": "nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)",
        "loss": "F.cross_entropy(self.net(x[None])[0], y)",
    },
    "two forwards": {"loss": "F.cross_entropy(self.net(x), y) + F.cross_entropy(self.net(-x), y)"},
    "embedding": {"net": "nn.Embedding(3, 3)", "loss": "F.cross_entropy(self.net(y) + x[:, :3], y)"},
    "tied weights": {
        "net": "nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))",
        "more": "self.net[2].weight = self.net[0].weight",
    },
    "weight norm": {"net": "nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))"},
    "autocast": {
        "lines": ("with torch.autocast('cpu', dtype=torch.bfloat16):", "    loss = F.cross_entropy(self.net(x), y)")
    },
    "a hook on an activation": {
        "lines": ("h = self.net(x)", "h.register_hook(lambda g: g * 0.5)", "loss = F.cross_entropy(h, y)")
    },
    "checkpointing": {
        "net": HALF,
        "lines": (
            "from torch.utils.checkpoint import checkpoint",
            "h = checkpoint(self.net, x, use_reentrant=False)",
            "loss = F.cross_entropy(h, y)",
        ),
    },
    "checkpointing that draws anew": {
        "lines": (
            "from torch.utils.checkpoint import checkpoint",
            "h = checkpoint(self.net, x, use_reentrant=False, preserve_rng_state=False)",
            "loss = F.cross_entropy(h, y)",
        )
    },
    "an average of the weights": {
        "more": "self.average = [each.detach().clone() for each in self.net.parameters()]",
        "after": (
            "with torch.no_grad():",
            "    for kept, each in zip(self.average, self.net.parameters()): kept.lerp_(each, 0.1)",
        ),
    },
    "a low rank beside frozen weights": {
        "net": "nn.Linear(4, 3)",
        "optimizer": "None",
        "more": "self.net.requires_grad_(False)\n"
        "            self.a, self.b = nn.Parameter(torch.ones(2, 4) * 0.1), nn.Parameter(torch.zeros(3, 2))\n"
        "            self.optimizer = torch.optim.AdamW([self.a, self.b], lr=0.01, fused=True)",
        "loss": "F.cross_entropy(self.net(x) + x @ self.a.T @ self.b.T, y)",
    },
    "a closure": {
        "whole": (
            "def closure():",
            "    self.optimizer.zero_grad()",
            "    loss = F.cross_entropy(self.net(x), y)",
            "    loss.backward()",
            "    return loss",
            "loss = self.optimizer.step(closure)",
        )
    },
    "the gradient of an input": {
        "lines": (
            "x = x.detach().requires_grad_()",
            "LOSS",
            "loss = loss + torch.autograd.grad(loss, x, create_graph=True)[0].pow(2).sum()",
        )
    },
}


def kind_of(lines=("LOSS",), whole=None, after=(), optimizer=ADAMW, **options):
    return model(*(whole or (ZERO, *lines, BACK, STEP, *after)), optimizer=optimizer, **options)


@pytest.mark.case("C52", "C55", "C57")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_step_of_this_kind_equals_eager(case, kind):
    pair = Pair(case, kind_of(**kind))
    pair.train(5, verify=(3,))
    found = check_spec(graphspec.load(case.path), "cpu").findings
    assert [each for each in found if each.severity == "error"] == []


def test_the_autocast_of_a_region_covers_its_forward(case):
    forward = "with torch.autocast('cpu', dtype=torch.bfloat16, cache_enabled=False):"
    pair = Pair(case, model(ZERO, "LOSS", BACK, STEP, net=HALF), more=", autocast: bfloat16")
    path = case.path
    case.write(
        model(ZERO, forward, "    loss = F.cross_entropy(self.net(x), y)", BACK, STEP, net=HALF), SPEC.format(more="")
    )
    pair.eager = case.eager(train=True)
    case.path = path
    pair.train(5)


@pytest.mark.case("C55")
def test_batch_norm_has_tracked_what_was_run(case):
    source = """
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

        def step(self, x):
            self.optimizer.zero_grad()
            loss = self.norm(x).pow(2).sum()
            loss.backward()
            self.optimizer.step()
            return loss
    """
    spec = """
        model: {factory: model.py:Model, mode: train}
        buffers: {x: {shape: [2, 2], dtype: float32}}
        regions: {step: {call: model.step, inputs: [x], outputs: loss, warmup: 3, optimizer: model.optimizer}}
    """
    runner = case.open(source, spec)
    runner.run(x=torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert runner.model.norm.num_batches_tracked == 1
    torch.testing.assert_close(runner.model.norm.running_mean, torch.tensor([0.2, 0.3]))


@pytest.mark.case("C57")
def test_dropout_draws_from_the_stream_of_the_process(case):
    pair = Pair(case, kind_of())
    losses = []
    for _ in range(2):
        pair.state = torch.random.manual_seed(7).get_state()
        pair.run(0)
        losses.append(pair.losses[-1])
    assert not torch.equal(*losses)  # the weights have moved, with the same masks


@pytest.mark.case("C58")
def test_a_generator_of_the_models_own_is_declared(case):
    source = kind_of(
        lines=("x = x * (torch.rand(2, 4, generator=self.noise) > 0.5)", "LOSS"),
        more="self.noise = torch.Generator().manual_seed(3)",
    )
    with case.refused(HazardError, "GS704", "model.noise"):
        case.open(source, SPEC.format(more=""))
    Pair(case, source, more=", generators: [model.noise]").train(5)


SCALED = (
    ZERO,
    "LOSS",
    "loss = loss * x.abs().amax()",  # of an infinite input
    "self.scaler.scale(loss).backward()",
    "self.scaler.step(self.optimizer)",
    "self.scaler.update()",
)
SCALER = "self.scaler = torch.amp.GradScaler('cpu', init_scale=128.0, growth_interval=3)"


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_scaler_skips_and_grows_inside_of_the_graph(case, unscaled):
    clipped = ("self.scaler.unscale_(self.optimizer)", "nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)")
    lines = (*SCALED[:4], *(clipped if unscaled else ()), *SCALED[4:])
    pair = Pair(case, kind_of(whole=lines, more=SCALER, net=HALF))
    scales = []
    for number in range(9):
        inputs = data(number)
        if number in (2, 6):
            inputs["x"][0, 0] = 1e38
        wanted = inputs["x"].clone()
        if number == 2:
            inputs["x"][0, 0] = torch.inf
            wanted = inputs["x"]
        with torch.enable_grad():
            eager = pair.eager.step(wanted.clone(), inputs["y"])
        came = pair.runner.run(**inputs)["loss"]
        assert torch.equal(eager.nan_to_num(), came.nan_to_num())
        for one, other in zip(pair.eager.parameters(), pair.replayed.parameters(), strict=True):
            assert torch.equal(one, other)
        assert pair.eager.scaler.get_scale() == pair.replayed.scaler.get_scale()
        scales.append(pair.replayed.scaler.get_scale())
    assert min(scales) < 128.0 < max(*scales, 129.0)  # a step was skipped


def test_a_scaler_with_an_optimizer_that_asks_on_the_host_is_refused(case):
    source = kind_of(whole=SCALED, more=SCALER, optimizer="torch.optim.SGD(self.parameters(), lr=0.1)")
    with case.refused(HazardError, "GS701", "fused=True"):
        case.open(source, SPEC.format(more=""))


def test_checkpointing_that_draws_the_same_again_is_refused(case):
    with case.refused(HazardError, "GS705", "checkpointing", "preserve_rng_state=False"):
        case.open(
            kind_of(
                lines=(
                    "from torch.utils.checkpoint import checkpoint",
                    "loss = F.cross_entropy(checkpoint(self.net, x, use_reentrant=False), y)",
                )
            ),
            SPEC.format(more=""),
        )


HOOKS = {
    "a module": "self.net[0].register_forward_hook(lambda *_: None)",
    "a parameter": "self.net[0].weight.register_hook(lambda g: g * 0.5)",
    "an accumulated gradient": "list(self.parameters())[0].register_post_accumulate_grad_hook(lambda p: print(end=''))",
    "an optimizer": "self.optimizer.register_step_post_hook(lambda *_: None)",
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_hooks_are_refused_by_name_and_allowed_where_they_only_compute(case, hook):
    with case.refused(HazardError, "GS712", "hooks: allow"):
        case.open(kind_of(more=hook), SPEC.format(more=""))
    Pair(case, kind_of(more=hook), more=", hooks: allow").train(4)


def test_hooks_are_found_through_a_plain_object(case):
    source = """
    class Model:
        def __init__(self):
            self.net = nn.Linear(4, 3)
            self.net.register_full_backward_hook(lambda *_: None)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def step(self, x, y):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(x), y)
            loss.backward()
            self.optimizer.step()
            return loss
    """
    with case.refused(HazardError, "GS712", "model.net", "full backward hook"):
        case.open(source, SPEC.format(more="").replace(", mode: train", ""))


def test_sparse_gradients_are_refused_by_name(case):
    source = kind_of(
        net="nn.Embedding(3, 3, sparse=True)",
        loss="F.cross_entropy(self.net(y) + x[:, :3], y)",
        optimizer="torch.optim.SGD(self.parameters(), lr=0.1)",
    )
    with case.refused(GraphSpecError, "GS749", "sparse"):
        case.open(source, SPEC.format(more=""))


GAN = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.make, self.judge = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
            self.makes = torch.optim.AdamW(self.make.parameters(), lr=0.01, fused=True)
            self.judges = torch.optim.SGD(self.judge.parameters(), lr=0.1, momentum=0.9)

        def step(self, x, y):
            made = self.make(torch.randn_like(x))
            self.judges.zero_grad()
            one = F.softplus(-self.judge(x)).mean() + F.softplus(self.judge(made.detach())).mean()
            one.backward()
            self.judges.step()
            self.makes.zero_grad()
            other = F.softplus(-self.judge(made)).mean()
            other.backward()
            self.makes.step()
            return one + other
"""


def test_two_networks_are_trained_against_each_other(case):
    spec = SPEC.replace("model.optimizer{more}", "[model.makes, model.judges]").format()
    pair = Pair(case, GAN, spec, optimizers=("makes", "judges"))
    pair.train(6)
    pair.replayed.judges.param_groups[0]["lr"] = 0.5
    with case.refused(GraphSpecError, "model.judges.param_groups[0]['lr']"):
        pair.runner.run(**data(0))


def test_evaluating_in_between_leaves_the_step_as_it_is(case):
    pair = Pair(
        case, kind_of(net="nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))")
    )

    def evaluated(model, number):
        model.eval()
        with torch.no_grad():
            model.net(data(number)["x"])
        if number != 2:
            model.train()

    for number in range(4):
        pair.both(lambda model, at=number: evaluated(model, at))
        if number == 2:
            with case.refused(GraphSpecError, "train to eval"):
                pair.runner.run(**data(number))
            pair.both(lambda model: model.train())
        pair.run(number)


def loaded_in_place(optimizer, saved):
    """What `load_state_dict` does, into the tensors that are there."""
    for parameter, held in zip(optimizer.state, saved, strict=True):
        for key, value in held.items():
            optimizer.state[parameter][key].copy_(value)


def test_going_back_to_a_checkpoint_equals_never_having_left_it(case):
    pair = Pair(case, kind_of())
    pair.train(3)
    weights = copy.deepcopy(pair.replayed.state_dict())
    states = [{key: value.clone() for key, value in held.items()} for held in pair.replayed.optimizer.state.values()]
    random = pair.state
    pair.train(3)
    wanted = pair.losses[-3:]
    for model_ in (pair.eager, pair.replayed):
        model_.load_state_dict(weights)
        loaded_in_place(model_.optimizer, states)
    pair.state = random
    pair.train(3)
    assert all(map(torch.equal, pair.losses[-3:], wanted))


@pytest.mark.parametrize("anew", [False, True], ids=["recaptured", "a new runner"])
def test_resuming_from_a_checkpoint_goes_on_as_if_nothing_had_stopped(case, anew):
    pair = Pair(case, kind_of())
    pair.train(3)
    saved = copy.deepcopy((pair.replayed.state_dict(), pair.replayed.optimizer.state_dict()))
    if anew:
        fresh = case.eager(train=True)
        fresh.load_state_dict(saved[0])
        fresh.optimizer.load_state_dict(saved[1])
        pair.runner.close()
        pair.replayed = fresh
        pair.runner = graphspec.open(case.path, model=fresh, device="cpu")
        case._opened.append(pair.runner)
    else:
        pair.replayed.load_state_dict(saved[0])
        pair.replayed.optimizer.load_state_dict(saved[1])
        with case.refused(GraphSpecError, "model.optimizer", "recapture"):
            pair.runner.run(**data(3))
        pair.runner.recapture()
    pair.eager.zero_grad(), pair.replayed.zero_grad()
    pair.train(4)


def test_a_copy_of_the_model_trains_on_its_own(case):
    pair = Pair(case, kind_of())
    pair.train(2)
    other = copy.deepcopy(pair.replayed)
    before = [each.clone() for each in other.parameters()]
    pair.train(2)
    assert all(map(torch.equal, other.parameters(), before))
    after = [each.clone() for each in pair.replayed.parameters()]
    with torch.enable_grad():
        other.step(**data(0))
    assert all(map(torch.equal, pair.replayed.parameters(), after))


def test_thawed_weights_are_refused_until_they_are_recaptured(case):
    pair = Pair(case, kind_of(more="self.net[0].requires_grad_(False)"))
    pair.train(2)
    pair.both(lambda model: model.net[0].requires_grad_(True))
    with case.refused(GraphSpecError, "model.net.0.weight.requires_grad was False and is True"):
        pair.runner.run(**data(2))
    pair.runner.recapture()
    pair.train(3)


def test_the_net_compares_gradients_too(case):
    pair = Pair(case, kind_of())
    spoilt = pair.runner.graph("step").gradients
    leave = spoilt.leave

    def spoil():
        leave()
        pair.replayed.net[0].weight.grad.mul_(2)

    spoilt.leave = spoil
    with case.refused(GraphSpecError, "model.net.0.weight.grad"):
        pair.runner.verify(**data(0))
    del spoilt.leave
    pair.run(0)
