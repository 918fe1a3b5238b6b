"""Balanced rounding by itself: no worse than nearest, within the two neighbours, and the sums near 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import InputMoments
from tests.rules.quantization import hostile
from tests.rules.quantization import scheme_properties as prop
from tests.rules.quantization.hostile import moderate, weights
from tests.rules.quantization.schemes import COMMON, RELU, moments

Array = NDArray[Any]


@settings(max_examples=150, deadline=None)
@given(weights(moderate), st.integers(1, 3), moments())
def test_balanced(w: Array, width: int, moments: InputMoments) -> None:
    w = np.repeat(w[:, :, None], width, axis=2) * np.linspace(1, 0.3, width, dtype=np.float32)
    scale = qu.symmetric_scale(np.abs(w).max(axis=(1, 2)))
    prop.balanced_is_no_worse(qu.balance, w, scale, moments)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("moments", [RELU, COMMON, InputMoments(0.1, 1.0, 1.0)], ids=["relu", "common", "alike"])
def test_balanced_on_hostile_weights(width: int, moments: InputMoments) -> None:
    for w in (hostile.zoo(), hostile.ratios()):
        rows = w.reshape(len(w), -1, width)
        prop.balanced_is_no_worse(qu.balance, rows, qu.symmetric_scale(np.abs(w).max(axis=1)), moments)


@pytest.mark.parametrize("shape", [(8, 3, 9), (5, 700, 1), (3, 2000, 1), (40, 1, 25), (4, 64, 3)])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 10.0])
def test_balanced_on_many_elements(shape: tuple[int, ...], ratio: float) -> None:
    rng = np.random.default_rng(3)
    w: Array = rng.normal(size=shape).astype(np.float32)
    scale = qu.symmetric_scale(np.abs(w).max(axis=(1, 2)))
    prop.balanced_is_no_worse(qu.balance, w, scale, InputMoments(ratio, 1.0, 0.5))


@pytest.mark.parametrize("shape", [(8, 30, 9), (5, 700, 1), (6, 1, 49)])
def test_sums(shape: tuple[int, ...]) -> None:
    position: Array = np.random.default_rng(4).uniform(-100, 100, size=shape).astype(np.float32)
    prop.sums_come_near(qu.balance, position, InputMoments(100.0, 1.0))


def test_a_mean_of_zero_leaves_nearest() -> None:
    position: Array = np.random.default_rng(5).uniform(-100, 100, size=(4, 50, 1)).astype(np.float32)
    codes = np.rint(position)
    qu.balance(position, codes, InputMoments(0.0, 1.0))
    np.testing.assert_array_equal(codes, np.rint(position))
