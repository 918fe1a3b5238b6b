"""The scale of a symmetric int8 weight, from the largest magnitude that it has to hold.

One line of arithmetic with four traps. A scale rounded to nearest can fall short of `absmax / 127`, so that
the largest weight clips; one rounded to zero makes the division a NaN; one below the smallest normal is zero
on hardware that flushes subnormals; and near the top of the range `127 * scale` overflows, so that the weight
comes back as infinity. Scales are float32 whatever the type of the weight: a float16 scale underflows for
ordinary weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import NotQuantizable

QMAX = 127
"""The largest code: int8 without -128, so that a weight and its negative have codes which are negatives."""

SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal
"""2^-126, the smallest scale ever given: below it hardware may read zero."""


def symmetric_scale(absmax: ArrayLike) -> NDArray[np.float32]:
    """The smallest float32 `s >= 2^-126` with `127 * s >= absmax` exactly, elementwise; shape of `absmax`.

    127 * s has 31 bits, so float64 compares it with absmax (of any float type) without rounding. The quotient
    rounded to float32 is at most one float away from the answer.

    Raises NotQuantizable if an absmax is negative or not finite, or if `127 * s` overflows float32.
    """
    wanted = np.asarray(absmax, np.float64)
    if not np.all(np.isfinite(wanted) & (wanted >= 0)):
        raise NotQuantizable("its largest magnitude is not a finite number")
    with np.errstate(over="ignore"):
        scale = np.asarray(wanted / QMAX, np.float32)
    short = QMAX * scale.astype(np.float64) < wanted
    scale = np.maximum(np.where(short, np.nextafter(scale, np.float32(np.inf)), scale), SMALLEST_NORMAL)
    if not np.all(round_trip_is_finite(scale)):
        raise NotQuantizable(
            f"its largest magnitude, {wanted.max():g}, would overflow float32 on the way back"
        )
    return np.asarray(scale, np.float32)


def round_trip_is_finite(scale: ArrayLike) -> NDArray[np.bool_]:
    """Whether the largest code comes back finite: float32(127 * scale) is finite. Elementwise."""
    with np.errstate(over="ignore"):
        return np.asarray(np.isfinite(np.asarray(scale, np.float32) * np.float32(QMAX)))


def idle_scale(scale: NDArray[np.float32], absmax: NDArray[np.float64]) -> np.float32:
    """A scale for a channel of zeros, whose codes are 0 at every scale: the largest one in use, else 1.

    The largest, because x_scale * w_scale must not underflow, and because a target may bound the ratio of the
    scales of one tensor. `scale` and `absmax` have the same shape.
    """
    used = scale[absmax > 0]
    return np.float32(used.max() if used.size else 1)
