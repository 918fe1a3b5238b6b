"""How far a quantized unit can be from the float one: bounds that are proved, not measured.

Every bound holds for every input and is evaluated a hair upwards, so that its own rounding does not break it.
Notation: u = 2^-24, the unit roundoff of float32; w, q, s a weight, its code and scale; w' = float32(q * s)
what comes back. The bounds are about exact sums: a kernel which accumulates floats adds its own rounding, an
integer kernel adds none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .tensor import QuantizedTensor

U = 2.0**-24
_UP = 1 + 2.0**-49


def element_bound(w: NDArray[Any], q: QuantizedTensor) -> NDArray[np.float64]:
    """Bounds |w - w'| elementwise by `s/2 + u (|w| + |q| s)`; w: what was quantized (alpha folded in).

    The division is off by u |w / s|, rounding to an integer by 1/2, and clipping by nothing, because |w| <=
    127 s: so |w - q s| <= s/2 + u |w|. The product q * s is off by u |q| s; s and so the product are normal
    numbers. The naive `s/2` is false: s = float32(0.1), w = float32(0.35). With a zero point |q| stands for the
    distance from it; the zero point's rounding moves the ends of the range by half a step at most, up to the u |w|
    that is there already. 16-bit scales round the product by 2^-11 or 2^-8 of it, and by half of float16's smallest
    number.
    """
    size = q.spread(q.scale).astype(np.float64)
    if q.scale.dtype != np.float32:
        unit = 2.0**-11 if q.scale.dtype == np.float16 else 2.0**-8
        least = 2.0**-25 if q.scale.dtype == np.float16 else 0.0
        distance = np.abs(_steps(q))
        twice = np.where(distance > 1 / unit, 2 * unit + unit * unit, unit)  # the integer itself is rounded too
        product = twice * distance * size + least
        return np.asarray((size / 2 + U * np.abs(w.astype(np.float64)) + product) * _UP)
    return np.asarray((size / 2 + U * (np.abs(w.astype(np.float64)) + np.abs(_steps(q)) * size)) * _UP)


def balanced_bound(w: NDArray[Any], q: QuantizedTensor) -> NDArray[np.float64]:
    """Bounds |w - w'| elementwise by `s + u (|w| + |q| s)` under balanced rounding.

    As `element_bound`, but the code is the floor or the ceiling of the quotient: off by less than 1, not by 1/2.
    """
    size = q.spread(q.scale).astype(np.float64)
    return np.asarray(element_bound(w, q) + size / 2 * _UP)


def bias_bound(q: QuantizedTensor) -> NDArray[np.float64]:
    """Bounds |b - b'| elementwise by `s/2 + (2u + u^2) |q| s`; shape of the codes.

    The code is the exactly rounded quotient: |b - q s| <= s/2. DequantizeLinear rounds q to float32 and then
    the product, by u each; codes up to 2^24 are exact. An integer kernel adds the code itself and needs only
    s/2.
    """
    size = q.spread(q.scale).astype(np.float64)
    return np.asarray((size / 2 + (2 * U + U * U) * np.abs(_steps(q)) * size) * _UP)


def _steps(q: QuantizedTensor) -> NDArray[np.float64]:
    return np.asarray(q.codes.astype(np.float64) - q.spread(q.zero_point).astype(np.float64))


def output_bound(element: NDArray[np.float64], bias: ArrayLike, x_abs: ArrayLike) -> NDArray[np.float64]:
    """Bounds |y - y'| by `sum_k |x_k| E_k + B`, for a given input.

    element: E, [C, K], the element bounds of each output channel. bias: B, shape [] or [C] (0 without one).
    x_abs: |x|, [..., K], after dequantization, the same in both units. Result: [..., C].

    y - y' = sum x_k (w_k - w'_k) + (b - b'), and the triangle inequality.
    """
    summed = np.asarray(x_abs, np.float64) @ element.T
    return np.asarray((summed + np.asarray(bias, np.float64)) * (1 + (element.shape[1] + 2) * 2.0**-52))


def output_bound_any_input(
    element: NDArray[np.float64],
    bias: ArrayLike,
    *,
    x_scale: float,
    x_zero_point: int,
    x_min: int,
    x_max: int,
) -> NDArray[np.float64]:
    """Bounds |y - y'| for every input of a quantized type: [C]. No data needed.

    x_min and x_max: the type's (0 and 255 for uint8). |x_k| <= x_scale * max(zero point - min, max - zero
    point), with the rounding of DequantizeLinear a factor 1 + u more; `output_bound` does the rest.
    """
    largest = x_scale * max(x_zero_point - x_min, x_max - x_zero_point) * (1 + U)
    return output_bound(element, bias, np.full(element.shape[1], largest * _UP))


def accumulator_depth(x_span: int, w_span: int, bits: int = 32) -> int:
    """The largest K for which K products |x| <= x_span, |q| <= w_span fit a signed accumulator.

    K * x_span * w_span <= 2^(bits-1) - 1. With 8-bit inputs (span 255) and codes in [-127, 127]: 66,311.
    """
    return int((2 ** (bits - 1) - 1) // (x_span * w_span))


def accumulator_fits(codes: NDArray[Any], bias: ArrayLike, x_span: int, bits: int = 32) -> NDArray[np.bool_]:
    """Whether `x_span * sum_k |q_k| + |bias|` fits a signed accumulator, per row of codes [C, K]: [C].

    The sum that some input attains up to the sign of each x; exact in int64. bias: int codes, shape [] or
    [C].
    """
    largest = np.abs(codes.astype(np.int64)).sum(axis=1) * x_span + np.abs(np.asarray(bias, np.int64))
    return np.asarray(largest <= 2 ** (bits - 1) - 1)
