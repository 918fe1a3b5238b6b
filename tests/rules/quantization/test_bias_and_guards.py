"""Biases in exact arithmetic: requantized from integers, beside zero channels, under other types; and hardware
guards."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import BiasValues, InputMoments, NotQuantizable, Scheme

Array = NDArray[Any]
F = np.float32
hostile = settings(max_examples=200, deadline=None)
codes32 = st.integers(-(2**31) + 1, 2**31 - 1)
factors = st.floats(2.0**-20, 2.0**20, width=32)


@hostile
@given(st.lists(codes32, min_size=2, max_size=2), factors, factors, st.sampled_from([1.0, 0.5, 3.0]))
def test_a_quantized_bias_is_rounded_once(codes: list[int], old: float, x_scale: float, beta: float) -> None:
    w = np.array([[1.0, -2.0], [0.5, 0.25]], F)
    b = BiasValues.of_codes(np.array(codes, np.int32), np.array(old, F), axis=None)
    try:
        unit = qu.quantize_unit(w, b, F(x_scale), axis=0, beta=beta)
    except NotQuantizable:
        assume(False)
    assert unit.bias is not None
    for code, found, s in zip(codes, unit.bias.codes, unit.bias.scale, strict=True):
        assert int(found) == round(code * Fraction(old) * Fraction(beta) / Fraction(float(s)))


def test_float64_would_round_twice() -> None:
    """Why the integers are kept: codes times scale needs more bits than float64 has."""
    rng = np.random.default_rng(0)
    differs = 0
    for _ in range(2000):
        code, old = int(rng.integers(2**30, 2**31)), Fraction(int(rng.integers(2**23, 2**24)))
        differs += Fraction(float(code * old)) != code * old
    assert differs > 0


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_16_bit_scales(kind: str) -> None:
    rng = np.random.default_rng(1)
    w, b = rng.normal(size=(5, 40)).astype(F), rng.normal(size=5).astype(F)
    dtype = np.float16 if kind == "float16" else ml_dtypes.bfloat16
    unit = qu.quantize_unit(w, b, np.asarray(0.05).astype(dtype), axis=0, scheme=Scheme(scale_type=kind))
    assert unit.bias is not None
    assert unit.weight.scale.dtype == unit.bias.scale.dtype == dtype
    s = unit.bias.scale.astype(float)
    assert np.all(s > 0)
    assert np.all(np.abs(b - unit.bias.codes * s) <= s / 2)
    product = unit.weight.scale.astype(float) * float(np.asarray(0.05).astype(dtype))
    np.testing.assert_allclose(s, product, rtol=2.0**-8 if kind == "bfloat16" else 2.0**-4)


def test_float16_bias_scale_does_not_underflow() -> None:
    """Where float16's product of the scales would be 0, the weight's scale grows until it is not."""
    w, b = np.full((1, 4), 1e-3, F), np.array([1e-3], F)
    unit = qu.quantize_unit(w, b, np.float16(1e-3), axis=0, scheme=Scheme(scale_type="float16"))
    assert unit.bias is not None
    assert unit.bias.scale.astype(float).min() >= 2.0**-24
    assert unit.raised == 1


def test_powers_of_two_with_a_bias() -> None:
    rng = np.random.default_rng(2)
    w, b = rng.normal(size=(3, 20)).astype(F), np.array([1e7, 0.1, -2], F)
    unit = qu.quantize_unit(w, b, F(2.0**-5), axis=0, scheme=Scheme(power_of_two=True, search="minmax"))
    assert np.all(np.frexp(unit.weight.scale)[0] == 0.5)
    assert unit.raised >= 1


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("rounding", ["nearest", "balanced"])
def test_accumulator_has_room(granularity: str, rounding: str) -> None:
    rng = np.random.default_rng(3)
    w, b = rng.normal(size=(4, 64)).astype(F), np.array([1e9, -1e9, 0, 3], F)
    scheme = Scheme(granularity=granularity, rounding=rounding)
    unit = qu.quantize_unit(w, b, F(1e-3), axis=0, scheme=scheme, inputs=InputMoments(1, 1))
    assert unit.bias is not None
    assert qu.accumulator_fits(unit.weight.codes, unit.bias.codes, 255).all()


def test_blocks_have_no_scale_for_a_bias() -> None:
    with pytest.raises(ValueError, match="blocks"):
        qu.quantize_unit(np.ones((2, 4), F), None, F(1), axis=0, scheme=Scheme(granularity="block", block_size=2))


def test_htp_guards() -> None:
    assert qu.htp_refuses(F(0.02), F(0.01), 0.05, 128, np.array([1000])) is None
    assert "smallest normal" in str(qu.htp_refuses(F(2.0**-100), F(2.0**-40), 0.05, 128))
    assert "2^-24" in str(qu.htp_refuses(F(2.0**-20), F(2.0**-10), 1.0, 0))
    assert qu.htp_refuses(F(2.0**-13), F(2.0**-10), 1.0, 0) is None
    assert "zero point" in str(qu.htp_refuses(F(2.0**-12), F(2.0**-11), 1.0, 255, np.array([-(2**31) + 5])))


@pytest.mark.parametrize("b", [0.0, 0.3, -5.0, 1e-4])
def test_power_of_two_bias(b: float) -> None:
    made = qu.power_of_two_bias(np.array([b, b / 2], F), 2.0**-5, 2.0**-7, 2.0**-4)
    assert made.shift_cut == 5 + 7 - 4
    s = float(made.bias.scale)
    assert 2.0 ** -(12 - made.shift_bias) == s
    assert min(0, -(24 - (8 + made.shift_cut))) <= made.shift_bias <= 15
    assert np.all(np.abs(np.array([b, b / 2]) - made.bias.codes * s) <= s / 2 * (1 + 1e-6))


def test_power_of_two_bias_refuses() -> None:
    with pytest.raises(NotQuantizable, match="power of two"):
        qu.power_of_two_bias(np.ones(1, F), 0.3, 1.0, 1.0)
    with pytest.raises(NotQuantizable, match="shift_cut"):
        qu.power_of_two_bias(np.ones(1, F), 1.0, 1.0, 2.0**-3)
    with pytest.raises(NotQuantizable, match="shift of"):
        qu.power_of_two_bias(np.full(1, 1e9, F), 2.0**-8, 2.0**-8, 2.0**-4)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"weight_type": "int3"}, "weight_type"),
        ({"granularity": "row"}, "granularity"),
        ({"granularity": "block"}, "block_size"),
        ({"block_size": 32}, "block_size"),
        ({"weight_type": "int4", "reduce_range": True}, "reduce_range"),
        ({"scale_search": "best"}, "scale_search"),
        ({"rounding": "up"}, "rounding"),
        ({"scheme": "onnxruntime", "weight_type": "uint8"}, "onnxruntime"),
        ({"scheme": "onnxruntime", "bias": False}, "onnxruntime"),
    ],
)
def test_weight_bias_refuses(options: dict[str, Any], named: str) -> None:
    import rules

    with pytest.raises(ValueError, match=named):
        rules.WeightBias(**options)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("moments", [None, InputMoments(1.0, 1.0)])
def test_weights_of_other_float_types(dtype: Any, moments: InputMoments | None) -> None:
    w = np.random.default_rng(4).normal(size=(3, 50)).astype(dtype)
    q = qu.quantize_weight(w, 0, Scheme(), moments=moments)
    step = q.scale.astype(float)[:, None]
    error = np.abs(w.astype(float) - q.codes * step)
    assert np.all(error <= step * (0.5 if moments is None else 1.0) * (1 + 1e-4))
