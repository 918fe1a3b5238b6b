"""Biases to int32, at the scale that the integer kernels assume.

A kernel adds the bias to its accumulator, whose step is x_scale * w_scale, and most of them recompute that
product instead of reading the bias' own scale. So the bias has no scale of its own to choose: its scale is
that float32 product, and where the bias does not fit, or the product is no normal number, it is the weight's
scale that has to grow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import BiasOverflow, NotQuantizable, check_finite
from .rounding import rint_ratio
from .scales import SMALLEST_NORMAL, round_trip_is_finite
from .tensor import QuantizedTensor, along

INT32_MAX = 2**31 - 1

_IDLE_CODE = 2.0**22
_LARGEST_IDLE = 2.0**120
_STEPS = 8
_RIGHT = 2.0**-22


def input_scale(x_scale: ArrayLike) -> np.float32:
    """The scale of the unit's input, given with shape [] or [1], as a float32.

    Raises NotQuantizable if it has another shape or is not positive and finite.
    """
    scale = np.asarray(x_scale, np.float32)
    if scale.size != 1 or not (np.isfinite(scale).all() and (scale > 0).all()):
        raise NotQuantizable("the input's scale is not one positive finite number")
    return np.float32(scale.reshape(())[()])


def bias_scale(x_scale: ArrayLike, w_scale: ArrayLike) -> NDArray[np.float32]:
    """float32(x_scale * w_scale), the product that kernels recompute. Shape of w_scale.

    Nothing is checked: the product may be 0, subnormal or infinite; `raise_for_bias` prevents that.
    """
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.asarray(w_scale, np.float32) * input_scale(x_scale))


def raise_for_bias(
    w_scale: ArrayLike, b_absmax: ArrayLike, x_scale: ArrayLike, *, limit: int = INT32_MAX
) -> NDArray[np.float32]:
    """w_scale, raised where needed until the bias fits and its scale is a normal float32.

    On return, with s_b = bias_scale(x_scale, result): |rint(b / s_b)| <= limit, and 2^-126 <= s_b < infinity.
    w_scale and b_absmax (the largest |b| that meets this scale) have the same shape, [] or [C].

    The quotient b / limit rounds down half of the time, and so does the product, so what counts is tested
    after forming s_b, and the scale takes another float up where that fails. Both roundings are below one
    float, so a handful of steps is enough. A channel that fits keeps its scale bit for bit.

    Raises NotQuantizable if no scale that comes back finite will do.
    """
    b = np.asarray(b_absmax, np.float64)
    scale = np.asarray(w_scale, np.float32)
    with np.errstate(over="ignore"):
        need = np.maximum(b / limit, SMALLEST_NORMAL) / np.float64(input_scale(x_scale))
    scale = np.where(_fits(scale, b, x_scale, limit), scale, np.maximum(scale, _to_float32(need)))
    for _ in range(_STEPS):
        fits = _fits(scale, b, x_scale, limit)
        if fits.all():
            break
        scale = np.where(fits, scale, np.nextafter(scale, np.float32(np.inf)))
    finite = np.isfinite(bias_scale(x_scale, scale)) & round_trip_is_finite(scale)
    if not (finite.all() and _fits(scale, b, x_scale, limit).all()):
        raise NotQuantizable(f"no weight scale makes a bias of magnitude {b.max():g} fit int32")
    return np.asarray(scale, np.float32)


def _fits(
    w_scale: NDArray[np.float32], b: NDArray[np.float64], x_scale: ArrayLike, limit: int
) -> NDArray[np.bool_]:
    s_b = bias_scale(x_scale, w_scale)
    return np.asarray((s_b >= SMALLEST_NORMAL) & (rint_ratio(b, s_b) <= limit))


def _to_float32(values: ArrayLike) -> NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values, np.float32)


def bias_only_scale(b_absmax: ArrayLike, x_scale: ArrayLike) -> NDArray[np.float32]:
    """The weight scale of a channel whose weights are all zero and whose bias is not.

    It serves the bias alone and puts its code near 2^22: DequantizeLinear converts such a code to float32
    exactly and rounds the product by a quarter of a step, so the bias comes back within 3/4 of a step, 2^-22
    of its size; and 2^31 leaves the accumulator room. Elementwise; within [2^-126, 2^120], so
    `raise_for_bias` has to follow.
    """
    wanted = np.asarray(b_absmax, np.float64) / (_IDLE_CODE * np.float64(input_scale(x_scale)))
    return _to_float32(np.clip(wanted, SMALLEST_NORMAL, _LARGEST_IDLE))


def quantize_bias(
    b: NDArray[Any], x_scale: ArrayLike, w_scale: ArrayLike, *, axis: int | None, limit: int = INT32_MAX
) -> QuantizedTensor:
    """int32 codes of a float bias at scale s_b = bias_scale(x_scale, w_scale), zero point 0, rounded half to
    even.

    b: any shape; w_scale: shape [] (axis None) or [C] along `axis` of b. Exactly |b - codes * s_b| <= s_b /
    2.

    Raises BiasOverflow if a code exceeds `limit` in magnitude, NotQuantizable if b is not finite or s_b is no
    normal float32, ValueError if w_scale does not fit b.
    """
    check_finite("bias", b)
    scale = bias_scale(x_scale, w_scale)
    return _int32(rint_ratio(b, along(_normal(scale), b.ndim, axis)), scale, axis, limit)


def requantize_bias(
    codes: NDArray[Any],
    scale: ArrayLike,
    zero_point: ArrayLike,
    x_scale: ArrayLike,
    w_scale: ArrayLike,
    *,
    old_axis: int | None = None,
    axis: int | None,
    limit: int = INT32_MAX,
) -> QuantizedTensor:
    """int32 codes at bias_scale(x_scale, w_scale) for a bias that is quantized already, at another scale.

    codes, scale, zero_point: the integers (any type up to 32 bits) of any shape, with a float32 scale and a
    zero point of shape [] or [C] along `old_axis`. The value (codes - zero_point) * scale takes up to 57 bits
    and is rounded once, to the new step, never to float32 or float64: it is `rint_ratio` of the integers.

    Raises as `quantize_bias`, and NotQuantizable if the old scale is not finite.
    """
    old = np.asarray(scale, np.float32)
    check_finite("bias scale", old)
    zero = along(np.asarray(zero_point), codes.ndim, None if np.ndim(zero_point) == 0 else old_axis)
    steps = codes.astype(np.int64) - zero.astype(np.int64)
    new = bias_scale(x_scale, w_scale)
    per = along(_normal(new), codes.ndim, axis)
    return _int32(rint_ratio(steps, per, unit=along(old, codes.ndim, old_axis)), new, axis, limit)


def _normal(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.all(np.isfinite(scale) & (scale >= SMALLEST_NORMAL)):
        raise NotQuantizable("the bias scale, x_scale * w_scale, is not a normal float32")
    return scale


def _int32(
    codes: NDArray[np.float64], scale: NDArray[np.float32], axis: int | None, limit: int
) -> QuantizedTensor:
    over = np.argwhere(np.abs(codes) > limit)
    if len(over):
        index = tuple(int(i) for i in over[0])
        raise BiasOverflow(
            f"bias[{', '.join(map(str, index))}] is {codes[index]:g} steps, beyond int32", index
        )
    return QuantizedTensor(codes.astype(np.int32), scale, np.zeros(scale.shape, np.int32), axis)


def bias_is_right(scale: ArrayLike, x_scale: ArrayLike, w_scale: ArrayLike) -> bool:
    """Whether a bias scale that a model already has is bias_scale(x_scale, w_scale) within 2^-22 relative.

    Elementwise after broadcasting, all of them; False if the shapes do not broadcast or an element is not
    finite. The tolerance admits the product formed in another order or precision, and at 2^-22 no code below
    2^21 moves by half a step.
    """
    given = np.asarray(scale, np.float64)
    expected = bias_scale(x_scale, w_scale).astype(np.float64)
    try:
        close = np.abs(given - expected) <= _RIGHT * expected
    except ValueError:
        return False
    return bool(np.all(close & np.isfinite(given) & np.isfinite(expected) & (expected > 0)))
