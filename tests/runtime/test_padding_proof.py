"""Padded rows never reach real rows: what the proof finds, and what it leaves alone."""

import textwrap

import pytest
import torch

import graphspec
from graphspec import spec as language
from graphspec.runtime.padding.fills import fills, varies
from graphspec.runtime.trial.execute import RunOptions, execute

MODEL = """
import torch
from torch import nn


class Rows(nn.Module):
    def forward(self, x):
        return x.relu()


class Total(nn.Module):
    def forward(self, x):
        return x + x.sum(0, keepdim=True)


class Largest(nn.Module):
    def forward(self, x):
        return x - x.relu().amax(0, keepdim=True)


class Masked(nn.Module):
    def forward(self, x, valid):
        total = (x * valid.unsqueeze(-1)).sum(0, keepdim=True)
        return x + total


class Attention(nn.Module):
    def forward(self, x, bias):
        return torch.softmax(x @ x.transpose(1, 2) + bias.unsqueeze(1), -1) @ x


class Slots(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = torch.zeros(16, 2)

    def forward(self, x, slots):
        self.cache.index_copy_(0, slots, x)
        return x + 1


class Noise(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x * torch.rand_like(x), 0.5, True)


class Sums(nn.Module):
    def forward(self, x, seen):
        seen.add_(x.sum(0))
        return x + 1
"""

ONE = """
graphspec: 1
name: padded
model: {factory: "model.py:%s"}
dims: {batch: [1, 4]}
buffers:
  x: {shape: [batch, 2], dtype: float32}
  %s
  y: {role: output, shape: [batch, 2], dtype: float32}
regions:
  f: {call: model, inputs: [%s], outputs: y}
replay: [f]
"""


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch):
    monkeypatch.setattr("graphspec.runtime.trial.timing._AT_LEAST_S", 0.0)


@pytest.fixture
def checked(tmp_path):
    """The check of a run of a spec."""

    def check(text, steps=3):
        (tmp_path / "model.py").write_text(MODEL)
        (tmp_path / "model.yaml").write_text(textwrap.dedent(text).lstrip())
        with graphspec.open(tmp_path / "model.yaml", device="cpu", capture=False) as runner:
            runner.capture(padding=False)  # as the command does, which shows the same on more inputs
            return execute(runner, RunOptions(steps)).report.check

    return check


def one(factory, buffer="x-none: 0", inputs="x"):
    return ONE % (factory, buffer, inputs)


def test_rows_that_stay_apart_are_proven_bit_by_bit(checked):
    found = checked(one("Rows"))
    assert found.status == "match"
    assert found.proof.sizes == ("batch=2 in batch=4",)
    assert found.proof.bitwise


@pytest.mark.parametrize("factory", ["Total", "Largest"])
def test_a_reduction_that_zeros_do_not_change_is_found_with_the_input_to_blame(checked, factory):
    found = checked(one(factory))
    assert found.status == "mismatch"
    assert found.failure.startswith(
        "padded rows reach real rows at batch=2 in batch=4: what 'x' holds in them changes y["
    )
    assert "from: {size: DIM}" in found.fix


def test_a_pad_that_is_a_valid_index_overwrites_a_slot_and_is_found(checked):
    slots = "slots: {shape: [batch], dtype: int64, pad: 0, sample: {randint: [1, 16]}}"
    found = checked(one("Slots", f"{slots}\n  cache: {{role: state, attr: model.cache}}", "x, slots"))
    assert found.status == "mismatch"
    assert "model.cache[0, " in found.failure


def test_a_cache_that_is_not_declared_is_watched_too(checked):
    slots = "slots: {shape: [batch], dtype: int64, pad: 0, sample: {randint: [1, 16]}}"
    assert "model.cache[0, " in checked(one("Slots", slots, "x, slots")).failure


def test_a_state_that_collects_padded_rows_is_found(checked):
    found = checked(one("Sums", "seen: {role: state, shape: [2], dtype: float32, init: 0}", "x, seen"))
    assert found.status == "mismatch"
    assert "changes state seen[" in found.failure


