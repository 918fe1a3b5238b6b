"""Scales: the grid where there is one, else the range, or the least squared error.

Every function takes rows [R, K], one for each scale, so that tensor, channel and block are one case. The range's scale
("minmax") clips nothing. A smaller one clips a few elements and serves the others better, which pays for 4 bits (2
to 10 dB) and hardly for 8: "mse" tries a few and keeps the range's where none is better, so that it is never worse.
"grid" looks for the grid that the weights lie on already, and falls back to the range; "auto" does too, and lets the
caller choose between several schemes (`candidates.preferred`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .grid import grid_scales
from .scales import covering_scale, round_trip_is_finite, smallest_scale
from .scheme import Scheme

_CHUNK = 1 << 18
_GRID = 255
"""The most codes of a grid that is looked for: float32 does not tell larger ones apart to `grid.TOLERANCE`.

A grid of N codes is off by 2e-4 M / N where it seems to fit, a range of R codes by the distance of two different
fractions i / N and j / R, at least M / (N R), less that: so up to R = 255 a grid is never worse, and beyond it is
measured.
"""
_ABOUT_1 = np.linspace(0.97, 1.04, 15)  # a hair more or less draws the errors of a short row anew
_FACTORS = {
    4: np.concatenate([np.linspace(0.4, 0.95, 23), np.linspace(0.96, 1.12, 17)]),
    8: np.concatenate([np.linspace(0.7, 0.96, 8), _ABOUT_1]),
    16: np.linspace(0.9, 0.99, 3),
}
_BETTER = 1 - 2.0**-40
_SAME = 2.0**-21  # a grid's scale is known to a few float32: that of a narrower type lies there, or none does


@dataclass(frozen=True, eq=False)
class Scales:
    """scale and zero_point of each row, shape [R], and on_grid: whether the row lies on that grid already."""

    scale: NDArray[Any]
    zero_point: NDArray[Any]
    on_grid: NDArray[np.bool_]


def find_scales(
    low: NDArray[np.float64], high: NDArray[np.float64], scheme: Scheme, rows: NDArray[Any] | None
) -> Scales:
    """Scales for rows whose values lie within [low, high], shape [R] each, low <= 0 <= high.

    rows: [R, K] finite floats; needed for every search but "minmax". Rows of zeros get the smallest scale of the
    type: the caller chooses a better one.

    Raises NotQuantizable if a range is too large to come back finite.
    """
    scale, zero = range_scales(low, high, scheme)
    on_grid = np.zeros(len(low), bool)
    if rows is None or scheme.search == "minmax":
        return Scales(scale, zero, on_grid)
    if scheme.search in ("grid", "auto") and not scheme.power_of_two:
        codes = min(scheme.span, _GRID)
        grid = grid_scales(rows, codes, None if scheme.symmetric else codes)
        with np.errstate(over="ignore"):
            held = grid.astype(scheme.scale_dtype)
        on_grid = (grid > 0) & (held >= smallest_scale(held.dtype)) & round_trip_is_finite(held, scheme.span)
        on_grid &= np.abs(held.astype(np.float64) - grid) <= _SAME * grid
        if scheme.span > _GRID:
            on_grid &= _is_no_worse(rows, low, np.where(on_grid, held, scale), scale, scheme)
        scale = np.where(on_grid, held, scale)
        zero = zero_points(low, scale, scheme)
    if scheme.search == "mse":
        scale, zero = _least_error(rows, low, high, scale, zero, scheme)
    return Scales(scale, zero, on_grid)


def _is_no_worse(
    rows: NDArray[Any], low: NDArray[np.float64], tried: NDArray[Any], scale: NDArray[Any], scheme: Scheme
) -> NDArray[np.bool_]:
    """Where the squared error of a row is no larger with the scale that is tried."""
    ours, theirs = (squared_error(rows, one, zero_points(low, one, scheme), scheme) for one in (tried, scale))
    return np.asarray(ours <= theirs)


def range_scales(
    low: NDArray[np.float64], high: NDArray[np.float64], scheme: Scheme
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The smallest scales of the scheme that hold these ranges, and their zero points."""
    with np.errstate(over="ignore"):  # an infinite extent is refused
        extent = np.maximum(-low, high) if scheme.symmetric else high - low
    scale = covering_scale(extent, scheme.span, scheme.scale_dtype, power_of_two=scheme.power_of_two)
    return scale, zero_points(low, scale, scheme)


def zero_points(low: NDArray[np.float64], scale: NDArray[Any], scheme: Scheme) -> NDArray[Any]:
    """The code of 0: the middle, or where the smallest value meets the smallest code. In the codes' type.

    Rounding it shifts the range by half a step at most, so that a value at an end is off by no more than that.
    """
    if scheme.symmetric:
        return np.full(scale.shape, scheme.middle, scheme.dtype)
    least, most = scheme.code_range
    return np.clip(np.rint(least - low / scale.astype(np.float64)), least, most).astype(scheme.dtype)


def squared_error(rows: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any], scheme: Scheme) -> NDArray[np.float64]:
    """Per row, the sum of (w - s (q - z))^2 with nearest codes, in float64."""
    least, most = scheme.code_range
    total = np.zeros(len(rows))
    chunk = max(1, _CHUNK // max(1, rows.shape[1]))
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        step, shift = scale[part].astype(np.float64)[:, None], zero[part].astype(np.float64)[:, None]
        w = rows[part].astype(np.float64)
        error = w - step * np.clip(np.rint(w / step), least - shift, most - shift)
        total[part] = np.einsum("ij,ij->i", error, error)
    return total


def _least_error(
    rows: NDArray[Any],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    scale: NDArray[Any],
    zero: NDArray[Any],
    scheme: Scheme,
) -> tuple[NDArray[Any], NDArray[Any]]:
    bits = 16 if scheme.span > 255 else 4 if scheme.span < 16 else 8
    factors = np.array([0.5, 0.25]) if scheme.power_of_two else _FACTORS[bits][::-1]
    least = squared_error(rows, scale, zero, scheme)
    for factor in factors:
        tried, tried_zero = range_scales(low * factor, high * factor, scheme)
        error = squared_error(rows, tried, tried_zero, scheme)
        better = error < least * _BETTER
        scale, zero = np.where(better, tried, scale).astype(scale.dtype), np.where(better, tried_zero, zero)
        least = np.where(better, error, least)
    return scale, zero
