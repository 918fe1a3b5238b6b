"""The properties of the guards, at their edges. What they say is in `guard_properties`."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from tests.rules.quantization import guard_properties as prop

Array = NDArray[Any]
F = np.float32
drawn = settings(max_examples=200, deadline=None)
exponents = st.integers(-90, 10)
edges = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), -(2**31) + 1]) | st.integers(-(2**31), 2**31 - 1)


@drawn
@given(
    st.floats(1, 2, width=32), st.floats(1, 2, width=32), exponents, exponents, exponents, st.integers(0, 255),
    edges, st.booleans(),
)  # fmt: skip
@example(1.0, 1.0, -14, -10, 0, 0, 0, False)
@example(1.0, 1.0, -14, -9, 0, 255, -(2**31), True)
@example(1.0, 1.0, -100, -26, -126, 0, 0, False)
def test_htp(x: float, w: float, i: int, j: int, k: int, y_zero: int, code: int, bias: bool) -> None:
    codes = np.array([code, 0], np.int64) if bias else None
    scales = np.array([np.ldexp(w, j), np.ldexp(w, j + 3)], F)
    prop.refuses_exactly(qu.htp_refuses, F(np.ldexp(x, i)), scales, float(F(np.ldexp(1.5, k))), y_zero, codes)
    prop.refuses_exactly(qu.htp_refuses, F(np.ldexp(1.0, i)), scales, float(F(np.ldexp(1.0, k))), y_zero, codes)


@drawn
@given(
    st.lists(st.floats(-(2.0**20), 2.0**20, width=32), max_size=3), st.integers(-4, 12), st.integers(-4, 12),
    st.integers(-6, 12),
)  # fmt: skip
@example([127.0, -3.5], 0, 0, 0)
@example([127.5], 0, 0, 0)
@example([2.0**-30], 3, 3, 2)
@example([127.0 * 2**15], 0, 0, 0)
@example([127.5 * 2**15], 0, 0, 0)
def test_power_of_two_bias(b: list[float], position_x: int, position_w: int, position_y: int) -> None:
    prop.shifts_exactly(qu.power_of_two_bias, np.array(b, F), position_x, position_w, position_y)
