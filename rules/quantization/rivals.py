"""What ONNX Runtime would do with a weight: scales to be measured against.

Its optimizer has one scheme and its quantizer several: symmetric or not, full or reduced range, per tensor or per
channel, signed or not. Each rounds to nearest. In one channel any of them can be lucky, since its scale is another: its
few errors happen to cancel. So each is measured (`objective`), and `fitted` takes it where it is not beaten.

Sources: onnxruntime/python/tools/quantization/quant_utils.py (`compute_scale_zp`, `quantize_nparray` and its tables of
ranges), and `onnxruntime_scheme`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .codes import working_type
from .moments import InputMoments
from .objective import channel_blocks, channels_of, objective, quotients
from .scales import SMALLEST_NORMAL, round_trip_is_finite, smallest_scale
from .scheme import TYPES, Scheme

_RANGES = {
    16: ((-32767, 32767), (-32768, 32767), (0, 65535), (-16384, 16384), (0, 32767)),
    8: ((-127, 127), (-128, 127), (0, 255), (-64, 64), (0, 127)),
    4: ((-8, 7), (0, 15), (-4, 3), (0, 7)),
}
_REDUCED = ((-64, 64), (0, 127))
_SHARES = (1 / 16, 1 / 4, 0.45, 0.6, 0.8)
_SURE = 1.15
_TOGETHER = 1 << 19
_U = 2.0**-24

Array = NDArray[Any]
Offer = tuple[Array, Array]
Fits = Callable[[Array], NDArray[np.bool_]]


def offers(low: Array, high: Array, scheme: Scheme, work: DTypeLike = np.float32) -> Offer:
    """Scales and zero points, [O, C] each, that ONNX Runtime would give weights of the range [low, high], [C] each.

    In the types of this scheme, with zero points that limit the codes as theirs do; work: the type of the quotients. A
    scale of 0 is one under which its codes cannot hold the range to half a step. With granularity "tensor" they are
    those of the whole tensor alone.
    """
    ends = np.array(_REDUCED if scheme.reduce_range else _RANGES[TYPES[scheme.weight_type]], np.float64)
    least, most = ends[:, :1], ends[:, 1:]
    first = np.where(least < 0, -(2.0 ** (TYPES[scheme.weight_type] - 1)), 0.0)  # of the type, where codes are clipped
    whole = np.full_like(low, low.min(initial=0.0)), np.full_like(high, high.max(initial=0.0))
    scales, zeros = [], []
    for some_low, some_high in (whole,) if scheme.granularity == "tensor" else (whole, (low, high)):
        step = (some_high - some_low) / (most - least)
        scales += [2 * np.maximum(-some_low, some_high) / (most - least), step]
        zeros += [np.broadcast_to(np.rint((least + most) / 2) - first, step.shape)]
        zeros += [np.rint(least + _steps(-some_low, step)) - first]
    if TYPES[scheme.weight_type] == 8 and not scheme.reduce_range:  # WeightBiasQuantization's own, in float32
        with np.errstate(over="ignore"):
            width = whole[1].astype(np.float32) - whole[0].astype(np.float32)
        step = (width / np.float32(255)).astype(np.float64)[None]
        scales.append(step)
        zeros.append(np.rint(_steps(-whole[0], step) - 128) + 128)
    if scheme.granularity == "tensor":
        low, high = whole
    return _in_form(np.concatenate(scales), np.concatenate(zeros), low, high, scheme, work)


def _steps(value: Array, step: Array) -> Array:
    return np.divide(
        value, step, out=np.zeros(np.broadcast_shapes(value.shape, step.shape), step.dtype), where=step > 0
    )


def _in_form(scale: Array, zero_point: Array, low: Array, high: Array, scheme: Scheme, work: DTypeLike) -> Offer:
    """In this scheme's types. zero_point: counted from the smallest code of theirs.

    Of a scale so large that every code is 0 it does not matter how large: four times the range does as well. A reduced
    range, which they do not keep to, starts where the weights do.
    """
    least = smallest_scale(scheme.scale_dtype)
    if scheme.scale_type != "float16":
        scale = np.where(scale < SMALLEST_NORMAL, 1.0, scale)
    scale = np.minimum(scale, np.maximum(4 * np.maximum(-low, high), least))
    with np.errstate(over="ignore", under="ignore"):
        held = scale.astype(scheme.scale_dtype)
    size, half = held.astype(np.float64), 0.5 + scheme.span * _U
    lowest, highest = scheme.code_range
    if scheme.symmetric:
        zero = np.full(held.shape, float(scheme.middle))
    else:
        first = np.rint(_steps(low.astype(work), held.astype(work)))
        zero = (lowest - first if scheme.reduce_range else lowest + zero_point).astype(np.float64)
        zero = np.clip(zero, lowest, highest)
    usable = (size >= least) & round_trip_is_finite(held, scheme.span)
    usable &= ((lowest - zero - half) * size <= low) & (high <= (highest - zero + half) * size)
    return np.where(usable, held, 0).astype(held.dtype), np.where(usable, zero, lowest).astype(scheme.dtype)


def best_offer(
    w: Array,
    own: Offer,
    bound: NDArray[np.float64],
    ranges: tuple[Array, Array],
    scheme: Scheme,
    moments: InputMoments,
    fits: Fits,
    *,
    axis: int,
    alpha: float = 1.0,
    repeat: int = 1,
) -> tuple[Array, Array, NDArray[np.float64]]:
    """The offer with the smallest objective: scale, zero point and objective, [C] each.

    w: [...] floats with output channels along axis; alpha and repeat as in `quantize_unit`. own: our scale and zero
    point, which are no offer. bound: [C], where more is as good as infinite. ranges: of alpha * w, a number or [C]
    each, as `finite_range`. fits: which scales are admitted, elementwise.

    With granularity "tensor" it is the one of the smallest sum, and nothing is bounded. Extra memory: a few MiB.
    """
    channels = w.shape[axis]
    whole = scheme.granularity == "tensor"
    low, high = (np.broadcast_to(limit, channels) for limit in ranges)
    scales, zeros = (
        np.concatenate([np.broadcast_to(mine, (1, channels)), theirs])
        for mine, theirs in zip(own, offers(low, high, scheme, working_type(w, alpha)), strict=True)
    )
    fresh = _fresh(scales, zeros) & fits(scales)
    clips = _clips(scales, zeros, low, high, scheme)
    # An error, squared, is a twelfth of a step on average: so this share of the slices will show that an offer loses.
    expected = np.square(scales.astype(np.float64)) * (moments.weights[0] * w.size / channels / 12)
    with np.errstate(over="ignore"):
        share = np.divide(_SURE * bound, expected, out=np.ones(scales.shape), where=(expected > 0) & (not whole))
    classes = np.digitize(share, _SHARES)
    found = np.full(scales.shape, np.inf)
    for block, part in zip(channel_blocks(w, axis), channels_of(w, axis, repeat), strict=True):
        for kind, first in enumerate((*_SHARES, 1.0)):
            offer, channel = np.nonzero(fresh[:, block] & (classes[:, block] == kind))
            size = max(1, int(_TOGETHER * len(part) / (part.size * first)))
            for start in range(0, len(offer), size):
                i, c = offer[start : start + size], channel[start : start + size]
                at = (i, c + block.start)
                most = np.full(len(c), np.inf) if whole else bound[block][c]
                limits = zeros[at] if clips[at].any() else None
                found[at] = _nearest(part, c, scales[at], limits, scheme, moments, alpha, most, first)
    best = np.full(channels, found.sum(axis=1).argmin()) if whole else found.argmin(axis=0)
    scale, zero, reached = (np.take_along_axis(v, best[None], axis=0)[0] for v in (scales, zeros, found))
    return scale, zero, reached


def _fresh(scales: Array, zeros: Array) -> NDArray[np.bool_]:
    """[O, C]: where a row is usable and repeats none of the rows before it; the first row is never fresh."""
    fresh = scales > 0
    fresh[0] = False
    for i in range(1, len(scales)):
        if fresh[i].any():
            fresh[i] &= ~((scales[:i] == scales[i]) & (zeros[:i] == zeros[i])).any(axis=0)
    return np.asarray(fresh)


def _clips(scales: Array, zeros: Array, low: Array, high: Array, scheme: Scheme) -> NDArray[np.bool_]:
    """[O, C]: where a weight of this range might have no code."""
    least, most = scheme.code_range
    step, zero = scales.astype(np.float64), zeros.astype(np.float64)
    return np.asarray(((least - zero + 0.49) * step > low) | ((most - zero - 0.49) * step < high))


def _nearest(
    part: Array,
    channel: Array,
    scale: Array,
    zero: Array | None,
    scheme: Scheme,
    moments: InputMoments,
    alpha: float,
    bound: Array,
    share: float,
) -> NDArray[np.float64]:
    """The objective of these channels of part [C, G, L, k] with nearest codes; infinity where it surely exceeds bound.

    zero: None where every weight has a code. share: how much of the slices is looked at before all of them are.
    """
    first = int(part.shape[2] * share)
    whole = share >= 1 or first < 16
    work = working_type(part, alpha)
    errors = quotients((part if whole else part[:, :, :first])[channel], scale, alpha, work)
    codes = np.rint(errors)
    if zero is not None:
        low, high = (np.asarray(limit - zero.astype(work), work).reshape(-1, 1, 1, 1) for limit in scheme.code_range)
        np.minimum(np.maximum(codes, low, out=codes), high, out=codes)
    errors -= codes
    found = objective(errors, scale, moments, total=whole)
    if whole:
        return found
    left = found < bound
    found[~left] = np.inf
    if left.any():
        zero = None if zero is None else zero[left]
        found[left] = _nearest(part, channel[left], scale[left], zero, scheme, moments, alpha, bound[left], 1.0)
    return found
