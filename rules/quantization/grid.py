"""Weights that lie on an integer grid already, and the grid that they lie on.

Exports of quantization-aware training, fake-quantized ones and those with a folded DequantizeLinear hold floats that
are codes times a scale. Their own scale brings the codes back without loss; the scale of the largest magnitude does
not, because no code need be at the end of the range. The test is elementary: with M = max|w|, the smallest integer N
for which every |w| N / M is within 2e-4 of an integer is the code of the largest element (or that over a common
divisor), and M / N the scale. Random weights pass it at no N once there are nine of them.

Few elements decide: all N are tried on a sample, and the smallest that is left is confirmed on the whole channel. Where
that fails, the element that refutes it sieves the others too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scales import SMALLEST_NORMAL

TOLERANCE = 2e-4
_FIRST, _SAMPLE, _ULPS = 6, 48, 3
_TOGETHER, _TRIED = 256, 1 << 22


def grid_scales(rows: NDArray[Any], reach: int, span: int | None = None) -> NDArray[np.float32]:
    """The scale of the grid that each row [R, K] of finite floats lies on, 0 where it lies on none or is all zero.

    reach: the largest |code| of the grid. span: if given, the largest difference of two codes, 0 included (255 for an
    asymmetric 8-bit weight, whose reach is 255 too).

    Of the float32 numbers around M / N, and M over the multiples of N, the one is taken that gives most elements
    back bit for bit (`float32(code * scale) == w`). Some rows at a time: extra memory is a few MiB.
    """
    size = max(1, _TRIED // (reach + 1))
    parts = [_grids(rows[start : start + size], reach, span) for start in range(0, len(rows), size)]
    return np.concatenate(parts) if rows.size else np.zeros(len(rows), np.float32)


def _grids(rows: NDArray[Any], reach: int, span: int | None) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.zeros(len(rows), np.float32)
    if rows.size == 0:
        return found
    largest = np.maximum(rows.max(axis=1).astype(np.float64), -rows.min(axis=1).astype(np.float64))
    every = max(1, rows.shape[1] // _SAMPLE)
    sample = np.concatenate([rows[:, :_FIRST], rows[:, ::every][:, :_SAMPLE]], axis=1).astype(np.float64)
    live = np.flatnonzero(largest / reach >= SMALLEST_NORMAL)
    left = np.zeros((len(rows), reach + 1), bool)
    left[live] = _survivors(sample[live, :_FIRST], largest[live], np.ones((len(live), reach + 1), bool))
    live = live[left[live].any(axis=1)]
    left[live] = _survivors(sample[live], largest[live], left[live])
    live = live[left[live].any(axis=1)]
    while live.size:
        number = left[live].argmax(axis=1)
        worst, where, spread = _misfit(rows, live, largest, number)
        good = worst <= TOLERANCE
        fits = good if span is None else good & (spread <= span + 2 * TOLERANCE)
        for row, n in zip(live[fits], number[fits], strict=True):
            found[row] = _scale(rows[row], sample[row], float(largest[row]), int(n), reach, span)
        live, where = live[~good], where[~good]
        left[live] = _survivors(rows[live, where][:, None].astype(np.float64), largest[live], left[live])
        left[live, number[~good]] = False
        live = live[left[live].any(axis=1)]
    return found


def _survivors(sample: NDArray[Any], largest: NDArray[Any], left: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of the numbers left [R, N + 1] those which put every element of the sample [R, S] beside an integer."""
    left[:, 0] = False
    numbers = np.arange(left.shape[1])
    for k in range(sample.shape[1]):
        rows = np.flatnonzero(left.any(axis=1))
        position = (sample[rows, k] / largest[rows])[:, None] * numbers
        left[rows] &= np.abs(position - np.rint(position)) <= TOLERANCE
    return left


def _misfit(
    rows: NDArray[Any], live: NDArray[Any], largest: NDArray[Any], number: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Per live row the largest distance of an element from the grid, where it is, and the range of the codes with 0."""
    worst, spread, where = np.zeros(len(live)), np.zeros(len(live)), np.zeros(len(live), np.intp)
    chunk = max(1, (1 << 18) // rows.shape[1])
    for start in range(0, len(live), chunk):
        part = slice(start, start + chunk)
        position = rows[live[part]] * (number[part] / largest[live[part]])[:, None]
        distance = np.abs(position - np.rint(position))
        where[part] = distance.argmax(axis=1)
        worst[part] = distance.max(axis=1)
        spread[part] = np.maximum(position.max(axis=1), 0) - np.minimum(position.min(axis=1), 0)
    return worst, where, spread


def _scale(
    row: NDArray[Any], sample: NDArray[Any], largest: float, number: int, reach: int, span: int | None
) -> np.float32:
    """The float32 that gives most of the row back bit for bit."""
    best, most = np.float32(largest / number), -1
    width = 0.0 if span is None else max(float(row.max()), 0.0) - min(float(row.min()), 0.0)
    last = reach if span is None else int(min(reach, (span + 2 * TOLERANCE) * largest / width))
    multiples = np.arange(number, last + 1, number)
    for start in range(0, len(multiples), _TOGETHER):
        middle = (largest / multiples[start : start + _TOGETHER]).astype(np.float32)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            around = middle + np.arange(-_ULPS, _ULPS + 1, dtype=np.float32) * np.spacing(middle)
        scales = around[(middle >= SMALLEST_NORMAL)[:, 0]].reshape(-1, 1)
        for scale in scales[_exact(sample.astype(row.dtype), scales) == sample.size, 0]:
            same = int(_exact(row, scale))
            if same == row.size:
                return np.float32(scale)
            if same > most:
                best, most = np.float32(scale), same
    return best


def _exact(values: NDArray[Any], scale: Any) -> Any:
    """How many of the values come back bit for bit; of each scale [S, 1] or of one."""
    with np.errstate(over="ignore", invalid="ignore"):
        codes = np.rint(values / scale).astype(np.float32)
        return np.count_nonzero((codes * scale).astype(values.dtype) == values, axis=-1)
