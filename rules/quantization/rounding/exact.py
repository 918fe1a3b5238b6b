"""Rounding a quotient exactly, at the price of float64.

A bias code has up to 31 bits. There the float64 quotient of two float32 numbers lands on a tie which is none:
the codes that follow are wrong by a hair more than half a step, and `|b - q s| <= s / 2` would be almost
true. Near-ties are one in a million, so float64 decides wherever it is certain, and exact fractions decide
the rest.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DOUBT = 2.0**-20


def rint_ratio(n: ArrayLike, step: ArrayLike, *, unit: ArrayLike = 1.0) -> NDArray[np.float64]:
    """`n * unit / step` rounded to the nearest integer, ties to even, as float64; the arguments broadcast.

    Exactly rounded where the result is below 2^32 in magnitude: product and quotient have a relative error of
    at most 2^-52 together, hence at most 2^-20 of a step, and every quotient that close to a tie is decided
    by fractions. n, unit, step: numbers which float64 holds exactly. Nothing is raised: NaN, and infinity for
    a step of 0, pass.
    """
    n, unit, step = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (n, unit, step)))
    with np.errstate(all="ignore"):
        quotient = np.asarray(n * unit / step)
        doubtful = np.abs(quotient - np.floor(quotient) - 0.5) <= _DOUBT
    result = np.array(np.rint(quotient))
    for i in map(tuple, np.argwhere(doubtful)):
        result[i] = round(Fraction(n[i]) * Fraction(unit[i]) / Fraction(step[i]))
    return result