@pytest.mark.parametrize(
    "mask",
    [
        "valid: {shape: [batch], dtype: bool, pad: false, sample: {value: true}}",
        "valid: {shape: [batch], dtype: int64, pad: 0, sample: {value: 1}}",
        "valid: {shape: [batch], dtype: float32, pad: 0, sample: {value: 1}}",
    ],
)
def test_rows_that_a_mask_leaves_out_pass_whatever_the_dtype_of_the_mask(checked, mask):
    assert checked(one("Masked", mask, "x, valid")).status == "match"


def test_columns_that_minus_infinity_leaves_out_of_attention_pass(checked):
    text = """
    graphspec: 1
    name: attention
    model: {factory: "model.py:Attention"}
    dims: {length: [4, 8]}
    buffers:
      x: {shape: [2, length, 4], dtype: float32}
      bias: {shape: [2, length], dtype: float32, pad: -1.0e30, sample: {value: 0}}
      y: {role: output, shape: [2, length, 4], dtype: float32}
    regions:
      f: {call: model, inputs: [x, bias], outputs: y}
    replay: [f]
    """
    found = checked(text)
    assert found.status == "match"
    assert found.proof.sizes == ("length=5 in length=8", "length=1 in length=4")


def test_random_regions_draw_the_same_numbers_for_both_contents(checked):
    found = checked(one("Noise"))
    assert (found.status, found.proof.bitwise) == ("match", True)


def test_a_bucket_that_does_not_repeat_itself_is_compared_with_the_tolerance_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "model.yaml").write_text(one("Rows").lstrip())
    with graphspec.open(tmp_path / "model.yaml", device="cpu") as runner:
        sequence = runner.sequences["replay"]
        run, calls = sequence.run, []

        def jitter(inputs, fills=None):
            calls.append(inputs)
            return {name: value + 1e-7 * (len(calls) % 2) for name, value in run(inputs, fills).items()}

        monkeypatch.setattr(sequence, "run", jitter)
        found = execute(runner, RunOptions(steps=3)).report.check
    assert (found.status, found.proof.bitwise) == ("match", False)
    assert "does not repeat itself bit by bit (y)" in found.notes[0]


def buffer(dtype, pad=None, sample=None):
    return language.Buffer("b", shape=(4,), dtype=dtype, pad=pad, sample=sample)


def drawn(low, high):
    return language.Sample("randint", (low, high))


class TestContents:
    @pytest.mark.parametrize(
        ("padded", "expected"),
        [
            (buffer("float32"), True),
            (buffer("float32", pad=0), True),
            (buffer("float32", pad=-1e9), False),
            (buffer("float32", pad=0, sample=language.Sample("value", 1)), False),
            (buffer("float32", pad=0, sample=language.Sample("uniform", (0, 1))), True),
            (buffer("float32", pad=-1, sample=language.Sample("uniform", (0, 1))), False),
            (buffer("bool", pad=False), False),
            (buffer("int64", pad=0, sample=drawn(0, 100)), True),
            (buffer("int64", pad=-1, sample=drawn(0, 100)), False),
            (buffer("int64", pad=0, sample=drawn(0, 1)), False),
            (buffer("int64", pad=0), False),
        ],
    )
    def test_a_pad_that_the_sample_never_draws_stays(self, padded, expected):
        assert varies(padded) is expected

    def test_floats_are_large_and_of_both_signs_and_finite(self):
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            content = fills({"b": buffer(dtype)}, {"b": (64,)}, seed=1)["b"].to(torch.float64)
            assert content.isfinite().all()
            assert (content > 30).any()
            assert (content < -30).any()

    def test_integers_stay_within_what_the_sample_draws(self):
        tokens = buffer("int64", pad=0, sample=drawn(0, 7))
        content = fills({"b": tokens}, {"b": (1000,)}, seed=1)["b"]
        assert set(content.tolist()) == set(range(7))

    def test_two_seeds_give_two_contents(self):
        one, other = (fills({"b": buffer("float32")}, {"b": (8,)}, seed) for seed in (1, 2))
        assert not torch.equal(one["b"], other["b"])
