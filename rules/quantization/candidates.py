"""Zero points where they pay: whether another scheme that may be used keeps a weight better than the wanted one.

Symmetric weights are what every integer kernel takes, and nothing has to be subtracted at run time. Two kinds of
weight lose by them: those that lie on a grid whose zero is not in the middle (exports with uint8 weights), and
skewed ones, which leave codes on one side of zero unused.

The answer is nearly always no, so it has to be cheap. The range speaks first: its step s is known before any code
is, and s^2 / 12 is what an error's square comes to. Only where no channel's step would grow, and the sum of squares
would fall by a fifth (1 dB), are codes made and their errors measured. A grid has to fit a few elements of a channel
before all are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import value_range
from .grid import TOLERANCE, grid_scales
from .layout import channel_rows
from .scheme import Scheme
from .search import range_scales, squared_error

WORTH = 0.8
"""What the squared error must fall to, since a zero point costs something at run time."""

_LEAST = 16
"""Elements of a channel below which random weights may seem to lie on a grid of 256 codes."""

_CHUNK = 1 << 18


def preferred(
    w: NDArray[Any], axis: int | None, scheme: Scheme, lost: NDArray[np.bool_], allowed: Sequence[Scheme]
) -> Scheme:
    """The wanted scheme, or one of `allowed` on whose grid w lies, or whose squared error is less by a fifth.

    Only search "auto" looks further than the wanted scheme. w: finite floats. axis: the output channels, None where
    there are none. lost: [] or [C], the channels (for a scheme
    of one scale, whether the tensor) that are not all zero and lie on no grid of the wanted scheme. allowed: of the
    same granularity, or "tensor"; with search "grid" one is taken only where w lies on its grid, with "auto" also for
    its error.
    """
    if scheme.search != "auto" or not allowed or not lost.any():
        return scheme
    along = _along(axis, scheme)
    some = w if along is None else np.moveaxis(w, along, 0)[lost.argmax()]
    for one in allowed:
        if may_lie_on_grid(some, one.span) and lies_on_grid(w, axis, one):
            return one
    promising = [one for one in allowed if one.search == "auto" and _promises(w, along, scheme, lost, one)]
    least = WORTH * squared_error_of(w, along, scheme) if promising else 0.0
    for one in promising:
        found = squared_error_of(w, _along(axis, one), one)
        if found < least:
            scheme, least = one, found
    return scheme


def _along(axis: int | None, scheme: Scheme) -> int | None:
    return axis if scheme.granularity == "channel" else None


def may_lie_on_grid(row: NDArray[Any], reach: int) -> bool:
    """Whether a few elements of a row can all have codes up to reach; random weights cannot, nor too few elements."""
    some = row.flat[:: max(1, row.size // _LEAST)].astype(np.float64)
    largest = max(float(row.max(initial=0)), -float(row.min(initial=0)))
    if row.size < _LEAST or largest == 0:
        return False
    position = some[:, None] / largest * np.arange(1, reach + 1)
    return bool((np.abs(position - np.rint(position)) <= TOLERANCE).all(axis=0).any())


def lies_on_grid(w: NDArray[Any], axis: int | None, scheme: Scheme) -> bool:
    """Whether each channel of w that is not all zero lies on a grid of the scheme.

    With granularity "tensor", whether all of w lies on one."""
    span = None if scheme.symmetric else scheme.span
    along = _along(axis, scheme)
    if along is None:
        return bool(grid_scales(w.reshape(1, -1), scheme.span, span)[0])
    return all(not rows[grid_scales(rows, scheme.span, span) == 0].any() for _, rows in channel_rows(w, along, _CHUNK))


def _promises(w: NDArray[Any], along: int | None, scheme: Scheme, lost: NDArray[np.bool_], one: Scheme) -> bool:
    """Whether by the range alone no channel's step would grow, and their squares would sum to so much less."""
    low, high = value_range(w, along)
    used = np.maximum(-low, high) > 0
    if np.any(used & ~lost):
        return False  # some of it is lossless
    step = range_scales(low, high, scheme)[0].astype(np.float64)[used]
    if one.granularity == "tensor":
        low, high = np.asarray(low.min()), np.asarray(high.max())
    other = np.broadcast_to(range_scales(low, high, one)[0].astype(np.float64), used.shape)[used]
    largest = step.max()
    return bool((other <= step).all() and np.square(other / largest).sum() < WORTH * np.square(step / largest).sum())


def squared_error_of(w: NDArray[Any], along: int | None, scheme: Scheme) -> float:
    """The sum of squared errors of w, with the scales of its range along an axis (None: one) and nearest codes."""
    low, high = value_range(w, along)
    scale, zero = (v.reshape(-1) for v in range_scales(low, high, scheme))
    if along is None:
        flat = w.reshape(-1)
        starts = range(0, flat.size, _CHUNK)
        return sum(float(squared_error(flat[k : k + _CHUNK].reshape(1, -1), scale, zero, scheme)[0]) for k in starts)
    pieces = channel_rows(w, along, _CHUNK)
    return sum(float(squared_error(rows, scale[part], zero[part], scheme).sum()) for part, rows in pieces)
