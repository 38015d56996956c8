"""Inline regions in loops that others wrote, generate and Trainer of transformers; and what apply refuses."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import graphspec
from graphspec import HazardError, InputError, ModelError, ReplayError
from graphspec.cli import main
from graphspec.errors import MismatchError


def spec(folder, call, **keys):
    text = "".join(f", {key}: {value}" for key, value in keys.items())
    path = folder / "spec.yaml"
    path.write_text(
        f"graphspec: 1\nmodel: {{factory: model.py:build}}\nregions: {{block: {{call: {call}, inline: true{text}}}}}\n"
    )
    (folder / "model.py").write_text("def build(): ...\n")
    return path


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("call", ["model.model.layers.*", '"model.model.layers.*.mlp"', "model.lm_head"])
@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_generate_gives_the_tokens_of_eager(call, cache, tmp_path):
    model = llama()
    prompts = torch.randint(2, 64, (2, 5))
    options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": None if cache == "dynamic" else cache}
    want = [model.generate(each, **options) for each in (prompts, prompts.flip(1))]
    with graphspec.apply(model, spec(tmp_path, call)) as applied:
        if cache == "dynamic" and call == "model.model.layers.*":  # it holds other tensors after each token
            with pytest.raises(HazardError, match=r"block \(model.model.layers.0\): argument 0.layers"):
                model.generate(prompts, **options)
            return
        have = [model.generate(each, **options) for each in (prompts, prompts.flip(1))]
    assert all(torch.equal(*both) for both in zip(have, want, strict=True))
    if 'layers.*"' not in call and call != "model.model.layers.*":
        assert applied.stats.replays > 0


def test_a_causal_model_trains_with_accumulation_and_evaluation_as_in_eager(tmp_path):
    def train(applying):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, use_cache=False)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        rows = torch.randint(64, (24, 2, 8), generator=torch.Generator().manual_seed(1))
        with applying(model) as applied:
            for number, ids in enumerate(rows[:16]):
                model.train()
                (model(input_ids=ids, labels=ids).loss / 2).backward()
                if number % 2:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                if number % 4 == 3:
                    model.eval()
                    with torch.no_grad():
                        losses = [model(input_ids=each, labels=each).loss for each in rows[16 + number // 4 :]]
        return model, losses, applied

    path = spec(tmp_path, "model.transformer.h.*", backward="true")
    with torch.enable_grad():
        eager, want, _ = train(contextlib.nullcontext)
        model, have, applied = train(lambda model: graphspec.apply(model, path))
    assert applied.stats.captures == 2  # training and evaluation
    assert applied.stats.replays > 50
    assert all(torch.equal(*both) for both in zip(have, want, strict=True))
    for (name, one), (_, other) in zip(model.named_parameters(), eager.named_parameters(), strict=True):
        assert torch.equal(one, other), name


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.size = 3

    def forward(self, x):
        return self.layers(x)


def test_serving_without_gradients_replays_from_the_second_call(tmp_path):
    model = Chain().eval()
    eager = copy.deepcopy(model)
    with graphspec.apply(model, spec(tmp_path, '"model.layers.*"')) as applied:
        for grad in (torch.no_grad, torch.inference_mode):
            for _ in range(6):
                with grad():
                    x = torch.randn(3, 4)
                    assert torch.equal(model(x), eager(x))
        assert applied.stats.captures == 2
        assert applied.stats.replays >= 20
        x = torch.randn(3, 4)
        y = model(x).sum()  # gradients are wanted, and the region has no backward
        y.backward()
        eager(x).sum().backward()
        assert torch.equal(model.layers[0].weight.grad, eager.layers[0].weight.grad)
        assert any("backward: true" in why for why in applied.stats.why)


def test_a_further_signature_that_cannot_be_captured_runs_eagerly_with_a_warning(tmp_path):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x) if len(x) == 3 else self.linear(x) * x.max().item()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Reads()

        def forward(self, x):
            return self.part(x)

    model = Model().eval()
    eager = copy.deepcopy(model)
    with torch.no_grad(), graphspec.apply(model, spec(tmp_path, "model.part")) as applied:
        for size in (3, 3, 2, 2, 2, 2, 3):
            x = torch.randn(size, 4)
            assert torch.equal(model(x), eager(x))
        assert (applied.stats.replays, applied.stats.fallbacks) == (2, 4)
        assert "GS701" in str(applied.warnings)


def test_paths_are_refused_with_their_place(tmp_path):
    for call, said in [
        ("model.layrs.*", "did you mean 'layers'"),
        ("model.size", "is a int"),
        ("model.layers.7", "has no '7'"),
    ]:
        path = spec(tmp_path, call)
        with pytest.raises(MismatchError, match=said) as error:
            graphspec.apply(Chain(), path)
        assert "spec.yaml:3:" in str(error.value)
        assert "GS740" in str(error.value)


def test_a_module_in_two_regions_or_inside_of_another_is_refused(tmp_path):
    path = spec(tmp_path, "model.layers")
    path.write_text(path.read_text().replace("}}\n", "}, other: {call: model.layers.0, inline: true}}\n"))
    with pytest.raises(MismatchError, match="lies inside of region 'block'"):
        graphspec.apply(Chain(), path)


def test_a_spec_without_inline_regions_is_refused_and_so_is_a_second_one(tmp_path):
    model = Chain()
    path = spec(tmp_path, "model.layers")
    with graphspec.apply(model, path), pytest.raises(ReplayError, match="already serves"):
        graphspec.apply(model, path)
    path.write_text("graphspec: 1\nmodel: {factory: model.py:build}\nbuffers: {x: {shape: [3, 4], dtype: float32}}\n"
                    "regions: {f: {call: model, inputs: [x], outputs: y}}\n")  # fmt: skip
    with pytest.raises(InputError, match="no inline region"):
        graphspec.apply(model, path)
    with pytest.raises(ModelError, match="on meta"):
        graphspec.apply(Chain().to("meta"), spec(tmp_path, "model.layers"), device="cpu")
    assert type(model.layers) is nn.Sequential


EAGER_LOOP = """
import torch
from torch import nn

