"""Biases to int32, at the scale that the integer kernels assume.

A kernel adds the bias to its accumulator, whose step is x_scale * w_scale, and most of them recompute that
product instead of reading the bias' own scale. So the bias has no scale of its own to choose: its scale is
that float32 product, and where the bias does not fit, or the product is no normal number, it is the weight's
scale that has to grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import BiasOverflow, NotQuantizable, check_finite
from .rounding import rint_ratio
from .scales import QMAX, next_up, round_trip_is_finite, smallest_scale
from .tensor import QuantizedTensor, along

INT32_MAX = 2**31 - 1

_IDLE_CODE = 2.0**22
_LARGEST_IDLE = 2.0**120
_RIGHT = 2.0**-22


@dataclass(frozen=True, eq=False)
class BiasValues:
    """A bias as number * unit, exactly: floats times 1, or integers times the scale that they stood at, and beta.

    number: any shape, held exactly by float64. unit: shape [], or one that broadcasts with number, held exactly too (a
    float32 scale times a float32 beta has 48 bits). The product may need more bits than float64 has: nobody rounds it.
    """

    number: NDArray[np.float64]
    unit: NDArray[np.float64]

    @staticmethod
    def of_floats(b: NDArray[Any]) -> BiasValues:
        """Raises NotQuantizable, naming the element, if b has a NaN or an infinity."""
        check_finite("bias", b)
        return BiasValues(np.asarray(b, np.float64), np.asarray(1.0))

    @staticmethod
    def of_codes(codes: NDArray[Any], scale: ArrayLike, zero_point: ArrayLike = 0, *, axis: int | None) -> BiasValues:
        """codes of any integer type up to 32 bits; scale and zero_point of shape [] or [1], or [C] along axis.

        Raises NotQuantizable if the scale is not finite.
        """
        old = np.asarray(scale)
        check_finite("bias scale", old)
        zero = np.asarray(zero_point).astype(np.int64)
        old, zero = (along(v, codes.ndim, axis if v.size > 1 else None) for v in (old.astype(np.float64), zero))
        return BiasValues(np.asarray(codes.astype(np.int64) - zero, np.float64), old)

    def times(self, beta: float) -> BiasValues:
        return self if beta == 1 else BiasValues(self.number, self.unit * beta)

    @property
    def absolute(self) -> NDArray[np.float64]:
        """|b| to float64's precision."""
        return np.abs(self.number * self.unit)


def input_scale(x_scale: ArrayLike) -> Any:
    """The scale of the unit's input, given with shape [] or [1]: a float32, or of the 16-bit type that it has.

    Raises NotQuantizable if it has another shape or is not positive and finite.
    """
    scale = np.asarray(x_scale)
    scale = scale if scale.dtype.itemsize == 2 else scale.astype(np.float32)
    if scale.size != 1 or not (np.isfinite(scale).all() and (scale > 0).all()):
        raise NotQuantizable("the input's scale is not one positive finite number")
    return scale.reshape(())[()]


def bias_scale(x_scale: ArrayLike, w_scale: ArrayLike) -> NDArray[Any]:
    """float32(x_scale * w_scale), the product that kernels recompute; in the type of w_scale if that has 16 bits.

    Shape of w_scale. Nothing is checked: the product may be 0, subnormal or infinite; `raise_for_bias` prevents that.
    """
    held = _scales(w_scale)
    with np.errstate(over="ignore", under="ignore"):
        if held.dtype == np.float32:
            return np.asarray(held * np.float32(input_scale(x_scale)))
        return np.asarray(held.astype(np.float64) * float(input_scale(x_scale))).astype(held.dtype)


