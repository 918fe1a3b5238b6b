"""Exact arithmetic on whole arrays: the judge of the properties, where `fractions` would take a loop per element.

Every float is an integer over a power of two. So an array of floats is an array of Python integers once all are
multiplied by one power that is large enough, and sums, products and comparisons of those round nothing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]

POINT = 1074
"""Bits behind the point, as many as the smallest float64 needs."""


def fixed(values: ArrayLike) -> Array:
    """value * 2^POINT as Python integers, of the same shape. values: floats of any type, finite."""
    held = np.asarray(values).astype(np.float64)
    return _objects(held, [_fixed(float(v)) for v in held.reshape(-1)])


def integers(values: ArrayLike) -> Array:
    """Integers of any type as Python integers, which do not overflow."""
    held = np.asarray(values)
    return _objects(held, [int(v) for v in held.reshape(-1)])


def fractions(values: ArrayLike) -> list[Fraction]:
    """The values as fractions, in C order."""
    return [Fraction(float(v)) for v in np.asarray(values).reshape(-1)]


def _fixed(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << (POINT + 1 - denominator.bit_length())


def _objects(like: Array, values: list[Any]) -> Array:
    found = np.empty(like.size, object)
    found[:] = values
    return found.reshape(like.shape)
