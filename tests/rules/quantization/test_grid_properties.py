"""Grids: found on whatever was quantized before, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import Scheme
from tests.rules.quantization import scheme_properties as prop
from tests.rules.quantization.schemes import RELU, of_unit

Array = NDArray[Any]

drawn = settings(max_examples=150, deadline=None)
qat_codes = st.integers(9, 60).flatmap(lambda n: st.lists(st.integers(-127, 127), min_size=n, max_size=n))
GRIDS = pytest.mark.parametrize(("reach", "span"), [(127, None), (255, 255), (7, None), (15, 15)])


@drawn
@given(qat_codes, st.floats(2.0**-40, 2.0**10, width=32))
def test_grid(codes: list[int], scale: float) -> None:
    assume(any(codes))
    prop.grid_is_found(qu.grid_scales, np.array([codes], np.int64), np.asarray(scale, np.float32), 127, None)


@drawn
@given(qat_codes, st.integers(-128, 127), st.floats(2.0**-40, 2.0**10, width=32))
def test_grid_with_an_offset(codes: list[int], zero: int, scale: float) -> None:
    steps = np.array([codes], np.int64) - zero
    assume(steps.any() and max(steps.max(), 0) - min(steps.min(), 0) <= 255)
    prop.grid_is_found(qu.grid_scales, steps, np.asarray(scale, np.float32), 255, 255)


def qat(rng: np.random.Generator, rows: int, size: int, reach: int, span: int | None) -> tuple[Array, Array]:
    """Codes and scales as training leaves them: bell-shaped, not up to the end of the range, some of few values."""
    width = rng.uniform(0.05, 0.5, size=(rows, 1)) * reach
    codes = np.rint(rng.normal(size=(rows, size)) * width)
    middle = rng.integers(-reach // 2, reach // 2 + 1, size=(rows, 1)) if span is not None else 0
    low = -reach if span is None else -rng.integers(0, span + 1, size=(rows, 1))
    codes = np.clip(codes + middle, low, reach if span is None else low + span)
    codes[:, 0] = np.where(codes.any(axis=1), codes[:, 0], 1)
    return codes.astype(np.int64), rng.lognormal(-4, 3, size=rows).astype(np.float32)


@GRIDS
def test_10000_qat_weights_are_recovered(reach: int, span: int | None) -> None:
    """All of them, bit for bit: tensors of 9 to 1,000 elements, a row each."""
    rng = np.random.default_rng(14)
    for size in (9, 12, 16, 25, 27, 64, 100, 144, 576, 1000):
        codes, scale = qat(rng, 1000, size, reach, span)
        prop.grid_is_found(qu.grid_scales, codes, scale, reach, span)


@GRIDS
def test_no_grid_in_10000_random_weights(reach: int, span: int | None) -> None:
    rng = np.random.default_rng(41)
    for size, rows in ((9, 5000), (12, 2000), (27, 2000), (100, 800), (1000, 200)):
        for draw in (rng.normal, rng.uniform, rng.laplace):
            prop.no_grid_is_seen(qu.grid_scales, draw(size=(rows, size)).astype(np.float32), reach, span)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_whole_weights_are_recovered(axis: int | None, kind: str, symmetric: bool) -> None:
    """Balanced or not, with a scale for all or for each channel."""
    rng = np.random.default_rng(7)
    scheme = Scheme(weight_type=kind, symmetric=symmetric, granularity="tensor" if axis is None else "channel")
    for _ in range(60):
        shape = (int(rng.integers(1, 6)), int(rng.integers(9, 40)))
        low = -127 if symmetric else int(rng.integers(-255, 1))
        codes = rng.integers(low, 128 if symmetric else low + 256, size=shape)
        scale = rng.lognormal(-4, 2, size=() if axis is None else (shape[0], 1) if axis == 0 else (1, shape[1]))
        w = codes.astype(np.float32) * scale.astype(np.float32)
        np.testing.assert_array_equal(qu.dequantize(of_unit(w, axis, scheme, RELU)), w)