class Loop:
    def __init__(self):
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.other = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD([*self.part.parameters(), *self.other.parameters()], lr=0.1)

    @torch.enable_grad()
    def step(self, x):
        self.optimizer.zero_grad()
        loss = (self.part(x) if x.sum() > 0 else self.other(x)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

def build():
    return Loop()
"""
LOOP = """graphspec: 1
model: {factory: model.py:build, mode: train}
buffers: {x: {shape: [3, 4], dtype: float32}, loss: {role: output, shape: [], dtype: float32}}
regions:
  part: {call: model.part, inline: true, backward: true}
  step: {call: model.step, inputs: [x], outputs: loss, eager: true}
replay: [step]
"""


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "model.py").write_text(EAGER_LOOP)
    path = tmp_path / "spec.yaml"
    path.write_text(LOOP)
    return path


def test_an_opened_spec_serves_the_modules_that_its_eager_region_calls(loop):
    with graphspec.open(loop, device="cpu") as runner:
        model, eager = runner.model, copy.deepcopy(runner.model)
        for number in range(8):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number))
            assert torch.equal(runner.run(x=x)["loss"], eager.step(x))
            runner.verify(x=x)
            eager.step(x)
        assert runner.inline.stats.replays > 4
        assert all(torch.equal(*both) for both in zip(model.part.parameters(), eager.part.parameters(), strict=True))
    assert type(model.part) is nn.Sequential


def test_commands_know_specs_with_inline_regions(loop, capsys):
    for command in ("validate", "plan", "check", "run"):
        assert main([command, str(loop)]) == 0, command
        said = capsys.readouterr().out
        assert {"validate": "no findings", "plan": "model.part  all forwards, then all backwards"}.get(
            command, ""
        ) in said
    assert "part, backward" in said
    loop.write_text(LOOP.replace("model.part", "model.prt"))
    assert main(["check", str(loop)]) == 1
    assert "GS740" in capsys.readouterr().out
    loop.write_text("graphspec: 1\nmodel: {factory: model.py:build}\nregions: {p: {call: model.part, inline: true}}\n")
    assert main(["run", str(loop)]) == 2
    assert "graphspec.apply" in capsys.readouterr().err
