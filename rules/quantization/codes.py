"""From weights and given scales to codes, in blocks that stay in the cache.

Weights run to gigabytes. So a tensor is walked through in blocks, each divided, rounded, clipped and stored before the
next one is read, with buffers that are made once: nothing of the tensor's size is allocated but the codes. The division
is a true division in float32 or wider and the rounding half to even, because that is what ONNX QuantizeLinear does: a
multiplication by the reciprocal, or half away from zero, gives other codes for near-ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

BLOCK = 1 << 18
"""Elements at a time: few enough for the cache, enough for the interpreter not to count."""

_ROUNDERS = {np.float32: (np.float32(1.5 * 2**23), np.int32), np.float64: (1.5 * 2**52, np.int64)}
"""What is added to a smaller number so that the sum has no fraction: it is rounded half to even, as ever, and its last
bits, read as an integer, are the code. So rounding and conversion together cost what a conversion does."""

Block = tuple[slice, slice, slice]


def working_type(w: NDArray[Any], alpha: float = 1.0) -> Any:
    """What w is divided in: float32, or float64 where float32 would round w or alpha * w."""
    return np.float64 if alpha != 1 or w.dtype == np.float64 else np.float32


def nearest_codes(
    w: NDArray[Any],
    scale: NDArray[Any],
    zero_point: NDArray[Any],
    axis: int | None,
    code_range: tuple[int, int],
    dtype: DTypeLike,
    alpha: float = 1.0,
    *,
    clip: bool = True,
) -> NDArray[Any]:
    """`clip(rint(alpha * w / scale) + zero_point, *code_range)`, of w's shape and the given dtype.

    w: finite floats of any shape and layout. scale, zero_point: shape [] (axis None) or [C] along axis. alpha is
    multiplied in float64, where the product of two float32 is exact. clip: False where the scale holds every weight.
    Extra memory: the codes, and a few hundred KiB; but a copy of w where its layout has no view as [outer, C, inner].
    """
    codes = np.empty(w.shape, dtype)
    if w.size == 0:
        return codes
    channels = 1 if axis is None else w.shape[axis]
    inner = w.size if axis is None else int(np.prod(w.shape[axis + 1 :]))
    source, target = w.reshape(-1, channels, inner), codes.reshape(-1, channels, inner)
    work = working_type(w, alpha)
    steps = scale.reshape(1, -1, 1).astype(work)
    rounder, integers = _ROUNDERS[work]
    zeros = zero_point.reshape(1, -1, 1).astype(integers)
    low, high = np.asarray(code_range[0] - zeros, work), np.asarray(code_range[1] - zeros, work)
    shifted = bool(zeros.any())
    buffer = np.empty(BLOCK, work)
    with np.errstate(over="ignore", under="ignore"):
        for block in blocks(source.shape):
            part = source[block]
            room = buffer[: part.size].reshape(part.shape)
            channel = (slice(None), block[1], slice(None))
            if alpha == 1 and part.dtype == work:
                np.divide(part, steps[channel], out=room)
            else:
                np.multiply(part, alpha, out=room, dtype=work, casting="unsafe") if alpha != 1 else np.copyto(
                    room, part
                )
                np.divide(room, steps[channel], out=room)
            if clip:
                np.maximum(room, low[channel], out=room)
                np.minimum(room, high[channel], out=room)
            room += rounder
            found = room.view(integers)
            if shifted:
                found += zeros[channel]
            np.copyto(target[block], found, casting="unsafe")
    return codes


def blocks(shape: tuple[int, ...]) -> Iterator[Block]:
    """Slices that cover an array [outer, C, inner], each of at most BLOCK elements, in the order of memory."""
    outer, channels, inner = shape
    across = min(inner, BLOCK)
    down = min(channels, BLOCK // across) if across == inner else 1
    deep = max(1, BLOCK // (down * across)) if down == channels else 1
    for o in range(0, outer, deep):
        for c in range(0, channels, down):
            for i in range(0, inner, across):
                yield slice(o, o + deep), slice(c, c + down), slice(i, i + across)


def value_range(w: NDArray[Any], axis: int | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """min(w, 0) and max(w, 0) for each entry of `axis`, shape [C], or of all, shape []; NaN where w has one."""
    shape = () if axis is None else (w.shape[axis],)
    if w.size == 0:
        return np.zeros(shape), np.zeros(shape)
    channels = 1 if axis is None else w.shape[axis]
    inner = w.size if axis is None else int(np.prod(w.shape[axis + 1 :]))
    source = w.reshape(-1, channels, inner)
    low, high = np.zeros(channels), np.zeros(channels)
    for block in blocks(source.shape):
        part, c = source[block], block[1]
        part = part[..., 0] if inner == 1 else part[0] if len(part) == 1 else part
        over = 0 if inner == 1 else 1 if part.ndim == 2 else (0, 2)
        low[c] = np.minimum(low[c], part.min(axis=over))
        high[c] = np.maximum(high[c], part.max(axis=over))
    return low.reshape(shape), high.reshape(shape)
