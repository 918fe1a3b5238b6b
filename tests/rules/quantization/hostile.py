"""Values that break quantization arithmetic: subnormals, ends of the range, ties, outliers; drawn, or all at once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

LARGEST = 2.0**127
"""Weights above about 3.39e38 are declined for overflow; the properties are about the others."""

FLOATS: dict[str, DTypeLike] = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
}  # fmt: skip

special = st.sampled_from(
    [0.0, -0.0, 2.0**-149, -(2.0**-149), 8.9e-44, 1e-40, 2.0**-126, 1e-30, 0.1, 0.35, 1.0, 65504.0, LARGEST]
).map(lambda v: float(np.float32(v)))

finite = st.floats(-LARGEST, LARGEST, width=32) | special
moderate = st.floats(-(2.0**40), 2.0**40, width=32).filter(lambda v: v == 0 or abs(v) > 2.0**-40)
positive = st.floats(2.0**-100, 2.0**100, width=32)
scales = st.floats(2.0**-30, 2.0**10, width=32).map(np.float32)


@st.composite
def _near_ties(draw: st.DrawFn, size: int) -> list[float]:
    """Half-integer multiples of a scale, or the floats beside, and the largest code to fix the scale."""
    scale = draw(st.floats(2.0**-80, 2.0**80, width=32))
    halves = draw(st.lists(st.integers(-253, 253), min_size=size - 1, max_size=size - 1))
    values = np.array([h / 2 * scale for h in halves] + [127 * scale], np.float32)
    aside = np.array([*draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=size - 1, max_size=size - 1)), 0])
    values = np.where(aside > 0, np.nextafter(values, np.float32(np.inf)), values)
    return [float(v) for v in np.where(aside < 0, np.nextafter(values, np.float32(-np.inf)), values)]


@st.composite
def _outlier(draw: st.DrawFn, size: int) -> list[float]:
    small = draw(st.lists(st.floats(-1, 1, width=32), min_size=size - 1, max_size=size - 1))
    return [*small, draw(st.sampled_from([30.0, -30.0, 2.0**10, -(2.0**20), 2.0**40]))]


@st.composite
def weights(draw: st.DrawFn, elements: st.SearchStrategy[float] = finite) -> Array:
    """float32 [C, K], a row of each channel, each row hostile in its own way."""
    rows, size = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    row = (
        st.lists(elements, min_size=size, max_size=size)
        | elements.map(lambda v: [v] * size)
        | st.just([0.0] * size)
        | _near_ties(size)
        | _outlier(size)
    )
    return np.array(draw(st.lists(row, min_size=rows, max_size=rows)), np.float32)


def zoo(dtype: DTypeLike = np.float32, size: int = 12) -> Array:
    """[C, size]: a row of each hostile kind that this float type can hold, at moderate magnitudes."""
    rng = np.random.default_rng(16)
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    normal = rng.normal(size=size)
    ties = np.append(rng.integers(-253, 254, size=size - 1) / 2, 127) / 64
    lone = np.eye(1, size, 3)[0]
    grid = np.append(rng.integers(-90, 91, size=size - 1), 87) * 0.0371
    rows = [
        np.zeros(size), np.full(size, 0.37), -np.full(size, 0.37), lone * -0.7, normal, normal * 2.0**-11, normal * 900,
        normal + 40 * lone, np.abs(normal) + 0.1, -np.abs(normal), ties, ties * (1 + 2.0**-20), grid,
        np.where(lone > 0, 30.0, normal * 2.0**-13), float(info.smallest_subnormal) * rng.integers(-9, 10, size=size),
        float(info.smallest_normal) * normal, np.linspace(-1, 2, size),
    ]  # fmt: skip
    return np.array(rows).astype(dtype)


def ratios(size: int = 12) -> Array:
    """float32 [5, size]: channels whose ranges differ by up to 2^40."""
    normal = np.random.default_rng(40).normal(size=(5, size))
    return np.asarray(normal * np.exp2([[-20], [-10], [0], [10], [20]]), np.float32)


def ends(dtype: DTypeLike, size: int = 6) -> Array:
    """[3, size]: the largest numbers of a float type, of either sign and both."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    largest = np.array([[1, 0.5, -1, 0.25, 0, 1], [1] * 6, [-1, -0.3, -0.7, 0, -1, -0.1]])[:, :size]
    return (largest * float(info.max)).astype(dtype)
