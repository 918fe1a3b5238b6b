"""How far a quantized unit can be from the float one: bounds that are proved, not measured.

Every bound holds for every input and is evaluated a hair upwards, so that its own rounding does not break it.
Notation: u = 2^-24, the unit roundoff of float32; w, q, s a weight, its code and scale; w' = float32(q * s)
what comes back. The bounds are about exact sums: a kernel which accumulates floats adds its own rounding, an
integer kernel adds none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

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
        unit, least = _rounding(q.scale.dtype)
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
    the product, by u each; codes up to 2^24 are exact. 16-bit scales round both by their own u, and the product by half
    of float16's smallest number. (Codes beyond 65504 are no float16.) An integer kernel adds the code itself and needs
    only s/2.
    """
    size = q.spread(q.scale).astype(np.float64)
    unit, least = _rounding(q.scale.dtype)
    return np.asarray((size / 2 + (2 * unit + unit * unit) * np.abs(_steps(q)) * size + least) * _UP)


def _rounding(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The unit roundoff of a float type, and half of its smallest number where that counts."""
    if dtype == np.float16:
        return 2.0**-11, 2.0**-25
    return (U, 0.0) if dtype == np.float32 else (2.0**-8, 0.0)


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


def summed_element_bound(
    steps: NDArray[np.float64],
    beyond: ArrayLike,
    depth: int,
    span: int,
    *,
    scale_type: DTypeLike = np.float32,
    balanced: bool = False,
) -> NDArray[np.float64]:
    """Bounds sum_k |w_k - w'_k| of each channel by its scales: `sum_k s_k (1/2 + u (2 span + 1))` and the clipping.

    steps: [C], of each channel the sum of the scales of its `depth` weights. beyond: [C], the sum of what lies beyond
    the smallest and the largest code (0 where no search made the scale smaller than the weights ask for): there the
    error is that, and not rounding. span: the largest |code - zero point|. balanced: 1 in place of 1/2.

    It is the sum of `element_bound` with |q| <= span and |w| <= (span + 1) s.
    """
    unit, least = _rounding(np.dtype(scale_type))
    step = (1.0 if balanced else 0.5) + U * (span + 1) + (2 * unit + unit * unit) * span
    return np.asarray((steps * step + np.asarray(beyond) + depth * least) * (1 + (depth + 4) * 2.0**-52))


def worst_output(
    above: NDArray[np.float64], below: NDArray[np.float64], bias: ArrayLike, low: float, high: float
) -> NDArray[np.float64]:
    """The largest |y - y'| over all inputs in [low, high], low <= 0 <= high: [C]. Some input attains it.

    above, below: [C], of each output the sums of its positive and of its negative errors w_k - w'_k. bias: B, [] or
    [C], the most that the bias is off.

    y - y' = sum x_k e_k + (b - b') is largest where x_k is high for e_k > 0 and low for e_k < 0, and smallest the other
    way round. So it is the bound of `output_bound_any_input` with the errors that there are in place of E, and with
    the input's own ends in place of the larger one: after a Relu only errors of one sign add up.
    """
    up, down = high * above - low * below, high * below - low * above
    return np.asarray((np.maximum(up, down) + np.asarray(bias, np.float64)) * _UP)


def input_range(x_scale: ArrayLike, x_zero_point: int, x_min: int, x_max: int) -> tuple[float, float]:
    """What DequantizeLinear makes of the smallest and of the largest code, to the bit: low <= 0 <= high.

    x_scale: a number of the type that comes back. 0, which pads a convolution, lies between.
    """
    scale = np.asarray(x_scale).reshape(())
    wide = np.float64 if scale.dtype == np.float64 else np.float32  # the product is rounded to the type once
    with np.errstate(over="ignore"):
        ends = np.array([x_min - x_zero_point, x_max - x_zero_point]).astype(wide) * scale.astype(wide)
        low, high = ends.astype(scale.dtype).tolist()
    return min(float(low), 0.0), max(float(high), 0.0)


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
