"""The properties of the arithmetic, over hostile values. What they say is in `properties.py`."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from tests.rules.quantization import properties as prop
from tests.rules.quantization.exact import fractions
from tests.rules.quantization.hostile import LARGEST, finite, moderate, positive, scales, special, weights

Array = NDArray[Any]

hostile = settings(max_examples=200, deadline=None)
axes = st.sampled_from([None, 0, 1])
codes32 = st.integers(-(2**31) + 1, 2**31 - 1)


@hostile
@given(st.floats(0, LARGEST) | special.map(abs))
@example(65504.0)
@example(1e-5)
@example(8.9e-44)
def test_scale(absmax: float) -> None:
    prop.scale_holds_the_largest(qu.symmetric_scale, absmax)


@hostile
@given(weights(), axes)
@example(np.array([[0.35, 12.7]], np.float32), None)
def test_element(w: Array, axis: int | None) -> None:
    prop.element_is_near(qu.quantize_symmetric, w, axis)


def test_half_a_step_is_not_a_bound() -> None:
    """Why `element_bound` has its second term."""
    w = np.array([0.35], np.float32)
    q = qu.quantize_with_scale(w, np.float32(0.1), None)
    error = abs(Fraction(float(w[0])) - Fraction(float(qu.dequantize(q)[0])))
    assert Fraction(float(np.float32(0.1))) / 2 < error <= Fraction(float(qu.element_bound(w, q)[0]))


@hostile
@given(weights(), axes)
def test_bound_functions_are_no_smaller_than_the_exact_bound(w: Array, axis: int | None) -> None:
    q = qu.quantize_symmetric(w, axis)
    bound = fractions(qu.element_bound(w, q))
    for value, back, allowed in zip(fractions(w), fractions(qu.dequantize(q)), bound, strict=True):
        assert abs(value - back) <= allowed


@hostile
@given(weights(), axes)
def test_ties(w: Array, axis: int | None) -> None:
    prop.same_codes_as_quantize_linear(qu.quantize_symmetric, w, axis)


@hostile
@given(weights())
def test_asymmetric_codes(w: Array) -> None:
    prop.same_codes_as_quantize_linear(lambda w, axis: qu.ort_weight(w), w, None)


@hostile
@given(st.lists(st.integers(-128, 127), min_size=3, max_size=3), positive, st.integers(-128, 127), axes)
def test_dequantize_int8(codes: list[int], scale: float, zero: int, axis: int | None) -> None:
    shape = () if axis is None else (1,) if axis == 0 else (3,)
    zeros = np.full(shape, zero, np.int8)
    q = qu.QuantizedTensor(np.array([codes], np.int8), np.full(shape, scale, np.float32), zeros, axis)
    prop.same_values_as_dequantize_linear(qu.dequantize, q)


@hostile
@given(st.lists(codes32, min_size=1, max_size=5), scales)
def test_dequantize_int32(codes: list[int], scale: float) -> None:
    wide = np.full(len(codes), scale, np.float32)
    q = qu.QuantizedTensor(np.array(codes, np.int32), wide, np.zeros(len(codes), np.int32), 0)
    prop.same_values_as_dequantize_linear(qu.dequantize, q)


@hostile
@given(weights(), axes)
def test_codes_are_stable(w: Array, axis: int | None) -> None:
    prop.codes_are_stable(
        lambda back, q: qu.quantize_with_scale(back, q.scale, axis).codes, qu.quantize_symmetric(w, axis)
    )


@hostile
@given(st.lists(st.integers(-(2**22), 2**22), min_size=1, max_size=5), scales, scales)
def test_bias_codes_are_stable_up_to_2_to_22(codes: list[int], x_scale: np.float32, w_scale: np.float32) -> None:
    scale = qu.bias_scale(x_scale, w_scale)
    q = qu.QuantizedTensor(np.array(codes, np.int32), scale, np.zeros((), np.int32), None)
    prop.codes_are_stable(lambda back, q: qu.quantize_bias(back, x_scale, w_scale, axis=None).codes, q)


@hostile
@given(st.lists(codes32, min_size=1, max_size=4), scales, scales, st.sampled_from([0.0, 0.5, 0.25, -0.5]))
def test_bias(codes: list[int], x_scale: np.float32, w_scale: np.float32, aside: float) -> None:
    s_b = float(qu.bias_scale(x_scale, w_scale))
    b = np.array([(c + aside) * s_b for c in codes], np.float32)
    assume(max(abs(Fraction(float(v)) / Fraction(s_b)) for v in b) < 2**31 - 1)
    prop.bias_is_nearest(qu.quantize_bias, b, x_scale, np.asarray(w_scale))
    q = qu.quantize_bias(b, x_scale, np.full(len(b), w_scale), axis=0)
    for value, back, allowed in zip(
        fractions(b), fractions(qu.dequantize(q)), fractions(qu.bias_bound(q)), strict=True
    ):
        assert abs(value - back) <= allowed


@hostile
@given(st.lists(codes32, min_size=1, max_size=4), positive, st.integers(-(2**31), 2**31 - 1), scales, scales)
def test_requantized_bias(codes: list[int], old: float, zero: int, x_scale: np.float32, w_scale: np.float32) -> None:
    s_b = Fraction(float(qu.bias_scale(x_scale, w_scale)))
    wanted = [round((c - zero) * Fraction(old) / s_b) for c in codes]
    args = (np.array(codes, np.int32), np.float32(old), np.int32(zero), x_scale, w_scale)
    if max(map(abs, wanted)) > 2**31 - 1:
        with pytest.raises(qu.BiasOverflow):
            qu.requantize_bias(*args, axis=None)
    else:
        assert qu.requantize_bias(*args, axis=None).codes.tolist() == wanted


@hostile
@given(
    st.floats(2.0**-126, 2.0**100, width=32),
    st.floats(0, LARGEST, width=32),
    st.floats(2.0**-30, 2.0**20, width=32),
)
@example(2.0**-126, 0.0, 2.0**-30)
def test_raised_scale(w_scale: float, b: float, x_scale: float) -> None:
    assume(Fraction(b) / 2**31 / Fraction(x_scale) < 2**119 and w_scale * x_scale < 2.0**127)
    prop.bias_fits(qu.raise_for_bias, np.float32(w_scale), b, np.float32(x_scale))


@hostile
@given(finite.filter(lambda v: abs(v) < 1e30), st.floats(2.0**-20, 2.0**20, width=32))
def test_zero_channel(b: float, x_scale: float) -> None:
    prop.zero_channel_serves_its_bias(qu.quantize_unit, b, np.float32(x_scale))


@pytest.mark.parametrize(("x_span", "w_span", "depth"), [(255, 127, 66311), (255, 128, 65793), (65535, 127, 258)])
def test_accumulator(x_span: int, w_span: int, depth: int) -> None:
    assert qu.accumulator_depth(x_span, w_span) == depth
    prop.depth_is_the_largest(qu.accumulator_depth, x_span, w_span)


def test_accumulator_of_given_codes() -> None:
    codes = np.full((2, 66311), 127, np.int8)
    codes[1, 0] = 0
    room = 2**31 - 1 - 66311 * 255 * 127
    assert qu.accumulator_fits(codes, [room, room + 255 * 127], 255).tolist() == [True, True]
    assert qu.accumulator_fits(codes, [room + 1, -room - 255 * 127 - 1], 255).tolist() == [False, False]


@hostile
@given(weights(moderate.filter(lambda v: v == 0 or abs(v) > 1e-6)), st.integers(-20, 20), st.randoms())
def test_metamorphic(w: Array, exponent: int, random: random.Random) -> None:
    assume(np.abs(w[w != 0]).min(initial=1) > 2.0**-90 and np.abs(w).max(axis=1).max() < 2.0**90)
    assume(np.all((w == 0) | (np.abs(w) > 2.0**-90)))
    order = list(range(len(w)))
    random.shuffle(order)
    prop.follows_its_input(qu.quantize_symmetric, w, exponent, order)


@hostile
@given(scales, st.lists(scales, min_size=1, max_size=3))
def test_right_bias_scale(x_scale: np.float32, w_scale: list[np.float32]) -> None:
    prop.right_bias_scale(qu.bias_is_right, x_scale, np.array(w_scale, np.float32))
