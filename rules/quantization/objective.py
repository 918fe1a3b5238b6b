"""What a channel's errors are expected to cost in the output: the three terms of `moments`, measured.

Rounding and the search for scales compare by it. Channels come as [C, G, L, k]: the groups that share a scale (those of
a ConvTranspose, else one), and of each the kernel slices; every group is an output of its own, and a channel's
objective is the sum of its groups'. Errors are differences of quotient and code, in the type that weights are divided
in: with float32 they are those of weights that are off by 2^-24 of themselves. All of it walks in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import BLOCK, working_type
from .layout import groups_of
from .moments import InputMoments
from .tensor import QuantizedTensor

Array = NDArray[Any]


def channel_blocks(w: Array, axis: int) -> list[slice]:
    """Ranges of channels; at least 16 at a time where they are interleaved, for the cache lines' sake."""
    channels = w.shape[axis]
    size = max(1 if axis == 0 else 16, BLOCK * channels // max(1, w.size))
    return [slice(start, min(start + size, channels)) for start in range(0, channels, size)]


def channels_of(w: Array, axis: int, repeat: int = 1) -> Iterator[Array]:
    """w as [C, G, L, k], block by block. axis: of the output channels; repeat: as in `quantize_unit`."""
    groups = groups_of(w.shape, axis, repeat)
    moved = np.moveaxis(w, axis, 0)
    width = math.prod(moved.shape[2:])
    for block in channel_blocks(w, axis):
        part = np.ascontiguousarray(moved[block])
        yield part.reshape(len(part), groups, -1, width)


def quotients(part: Array, scale: Array, alpha: float, work: Any) -> Array:
    """alpha * part / scale of channels [C, G, L, k], a new array of type work."""
    with np.errstate(over="ignore", under="ignore"):
        step = scale.astype(work).reshape(-1, 1, 1, 1)
        return np.asarray(np.divide(part if alpha == 1 else part.astype(work) * work(alpha), step, dtype=work))


def objective(errors: Array, scale: Array, moments: InputMoments, *, total: bool = True) -> NDArray[np.float64]:
    """The objective [C] of errors [C, G, L, k] in steps of scale [C].

    total: with its last term. Each term is a sum of squares, and the others are sums over slices: so without it, the
    first slices alone bound it from below.
    """
    own, common = moments.weights
    width = errors.shape[-1]
    alike = own * moments.correlation if width > 1 else 0.0
    rows = errors.reshape(*errors.shape[:2], 1, -1)
    found = np.zeros(len(rows))
    sums = rows
    if alike or (width > 1 and total and common):
        sums = (rows.reshape(-1, width) @ np.ones(width, rows.dtype)).reshape(*rows.shape[:3], -1)
    if alike:
        found += alike * _squares(sums)
    if total and common:
        found += common * np.square((sums @ np.ones(sums.shape[-1], sums.dtype)).astype(np.float64)).sum(axis=(1, 2))
    if own > alike:
        found += (own - alike) * _squares(rows)
    return found * np.square(scale.astype(np.float64))


def _squares(rows: Array) -> Array:
    """Of rows [C, G, 1, n] the sum of squares, [C]: dot products, which need no square to be stored."""
    return np.asarray((rows @ rows.transpose(0, 1, 3, 2)).sum(axis=(1, 2, 3)))


def objective_of(
    w: Array, q: QuantizedTensor, moments: InputMoments, *, axis: int, alpha: float = 1.0, repeat: int = 1
) -> NDArray[np.float64]:
    """The objective [C] of q, codes of alpha * w with one scale or one per channel."""
    scale, zero = (np.broadcast_to(v, w.shape[axis]) for v in (q.scale, q.zero_point))
    work = working_type(w, alpha)
    found = np.zeros(w.shape[axis])
    pieces = zip(channel_blocks(w, axis), channels_of(w, axis, repeat), channels_of(q.codes, axis, repeat), strict=True)
    for block, part, codes in pieces:
        steps = codes.astype(work)
        if zero[block].any():
            steps -= zero[block].astype(work).reshape(-1, 1, 1, 1)
        errors = np.subtract(quotients(part, scale[block], alpha, work), steps, out=steps)
        found[block] = objective(errors, scale[block], moments)
    return found
