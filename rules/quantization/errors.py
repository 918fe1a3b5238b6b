"""Why a tensor cannot be quantized, as exceptions that carry a sentence for the user.

A rule declines with a reason; the reason is found here, in the arithmetic, where the offending element is
known. So the functions of this package raise one of two types instead of returning garbage: a scale of
infinity, the code of a NaN, or an int32 that wrapped around are wrong silently and far away from their cause.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 20


class NotQuantizable(ValueError):
    """No scale represents this tensor. `reason` is a sentence fit for a report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BiasOverflow(NotQuantizable):
    """A bias does not fit int32 at the scale that the weight dictates.

    It is told apart from its base because it has a remedy: requantize the weight with a larger scale.
    `index` is the first element of the bias which does not fit.
    """

    def __init__(self, reason: str, index: tuple[int, ...]) -> None:
        super().__init__(reason)
        self.index = index


def first_bad(w: NDArray[Any]) -> tuple[int, ...] | None:
    """The index of the first NaN or infinity in C order, or None. Any shape, any float dtype.

    Minimum and maximum decide without a temporary; only an array that has a bad element is searched, in
    blocks.
    """
    if w.size == 0 or (np.isfinite(w.min()) and np.isfinite(w.max())):
        return None
    for start in range(0, w.size, _BLOCK):
        bad = ~np.isfinite(w.flat[start : start + _BLOCK])
        if bad.any():
            return tuple(int(i) for i in np.unravel_index(start + int(bad.argmax()), w.shape))
    return None


def check_finite(name: str, values: NDArray[Any]) -> None:
    """Raises NotQuantizable, naming the first element, if `values` has a NaN or an infinity."""
    index = first_bad(values)
    if index is not None:
        raise NotQuantizable(f"{name}[{', '.join(map(str, index))}] is {values[index]}")
