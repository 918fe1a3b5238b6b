"""What integer hardware asks of a unit's scales and bias beyond the ONNX standard, as functions that say no with a
reason.

These are the conditions under which Qualcomm's HTP and AMD's XINT8 kernels shift and add without overflow. They look at
numbers alone, so they stand here and not with the backends, which say when they apply. Sources: `backends.md`, from the
vendors' own toolkits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bias import bias_scale
from .errors import NotQuantizable
from .rounding import rint_ratio
from .scales import QMAX, covering_scale, smallest_scale
from .tensor import QuantizedTensor

_BIAS = 2**31
_RATIO = 2.0**-24


def htp_refuses(
    x_scale: ArrayLike, w_scale: ArrayLike, y_scale: float, y_zero_point: int, bias_codes: ArrayLike | None = None
) -> str | None:
    """Why Qualcomm's HTP would not requantize this unit rightly, or None.

    w_scale: [] or [C]. bias_codes: int32 at x_scale * w_scale, of a shape that broadcasts with w_scale along its last
    dimension; None without a bias. With s = x_scale * w_scale the toolkit asks for s no less than the smallest
    normal of its type, s / y_scale > 2^-24, |b_q| <= 2^31, and |b_q - round(y_zero_point * y_scale / s)| <= 2^31
    (the output's zero point is folded into the bias).
    """
    product = bias_scale(x_scale, w_scale)
    s = product.astype(np.float64)
    if not np.all(s >= smallest_scale(product.dtype)):
        return f"x_scale * w_scale is {s.min():g}, below the smallest normal {product.dtype.name}"
    if not np.all(s / y_scale > _RATIO):
        return f"x_scale * w_scale / y_scale is {(s / y_scale).min():g}, not above 2^-24"
    codes = np.asarray(0.0 if bias_codes is None else bias_codes, np.float64)
    if np.any(np.abs(codes) > _BIAS):
        return f"a bias code is {np.abs(codes).max():g}, beyond 2^31"
    folded = np.abs(codes - rint_ratio(y_zero_point, s, unit=y_scale))
    if np.any(folded > _BIAS):
        return f"the bias with the output's zero point in it is {folded.max():g} steps, beyond 2^31"
    return None


@dataclass(frozen=True, eq=False)
class PowerOfTwoBias:
    """An int8 bias with one power-of-two scale, and the shifts of the kernel that adds it."""

    bias: QuantizedTensor
    shift_cut: int
    shift_bias: int


def power_of_two_bias(b: NDArray[Any], x_scale: float, w_scale: float, y_scale: float) -> PowerOfTwoBias:
    """int8 codes of a float bias of any shape at the smallest power-of-two scale that holds it and can be shifted to.

    x_scale, w_scale, y_scale: powers of two. With positions p = -log2(scale), XINT8 kernels cut the accumulator by
    shift_cut = p_w + p_x - p_y, in [0, 16], and shift the bias by shift_bias = p_w + p_x - p_b, in
    [min(0, -(24 - (8 + shift_cut))), 15]. Where the bias is too small for the largest shift, its scale grows to that.

    Raises NotQuantizable if a scale is no power of two, shift_cut is out of range, or the bias is too large for the
    smallest shift.
    """
    position_x, position_w, position_y = (_position(s) for s in (x_scale, w_scale, y_scale))
    cut = position_w + position_x - position_y
    if not 0 <= cut <= 16:
        raise NotQuantizable(f"shift_cut is {cut}, outside [0, 16]")
    largest = float(np.abs(b.astype(np.float64)).max(initial=0.0))
    least, most = min(0, -(24 - (8 + cut))), 15
    wanted = _position(float(covering_scale(largest, QMAX, power_of_two=True))) if largest else position_w + position_x
    shift = position_w + position_x - wanted
    shift = max(shift, least)
    if shift > most:
        raise NotQuantizable(f"the bias, {largest:g}, needs a shift of {shift}, beyond {most}")
    scale = np.asarray(2.0 ** (shift - position_w - position_x), np.float32)
    codes = np.clip(np.rint(b.astype(np.float64) / float(scale)), -QMAX, QMAX).astype(np.int8)
    return PowerOfTwoBias(QuantizedTensor(codes, scale, np.zeros((), np.int8), None), cut, shift)


def _position(scale: float) -> int:
    mantissa, exponent = math.frexp(scale)
    if mantissa != 0.5:
        raise NotQuantizable(f"a scale is {scale:g}, no power of two")
    return 1 - exponent