def raise_for_bias(
    w_scale: ArrayLike, b_absmax: ArrayLike, x_scale: ArrayLike, *, limit: int = INT32_MAX, reach: int = QMAX
) -> NDArray[Any]:
    """w_scale, raised where needed until the bias fits and its scale is a normal number of its type.

    On return, with s_b = bias_scale(x_scale, result): |rint(b / s_b)| <= limit, and smallest_scale <= s_b < infinity.
    w_scale and b_absmax (the largest |b| that meets this scale) have the same shape, [] or [C].

    The quotient b / limit rounds down half of the time, and so does the product; so the scale of the bias is rounded
    up to a number of its type, and the weight's to one whose exact product with x_scale is no less: then neither can
    the rounded product be. A channel that fits keeps its scale bit for bit.

    Raises NotQuantizable if no scale that comes back finite (times `reach`) will do.
    """
    b = np.asarray(b_absmax, np.float64)
    scale = _scales(w_scale)
    kind = scale.dtype
    needed = _at_least(np.maximum(b / limit, smallest_scale(kind)), kind).astype(np.float64)
    raised = np.maximum(scale, _at_least(needed / np.float64(input_scale(x_scale)), kind))
    scale = np.asarray(np.where(bias_fits(scale, b, x_scale, limit), scale, raised)).astype(kind)
    finite = np.isfinite(bias_scale(x_scale, scale).astype(np.float64)) & round_trip_is_finite(scale, reach)
    if not (finite.all() and bias_fits(scale, b, x_scale, limit).all()):
        raise NotQuantizable(f"no weight scale makes a bias of magnitude {b.max():g} fit int32")
    return scale


def _at_least(value: NDArray[np.float64], kind: np.dtype[Any]) -> NDArray[Any]:
    """The smallest number of this type that is no less than value, elementwise; infinity where there is none."""
    with np.errstate(over="ignore", under="ignore"):
        held = value.astype(kind)
        return np.asarray(np.where(held.astype(np.float64) < value, next_up(held), held)).astype(kind)


def _scales(w_scale: ArrayLike) -> NDArray[Any]:
    held = np.asarray(w_scale)
    return held if held.dtype.itemsize == 2 and held.dtype.kind in "fV" else held.astype(np.float32)


def bias_fits(w_scale: NDArray[Any], b: NDArray[np.float64], x_scale: ArrayLike, limit: int) -> NDArray[np.bool_]:
    """Whether |b| has a code within limit at a bias scale that is a normal number; arguments as `raise_for_bias`."""
    s_b = bias_scale(x_scale, w_scale).astype(np.float64)
    return np.asarray((s_b >= smallest_scale(w_scale.dtype)) & np.isfinite(s_b) & (rint_ratio(b, s_b) <= limit))


def bias_only_scale(b_absmax: ArrayLike, x_scale: ArrayLike) -> NDArray[np.float32]:
    """The weight scale of a channel whose weights are all zero and whose bias is not.

    It serves the bias alone and puts its code near 2^22: DequantizeLinear converts such a code to float32
    exactly and rounds the product by a quarter of a step, so the bias comes back within 3/4 of a step, 2^-22
    of its size; and 2^31 leaves the accumulator room. Elementwise; within [2^-126, 2^120], so
    `raise_for_bias` has to follow.
    """
    wanted = np.asarray(b_absmax, np.float64) / (_IDLE_CODE * np.float64(input_scale(x_scale)))
    return np.asarray(np.clip(wanted, smallest_scale(np.float32), _LARGEST_IDLE), np.float32)


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
    return quantize_bias_values(BiasValues.of_floats(b), x_scale, w_scale, axis=axis, limit=limit)


def quantize_bias_values(
    b: BiasValues, x_scale: ArrayLike, w_scale: ArrayLike, *, axis: int | None, limit: int = INT32_MAX
) -> QuantizedTensor:
    """`quantize_bias` of exact values: number * unit / s_b is rounded once, by `rint_ratio`."""
    scale = bias_scale(x_scale, w_scale)
    step = along(_normal(scale), b.number.ndim, axis)
    return _int32(rint_ratio(b.number, step, unit=b.unit), scale, axis, limit)


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
    values = BiasValues.of_codes(codes, np.asarray(scale, np.float32), zero_point, axis=old_axis)
    return quantize_bias_values(values, x_scale, w_scale, axis=axis, limit=limit)


def _normal(scale: NDArray[Any]) -> NDArray[Any]:
    wide = scale.astype(np.float64)
    if not np.all(np.isfinite(wide) & (wide >= smallest_scale(scale.dtype))):
        raise NotQuantizable(f"the bias scale, x_scale * w_scale, is not a normal {scale.dtype.name}")
    return scale


def _int32(codes: NDArray[np.float64], scale: NDArray[Any], axis: int | None, limit: int) -> QuantizedTensor:
    over = np.argwhere(np.abs(codes) > limit)
    if len(over):
        index = tuple(int(i) for i in over[0])
        raise BiasOverflow(f"bias[{', '.join(map(str, index))}] is {codes[index]:g} steps, beyond int32", index)
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
