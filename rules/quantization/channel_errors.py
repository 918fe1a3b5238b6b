"""What the codes of a weight and a bias lose: sums from which signal-to-noise ratios and proved bounds follow.

One pass over the weight finds those of every output channel, in pieces that stay in the cache: a report on a model of
gigabytes then takes the time of reading it, and no memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .bias import BiasValues
from .tensor import QuantizedTensor, dequantize

_PIECE = 1 << 16

Box = tuple[slice, ...]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ChannelErrors:
    """Of each output channel, shape [C], sums over its `depth` weights w and their errors e = w - w'.

    signal: of w^2. noise: of e^2. above, below: of the errors above and below 0, as positive numbers, a hair upwards.
    """

    depth: int
    signal: Doubles
    noise: Doubles
    above: Doubles
    below: Doubles

    @property
    def snr(self) -> float:
        """Of the whole weight, in dB; infinite where nothing is lost."""
        return float(decibels(self.signal.sum(), self.noise.sum()))

    @property
    def channel_snr(self) -> Doubles:
        """Of each channel, in dB."""
        return decibels(self.signal, self.noise)

    @property
    def worst(self) -> int | None:
        """The channel of the smallest ratio, the first of equals; None where nothing is lost in any."""
        found = self.channel_snr
        return None if not found.size or np.isposinf(found).all() else int(np.argmin(found))


def decibels(signal: ArrayLike, noise: ArrayLike) -> Doubles:
    """10 log10(signal / noise), elementwise; infinite where there is no noise."""
    over, under = np.asarray(signal, np.float64), np.asarray(noise, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(under == 0, np.inf, 10 * (np.log10(over) - np.log10(under))))


def channel_errors(
    w: NDArray[Any],
    q: QuantizedTensor,
    *,
    axis: int | None,
    groups: int = 1,
    alpha: float = 1.0,
    dtype: DTypeLike | None = None,
) -> ChannelErrors:
    """The errors of q, which are codes of alpha * w, by output channel.

    w: floats of the codes' shape. axis: of the output channels; None for a MatMul, where all axes but the second to
    last tell outputs apart. groups: those of a ConvTranspose, whose channels are numbered group by group. dtype: the
    type in which the weight comes back, that of the scale unless given.
    """
    back_type = q.scale.dtype if dtype is None else np.dtype(dtype)

    def terms(box: Box, summed: Callable[..., Any]) -> Sequence[Any]:
        value = w[box].astype(np.float64)
        if alpha != 1:
            value *= alpha
        scale, zero = (_of_box(q, values, box) for values in (q.scale, q.zero_point))
        steps = q.codes[box] if not zero.any() else q.codes[box].astype(np.int64) - zero.astype(np.int64)
        back = steps.astype(scale.dtype)
        back *= scale
        error = value - back.astype(back_type, copy=False).astype(np.float64, copy=False)
        total, size = summed(error), summed(np.abs(error))
        return summed(value, value), summed(error, error), size + total, size - total

    signal, noise, above, below = _channel_sums(w.shape, _kept(w.ndim, axis, groups), groups, 4, terms)
    depth = w.size // max(1, signal.size)
    # Sums round, and so does alpha * w, by 2^-53 of it; sum |w| <= sqrt(K sum w^2).
    hair = np.sqrt(depth * signal) * (0.0 if alpha == 1 else 2.0**-52) + (above + below) * (depth + 4) * 2.0**-53
    return ChannelErrors(depth, signal, noise, above / 2 + hair, below / 2 + hair)


def clipping(
    w: NDArray[Any],
    q: QuantizedTensor,
    code_range: tuple[int, int],
    *,
    axis: int | None,
    groups: int = 1,
    alpha: float = 1.0,
) -> tuple[Doubles, Doubles]:
    """Of each output channel [C] the sum of its scales, and of what lies beyond the smallest or the largest code.

    code_range: those codes. The rest as `channel_errors`.
    """

    def terms(box: Box, summed: Callable[..., Any]) -> Sequence[Any]:
        value = w[box].astype(np.float64) * alpha
        step = np.broadcast_to(_of_box(q, q.scale, box).astype(np.float64), value.shape)
        low, high = (step * (limit - _of_box(q, q.zero_point, box).astype(np.int64)) for limit in code_range)
        return summed(step), summed(np.maximum(np.maximum(value - high, low - value), 0))

    steps, beyond = _channel_sums(w.shape, _kept(w.ndim, axis, groups), groups, 2, terms)
    return steps, beyond


def _channel_sums(
    shape: tuple[int, ...],
    kept: tuple[int, ...],
    groups: int,
    count: int,
    terms: Callable[[Box, Callable[..., Any]], Sequence[Any]],
) -> NDArray[np.float64]:
    """[count, C]: what terms gives for each piece of the weight, summed over the axes not kept, then over groups."""
    sums = np.zeros((count, *(shape[i] for i in kept)))
    every = list(range(len(shape)))

    def summed(*factors: NDArray[Any]) -> Any:
        operands = [one for factor in factors for one in (factor, every)]
        return np.einsum(*operands, list(kept))

    with np.errstate(all="ignore"):
        for box in boxes(shape):
            part = sums[(slice(None), *(box[i] for i in kept))]
            for k, term in enumerate(terms(box, summed)):
                part[k] += term
    if groups > 1:
        sums = sums.reshape(count, groups, -1, shape[1]).sum(axis=2)
    return sums.reshape(count, -1)


def bias_errors(b: BiasValues, q: QuantizedTensor, *, rounding: float = 0.0) -> tuple[float, Doubles]:
    """How far the codes of a bias are from it at most, in steps of their scales; and how far what is added is.

    The latter has shape [C] or [1], the channels being last.

    b: of the codes' shape, or one that broadcasts to it. rounding: how much of it the float path's own bias was off.
    What is added is the code times the scale in an integer kernel, and in the float path what DequantizeLinear makes of
    that: of both the larger error counts.
    """
    exact = np.broadcast_to(b.number * b.unit, q.codes.shape)
    step = q.spread(q.scale).astype(np.float64)
    codes = q.codes.astype(np.float64) - q.spread(q.zero_point).astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.abs(exact - codes * step)
        most = np.maximum(off, np.abs(exact - dequantize(q).astype(np.float64)))
        most = most + (rounding + 2.0**-52) * np.abs(exact)
        steps = float((off / step).max(initial=0.0))
    width = q.codes.shape[-1] if q.codes.ndim else 1
    return steps, np.asarray(most.reshape(-1, width).max(axis=0, initial=0.0))


def _kept(rank: int, axis: int | None, groups: int) -> tuple[int, ...]:
    """The axes along which outputs differ, but for the place within a group."""
    if axis is None:
        return tuple(i for i in range(rank) if i != max(0, rank - 2))
    return (axis % rank,) if groups == 1 else (0, axis % rank)


def _of_box(q: QuantizedTensor, values: NDArray[Any], box: Box) -> NDArray[Any]:
    """The part of scales or zero points that belongs to a box of the codes, so that it broadcasts with it."""
    if q.axis is None:
        return values
    if not q.block_size:
        return values[box[q.axis]].reshape([-1 if i == q.axis else 1 for i in range(q.codes.ndim)])
    at = box[q.axis]
    blocks = np.arange(at.start, at.stop) // q.block_size
    return values[tuple(blocks if i == q.axis else one for i, one in enumerate(box))]


def boxes(shape: tuple[int, ...], most: int = _PIECE) -> Iterator[Box]:
    """Slices that cover an array of this shape, each of at most so many elements, in the order of memory."""
    if math.prod(shape) == 0:
        return
    inner = len(shape)
    size = 1
    while inner and size * shape[inner - 1] <= most:
        inner -= 1
        size *= shape[inner]
    whole = tuple(slice(0, n) for n in shape[inner:])
    if not inner:
        yield whole
        return
    step = max(1, most // size)
    for outer in np.ndindex(*shape[: inner - 1]):
        for start in range(0, shape[inner - 1], step):
            one = slice(start, min(start + step, shape[inner - 1]))
            yield (*(slice(i, i + 1) for i in outer), one, *whole)
