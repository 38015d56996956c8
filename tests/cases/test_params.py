"""Params: what a device copy holds is the number that was given, and a default is one the param may have."""

import numpy as np
import pytest
import torch

import graphspec
from graphspec.errors import InputError

COPY = """
    dims: {{batch: [1, 4]}}
    params: {{s: {param}}}
    buffers:
      x: {{shape: [batch, 4], dtype: float32}}
      b: {{from: s, shape: {shape}, dtype: {dtype}{more}}}
      y: {{role: output, shape: [batch, 4], dtype: float64}}
    regions:
      r: {{call: model, inputs: [x, b], outputs: y}}
    replay: [r]
"""
ADD = "def forward(self, x, b): return x.double() * 0 + b.double().unsqueeze(-1)"


def opened(case, param, dtype, shape="[]", more=""):
    return case.open(ADD, COPY.format(param=param, dtype=dtype, shape=shape, more=more))


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("uint8", 255, -5),
        ("int8", -128, 300),
        ("float16", 2048, 2049),
        ("float16", 4096, 70000),
        ("bfloat16", 256, 257),
        ("float32", 1 << 30, (1 << 24) + 1),
        ("int64", (1 << 63) - 1, 1 << 63),
        ("int32", 7, 1 << 40),
        ("float8_e5m2", 8, 9),
    ],
)
def test_an_integer_that_the_copy_would_change_is_refused_with_its_number_and_dtype(case, dtype, good, bad):
    runner = opened(case, "{type: int}", dtype)
    with case.refused(InputError, "param 's'", bad, dtype):
        runner.run(x=torch.ones(2, 4), s=bad)
    assert runner.run(x=torch.ones(2, 4), s=good)["y"].tolist() == [[float(good)] * 4] * 2


@pytest.mark.parametrize(("dtype", "bad"), [("uint8", -1), ("float16", 2049), ("int64", 1 << 63), ("bfloat16", 1025)])
def test_one_item_of_a_list_that_the_copy_would_change_is_refused(case, dtype, bad):
    runner = opened(case, "{type: int, shape: [batch], pad: 0}", dtype, "[batch]")
    with case.refused(InputError, "param 's'", bad, dtype):
        runner.run(x=torch.ones(3, 4), s=[1, bad, 2])
    assert runner.run(x=torch.ones(3, 4), s=[1, 4, 2])["y"][:, 0].tolist() == [1.0, 4.0, 2.0]


def test_a_float_is_rounded_by_its_copy_and_never_becomes_infinite(case):
    runner = opened(case, "{type: float}", "float16")
    assert runner.run(x=torch.ones(1, 4), s=0.1)["y"][0, 0].item() == torch.tensor(0.1, dtype=torch.float16).item()
    with case.refused(InputError, "param 's'", "70000.0", "float16"):
        runner.run(x=torch.ones(1, 4), s=70000.0)
    assert runner.run(x=torch.ones(1, 4), s=float("inf"))["y"][0, 0].item() == float("inf")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("default", [127, 0])
def test_the_second_value_that_a_capture_tries_fits_the_copy_too(case, dtype, default):
    runner = opened(case, f"{{type: int, default: {default}}}", dtype)
    assert runner.run(x=torch.ones(1, 4))["y"][0, 0].item() == default


def test_the_pad_of_a_copy_fills_the_rows_a_bucket_adds(case):
    model = "def forward(self, x, b): return x.double() * 0 + b.double().sum()"
    more = ", pad: 7"
    runner = case.open(
        model, COPY.format(param="{type: int, shape: [batch]}", dtype="int64", shape="[batch]", more=more)
    )
    assert runner.run(x=torch.ones(3, 4), s=[1, 2, 3])["y"][0, 0].item() == 13.0
    assert runner.run(x=torch.ones(4, 4), s=[1, 2, 3, 4])["y"][0, 0].item() == 10.0


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("{type: int, max: -3}", -3),
        ("{type: int, min: cache}", 64),
        ("{type: int, min: batch, max: batch}", 4),
        ("{type: int, choices: [1, 3], min: 2}", 3),
        ("{type: int, min: -5, max: 5}", 0),
        ("{type: float, min: 0.5}", 0.5),
        ("{type: float, min: -.inf, max: .inf}", 0.0),
    ],
)
def test_a_param_without_a_default_has_the_legal_value_nearest_to_zero(case, param, value):
    spec = COPY.format(param=param, dtype="float32", shape="[]", more="").replace("[1, 4]}", "[1, 4], cache: 64}")
    assert case.open(ADD, spec).run(x=torch.ones(1, 4))["y"][0, 0].item() == value


SAMPLE = """
    buffers:
      x: {{shape: [4], dtype: int32, sample: {{file: x.npy}}{more}}}
    regions:
      r: {{call: model, inputs: [x], outputs: y}}
"""


def sampled(case, values, more=""):
    path = case.write("def forward(self, x): return x * 2", SAMPLE.format(more=more))
    np.save(path.parent / "x.npy", values)
    with graphspec.open(path, device="cpu", capture=False) as runner:
        return runner.sample("replay")["x"]


def test_a_sample_file_of_another_dtype_is_refused_as_an_input_of_it_is(case):
    for values in (np.array([0.5, 1, 2, 3]), np.array([1, 2, 3, 4])):
        with case.refused(InputError, "'x'", "torch.int32", values.dtype):
            sampled(case, values)
    with case.refused(InputError, "'x'", "change values"):
        sampled(case, np.array([0.5, 1, 2, 3]), ", cast: true")
    assert sampled(case, np.array([1, 2, 3, 4]), ", cast: true").tolist() == [1, 2, 3, 4]


def test_a_value_that_a_copy_cannot_hold_is_refused_in_the_eager_fallback_too_and_not_remembered(case):
    runner = case.open(
        "def forward(self, x, b): return x * b",
        """
        dims: {batch: [1, 2]}
        params: {s: {type: int, default: 3}}
        buffers:
          x: {shape: [batch], dtype: float32}
          b: {from: s, dtype: uint8, shape: []}
          y: {role: output, shape: [batch], dtype: float32}
        regions:
          main: {call: model, inputs: [x, b], outputs: y, on_miss: eager}
        replay: [main]
        """,
    )
    for rows in (2, 5):
        x = torch.ones(rows)
        with case.refused(InputError, "'s'", "-5", "uint8"):
            runner.run(x=x, s=-5)
        assert torch.equal(runner.run(x=x)["y"], x * 3)
