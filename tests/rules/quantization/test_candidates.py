"""Which scheme a weight gets where several are allowed: judged by exact sums of squared errors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qm
from rules.quantization import Scheme
from tests.rules.quantization.exact import fractions as exact
from tests.rules.quantization.hostile import moderate, weights

Array = NDArray[Any]
WANTED = Scheme(rounding="nearest")
SKEWED = Scheme(symmetric=False, rounding="nearest")
WHOLE = Scheme(symmetric=False, granularity="tensor", rounding="nearest")
GRID = Scheme(symmetric=False, search="grid", rounding="nearest")
ALLOWED = (SKEWED, WHOLE, GRID)


def quantized(w: Array, *allowed: Scheme, axis: int | None = 0, alpha: float = 1.0) -> qm.QuantizedUnit:
    return qm.quantize_unit(w, None, 1.0, axis=axis, scheme=WANTED, allowed=allowed, alpha=alpha)


def squares(w: Array, q: qm.QuantizedTensor) -> Fraction:
    """The exact sum of squared errors; rows are channels."""
    steps = np.broadcast_to(q.scale.reshape(-1, 1), w.shape)
    zeros = np.broadcast_to(q.zero_point.reshape(-1, 1), w.shape)
    return sum(
        (
            (v - (int(c) - int(z)) * s) ** 2
            for v, c, z, s in zip(exact(w), q.codes.flat, zeros.flat, exact(steps), strict=True)
        ),
        Fraction(0),
    )


@settings(max_examples=60, deadline=None, database=None)
@given(weights(moderate), st.sampled_from(ALLOWED), st.sampled_from([0.0, 1.0, -1.0]))
def test_another_scheme_is_taken_only_where_the_error_is_less_by_a_fifth(w: Array, other: Scheme, shift: float) -> None:
    w = w + np.float32(shift) * np.abs(w).max(initial=0)
    found, wanted = quantized(w, other), quantized(w)
    if found.scheme is wanted.scheme:
        assert found.weight.codes.tobytes() == wanted.weight.codes.tobytes()
        return
    assert found.scheme == other
    assert squares(w, found.weight) <= squares(w, wanted.weight) * Fraction(4, 5) * (1 + Fraction(1, 2**20))


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.3), (-0.3, 0.05), (0.0, 1.0)])
def test_skewed_weights_get_zero_points(low: float, high: float) -> None:
    w = np.random.default_rng(0).uniform(low, high, (16, 200)).astype(np.float32)
    assert quantized(w, SKEWED).scheme == SKEWED
    assert quantized(w, WHOLE).scheme == WHOLE
    assert quantized(w, GRID).scheme == WANTED
    assert squares(w, quantized(w, SKEWED).weight) < squares(w, quantized(w).weight) * Fraction(1, 2)


def test_ordinary_weights_stay_symmetric() -> None:
    rng = np.random.default_rng(1)
    for w in (rng.normal(size=(32, 600)), rng.uniform(-1, 1, (8, 300)), rng.laplace(size=(16, 2000))):
        assert quantized(w.astype(np.float32), *ALLOWED).scheme == WANTED


def test_one_scale_for_all_is_taken_only_where_no_channel_gets_coarser() -> None:
    """By the sum of squares alone, a large skewed channel would take the small ones' codes away."""
    w = np.random.default_rng(2).uniform(-0.05, 1, (2, 400)).astype(np.float32)
    w[1] *= np.float32(2.0**-9)
    assert quantized(w, WHOLE).scheme == WANTED
    assert quantized(w, SKEWED).scheme == SKEWED


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("alpha", [1.0, 0.7, -2.0])
@pytest.mark.parametrize("other", [SKEWED, GRID])
def test_an_asymmetric_grid_is_recovered(axis: int, alpha: float, other: Scheme) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 256, (12, 90)) - rng.integers(20, 100, (12, 1))
    w = (codes * rng.uniform(0.001, 0.1, (12, 1))).astype(np.float32)
    w[4] = 0
    found = quantized(np.ascontiguousarray(w.T) if axis else w, other, axis=axis, alpha=alpha)
    assert found.scheme == other
    back = qm.dequantize(found.weight).astype(np.float64)
    np.testing.assert_allclose(back.T if axis else back, w.astype(np.float64) * alpha, rtol=3e-7)


def test_a_grid_of_the_whole_tensor_is_recovered() -> None:
    rng = np.random.default_rng(4)
    w = ((rng.integers(0, 256, (12, 90)) - 60) * np.float32(0.013)).astype(np.float32)
    found = quantized(w, WHOLE)
    assert found.scheme == WHOLE
    assert found.on_grid == 1
    np.testing.assert_allclose(qm.dequantize(found.weight), w, rtol=3e-7)


def test_a_symmetric_grid_needs_no_zero_point() -> None:
    rng = np.random.default_rng(5)
    w = (np.abs(rng.integers(-127, 128, (6, 40))) * rng.uniform(0.001, 0.1, (6, 1))).astype(np.float32)
    found = quantized(w, *ALLOWED)
    assert found.scheme == WANTED
    assert found.on_grid == 6


def test_no_grid_is_seen_in_few_elements() -> None:
    rng = np.random.default_rng(6)
    for size in (2, 3, 15):
        for _ in range(60):
            w = rng.normal(size=(1, size)).astype(np.float32)
            assert quantized(w, GRID).scheme == WANTED


def test_without_channels_there_is_one_scale() -> None:
    w = np.random.default_rng(7).uniform(-0.1, 1, (2, 9, 7)).astype(np.float32)
    assert quantized(w, WHOLE, axis=None).scheme == WHOLE
