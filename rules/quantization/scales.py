"""The scale of a weight, from the values that it has to hold.

One line of arithmetic with four traps. A scale rounded to nearest can fall short of `absmax / 127`, so that
the largest weight clips; one rounded to zero makes the division a NaN; one below the smallest normal is zero
on hardware that flushes subnormals; and near the top of the range `127 * scale` overflows, so that the weight
comes back as infinity. Scales are float32 whatever the type of the weight, unless asked otherwise: a
float16 scale underflows for ordinary weights.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .errors import NotQuantizable

QMAX = 127
"""The largest code: int8 without -128, so that a weight and its negative have codes which are negatives."""

SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal
"""2^-126, the smallest float32 scale ever given: below it hardware may read zero."""


def smallest_scale(dtype: DTypeLike) -> float:
    """The smallest scale given in this type: the smallest normal, but for float16 the smallest subnormal.

    float16 has no normal numbers below 2^-14, where the scales of ordinary weights lie; its subnormals are computed
    with wherever it is supported at all.
    """
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.smallest_subnormal if np.dtype(dtype) == np.float16 else info.smallest_normal)


def covering_scale(
    extent: ArrayLike, reach: int, dtype: DTypeLike = np.float32, *, power_of_two: bool = False
) -> NDArray[Any]:
    """The smallest `s >= smallest_scale` of this type with `reach * s >= extent` exactly, elementwise.

    extent: max|w| for a symmetric weight and reach = 127, or max - min and 255. reach * s has at most 40 bits, so
    float64 compares it with extent (of any float type but float64 itself, where the comparison rounds) without
    rounding. With power_of_two the smallest such power.

    Raises NotQuantizable if an extent is negative or not finite, or no finite s of this type will do, or `reach * s`
    overflows it.
    """
    wanted = np.asarray(extent, np.float64)
    if not np.all(np.isfinite(wanted) & (wanted >= 0)):
        raise NotQuantizable("its largest magnitude is not a finite number")
    least = smallest_scale(dtype)
    with np.errstate(over="ignore", under="ignore"):
        quotient = np.maximum(wanted / reach, least)
        if power_of_two:
            mantissa, exponent = np.frexp(quotient)
            quotient = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
            quotient = np.where(reach * quotient / 2 >= np.maximum(wanted, reach * least), quotient / 2, quotient)
            scale = quotient.astype(dtype)
        else:
            scale = np.asarray(quotient.astype(dtype))
        below = scale.astype(np.float64) * reach < wanted
        raised = scale * 2 if power_of_two else next_up(scale)
        scale = np.asarray(np.where(below, raised, scale)).astype(dtype)
    if not np.all(round_trip_is_finite(scale, reach)):
        raise NotQuantizable(
            f"its largest magnitude, {wanted.max():g}, would overflow {np.dtype(dtype).name} on the way back"
        )
    return scale


def symmetric_scale(absmax: ArrayLike) -> NDArray[np.float32]:
    """The smallest float32 `s >= 2^-126` with `127 * s >= absmax` exactly, elementwise; shape of `absmax`.

    Raises NotQuantizable if an absmax is negative or not finite, or if `127 * s` overflows float32.
    """
    return covering_scale(absmax, QMAX)


def next_up(scale: NDArray[Any]) -> NDArray[Any]:
    """The next larger number of the same type, elementwise."""
    return np.asarray(np.nextafter(scale, np.asarray(np.inf, scale.dtype)))


def round_trip_is_finite(scale: ArrayLike, reach: int = QMAX) -> NDArray[np.bool_]:
    """Whether the largest code comes back finite: reach, and reach * scale, rounded to the type of scale. Elementwise.

    DequantizeLinear turns the code into that type first: 65535, of a 16-bit code, is infinite in float16.
    """
    held = np.asarray(scale)
    held = held if held.dtype.kind in "fV" else held.astype(np.float32)
    with np.errstate(over="ignore"):
        code = np.float64(reach).astype(held.dtype).astype(np.float64)
        largest = (held.astype(np.float64) * reach).astype(held.dtype)
    return np.asarray(np.isfinite(largest.astype(np.float64)) & np.isfinite(code))


def idle_scale(scale: NDArray[Any], extent: NDArray[np.float64]) -> Any:
    """A scale for a channel of zeros, whose codes are 0 at every scale: the largest one in use, else 1.

    The largest, because x_scale * w_scale must not underflow, and because a target may bound the ratio of the
    scales of one tensor. `scale` and `extent` have the same shape.
    """
    used = scale[extent > 0]
    return scale.dtype.type(used.max() if used.size else 1)
