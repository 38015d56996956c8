"""Comparison of results: within a tolerance, or bit by bit."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from graphspec.runtime.verify.compare import Tolerance, compare, described

TOLERANCE = Tolerance(rtol=1e-5, atol=1e-6)
INF, NAN = math.inf, math.nan


def floats(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def compared(expected, came, tolerance=TOLERANCE):
    return compare({"y": expected}, {"y": came}, tolerance)


def test_equal_tensors_match_with_a_difference_of_zero():
    found = compared(floats(1.0, 2.0), floats(1.0, 2.0))
    assert (found.status, found.max_abs_diff, found.first, found.outputs) == ("match", 0.0, None, {"y": 0.0})


def test_a_difference_within_the_tolerance_matches_and_is_reported():
    found = compared(floats(100.0, dtype=torch.float64), floats(100.0005, dtype=torch.float64))
    assert found.status == "match"
    assert found.max_abs_diff == pytest.approx(5e-4)


def test_the_tolerance_scales_with_the_expected_value_not_with_the_one_that_came():
    tight = Tolerance(rtol=0.5, atol=0.0)
    assert compared(floats(1.0), floats(2.0), tight).status == "mismatch"
    assert compared(floats(2.0), floats(1.0), tight).status == "match"


def test_the_worst_element_is_named_with_its_index_and_both_values():
    expected, came = torch.zeros(2, 3), torch.zeros(2, 3)
    came[0, 1], came[1, 2] = 0.5, -2.0
    first = compared(expected, came).first
    assert (first.what, first.index, first.expected, first.came) == ("y", (1, 2), "0", "-2")
    assert "y[1, 2]: 0 in eager, -2 in replay (|difference| 2" in described(first, ("in eager", "in replay"), TOLERANCE)


def test_the_worst_element_is_the_one_farthest_beyond_its_tolerance():
    first = compared(floats(1e6, 1.0), floats(1e6 + 1, 1.5)).first
    assert first.index == (1,)


@pytest.mark.parametrize(
    ("expected", "came"),
    [((NAN, 1.0), (NAN, 1.0)), ((INF, -INF), (INF, -INF)), ((-0.0,), (0.0,))],
    ids=["NaN in the same place", "the same infinities", "zeros of both signs"],
)
def test_equal_special_values_match(expected, came):
    found = compared(floats(*expected), floats(*came))
    assert (found.status, found.max_abs_diff) == ("match", 0.0)


@pytest.mark.parametrize(
    ("expected", "came"), [((1.0,), (NAN,)), ((NAN,), (1.0,)), ((INF,), (-INF,)), ((1.0,), (INF,)), ((INF,), (1.0,))]
)
def test_a_special_value_on_one_side_is_a_mismatch_without_a_finite_difference(expected, came):
    found = compared(floats(*expected), floats(*came))
    assert (found.status, found.max_abs_diff) == ("mismatch", None)
    assert found.first.reason == "no finite difference"


def test_a_nan_is_worse_than_any_finite_difference():
    assert compared(floats(0.0, 0.0), floats(1e30, NAN)).first.index == (1,)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_and_bools_are_exact_whatever_the_tolerance(dtype):
    loose = Tolerance(rtol=10.0, atol=10.0)
    expected, came = torch.tensor([0, 1], dtype=dtype), torch.tensor([0, 0], dtype=dtype)
    found = compared(expected, came, loose)
    assert (found.status, found.first.index, found.max_abs_diff) == ("mismatch", (1,), 1.0)


def test_integers_that_float64_cannot_tell_apart_differ():
    found = compared(torch.tensor([2**53]), torch.tensor([2**53 + 1]))
    assert found.status == "mismatch"
    assert found.max_abs_diff >= 1


def test_complex_numbers_are_compared_by_their_distance():
    expected, came = torch.tensor([1 + 1j]), torch.tensor([1 + 4j])
    assert compared(expected, came).max_abs_diff == pytest.approx(3.0)
    assert compared(expected, expected.clone()).status == "match"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_small_floats_are_compared_in_float64(dtype):
    expected, came = torch.tensor([1.0, 2.0]).to(dtype), torch.tensor([1.0, 1.0]).to(dtype)
    assert compared(expected, came).max_abs_diff == 1.0


@pytest.mark.parametrize(
    ("expected", "came", "reason"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "another dtype"),
        (torch.zeros(2), torch.zeros(2, 1), "another shape"),
        (torch.zeros(1), torch.zeros(()), "another shape"),
        (torch.zeros(2), 0.0, "another value"),
        (3, 4, "another value"),
        (1, True, "another value"),
    ],
)
def test_another_dtype_shape_or_kind_is_a_mismatch(expected, came, reason):
    found = compared(expected, came)
    assert (found.status, found.max_abs_diff, found.first.reason) == ("mismatch", None, reason)


def test_equal_host_values_match_also_nan():
    assert compared([1, "a", None, NAN], [1, "a", None, NAN]).status == "match"


def test_empty_and_zero_dimensional_tensors_are_compared():
    assert compared(torch.zeros(0, 3), torch.zeros(0, 3)).status == "match"
    assert compared(torch.tensor(1.0), torch.tensor(2.0)).first.index == ()


def test_a_missing_or_an_additional_result_is_a_mismatch():
    one = torch.zeros(1)
    assert compare({"a": one, "b": one}, {"a": one}, TOLERANCE).first.what == "b"
    assert compare({"a": one}, {"a": one, "b": one}, TOLERANCE).first.what == "b"


class Pair(NamedTuple):
    left: int
    right: torch.Tensor


@dataclass
class Box:
    inside: object


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda leaf: {"k": [leaf]}, "y['k'][0]"),
        (lambda leaf: Pair(1, leaf), "y[1]"),
        (lambda leaf: Box((None, leaf)), "y.inside[1]"),
    ],
)
def test_a_difference_inside_a_structure_is_named_by_its_place(make, place):
    found = compared(make(floats(1.0)), make(floats(3.0)))
    assert found.first.what == place
    assert found.outputs[place] == 2.0


class TestBitByBit:
    def test_the_same_bits_match(self):
        assert compared(floats(0.1, NAN), floats(0.1, NAN), None).status == "match"

    def test_the_smallest_difference_is_one(self):
        value = floats(1.0)
        found = compared(value, torch.nextafter(value, floats(2.0)), None)
        assert (found.status, found.first.index) == ("mismatch", (0,))

    def test_zeros_of_different_sign_differ(self):
        assert compared(floats(0.0), floats(-0.0), None).status == "mismatch"

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.bool, torch.float16, torch.int64])
    def test_every_width_of_element_can_be_compared(self, dtype):
        one, other = torch.tensor([0, 1]).to(dtype), torch.tensor([0, 0]).to(dtype)
        assert compared(one, one.clone(), None).status == "match"
        assert compared(one, other, None).first.index == (1,)

    def test_strides_do_not_matter(self):
        value = torch.arange(6.0).reshape(2, 3)
        assert compared(value, value.t().contiguous().t(), None).status == "match"


class TestAnotherSize:
    """Kernels of another size sum in another order: the error is as large as what was summed."""

    resized = Tolerance(rtol=1e-5, atol=1e-6, resized=True)

    def test_rounding_of_a_result_that_cancelled_is_accepted(self):
        expected, came = floats(10.0, 1e-4), floats(10.0, 1.3e-4)
        assert compared(expected, came).status == "mismatch"
        assert compared(expected, came, self.resized).status == "match"

    def test_a_difference_beyond_rounding_is_not(self):
        assert compared(floats(10.0, 0.0), floats(10.0, 1e-3), self.resized).status == "mismatch"

    def test_an_infinity_does_not_excuse_the_rest(self):
        assert compared(floats(INF, 0.0), floats(INF, 1.0), self.resized).status == "mismatch"

    def test_half_precision_counts_with_its_own_precision(self):
        expected, came = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125], dtype=torch.bfloat16)
        assert compared(expected, came, self.resized).status == "match"
        assert compared(expected, came).status == "mismatch"
