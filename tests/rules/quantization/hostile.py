"""Strategies for values that break quantization arithmetic: subnormals, ends of the range, ties, outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

LARGEST = 2.0**127
"""Weights above about 3.39e38 are declined for overflow; the properties are about the others."""

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
    return [*small, draw(st.sampled_from([2.0**10, -(2.0**20), 2.0**40]))]


@st.composite
def weights(draw: st.DrawFn, elements: st.SearchStrategy[float] = finite) -> NDArray[Any]:
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
