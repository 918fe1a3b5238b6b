"""The arithmetic of ONNX Runtime's WeightBiasQuantization, bit for bit, faults included.

It exists to give the numbers that a session computes silently at load, when somebody wants those: per tensor,
asymmetric, everything in float32, no clipping of the bias. Sources: onnxruntime/core/util/qmath.h
(GetQuantizationParameter), core/optimizer/qdq_transformer/weight_bias_quantization.cc (the nodes),
mlas/lib/quantize.cpp (QuantizeLinear) and mlas/lib/intrinsics/avx/min_max_elements.cpp. What depends on the
processor is as on x86-64 with AVX.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .tensor import QuantizedTensor, along

_F = np.float32
_BLOCK = 1 << 16
_LANES = 32
_INT_MIN = -(2**31)


def ort_weight(w: NDArray[np.float32]) -> QuantizedTensor:
    """int8 codes in [-128, 127] of a float32 weight of any shape, with one scale and zero point.

        low, high = min(W, 0), max(W, 0);  scale = (high - low) / 255, or 1 if they are equal
        zero point = rint(clip(-128 - low / scale));  code = clip(rint(W / scale) + zero point)

    Nothing is raised. NaN and infinity do what they do there: a NaN becomes code -128, an infinity makes the
    scale infinite, and a NaN in the right place hides the elements before it from the minimum.
    """
    with np.errstate(all="ignore"):
        low, high = _range(w)
        scale = _F(1) if high == low else _F(_F(high - low) / _F(255))
        start = _F(_F(-128) - _F(low / scale))
        start = start if start < 127 else _F(127)  # a NaN becomes 127, as in std::min
        zero = int(np.rint(max(start, _F(-128))))
        codes = np.empty(w.shape, np.int8)
        flat, out = w.reshape(-1), codes.reshape(-1)
        for i in range(0, w.size, _BLOCK):
            steps = flat[i : i + _BLOCK] / scale
            steps = np.where(steps > -128 - zero, steps, _F(-128 - zero))  # a NaN becomes the smallest
            out[i : i + _BLOCK] = np.rint(np.minimum(steps, _F(127 - zero))) + zero
    return QuantizedTensor(codes, np.asarray(scale, _F), np.asarray(zero, np.int8), None)


def ort_bias(b: NDArray[np.float32], x_scale: ArrayLike, w_scale: ArrayLike) -> QuantizedTensor:
    """int32(rint(float32(b / float32(x_scale * w_scale)))) with zero point 0, for a float32 bias of shape
    [M].

    w_scale: shape [] or [1] (then the result's scale has shape []), or [M] for a weight that is quantized per
    channel. What does not fit int32, NaN included, is -2^31: the result of the x86 conversion. Nothing is
    raised.
    """
    with np.errstate(all="ignore"):
        scale = np.asarray(np.asarray(w_scale, _F) * np.asarray(x_scale, _F).reshape(()))
        axis = 0 if scale.size != 1 else None
        scale = scale if axis == 0 else scale.reshape(())
        steps = np.rint(np.asarray(b, _F) / along(scale, b.ndim, axis))
        fits = (steps >= _INT_MIN) & (steps < -_INT_MIN)
    codes = np.where(fits, steps, _INT_MIN).astype(np.int32)
    return QuantizedTensor(codes, scale, np.zeros(scale.shape, np.int32), axis)


def _range(w: NDArray[np.float32]) -> tuple[np.float32, np.float32]:
    """Minimum and maximum of w and 0, as MLAS finds them."""
    if w.size == 0:
        return _F(0), _F(0)
    low, high = w.min(), w.max()
    if np.isnan(low):
        flat = w.reshape(-1)
        low, high = -_avx_max(-flat), _avx_max(flat)
    # Not np.minimum: std::min(NaN, 0) is NaN, std::min(low, 0) the first where they are equal.
    return (_F(0) if low > 0 else low), (_F(0) if high < 0 else high)


def _avx_max(flat: NDArray[np.float32]) -> np.float32:
    """The maximum of an array with NaNs, which depends on the order in which MLAS takes the elements.

    The vector instruction returns its second operand if either is a NaN, and the accumulator is the first:
    four accumulators of eight lanes take every 32nd element each, then are folded; the rest goes eight at a
    time, then one.
    """
    whole, eights = flat.size // _LANES * _LANES, flat.size // 8 * 8
    best = np.full(_LANES, np.finfo(_F).min, _F)
    for row in flat[:whole].reshape(-1, _LANES):
        best = _maxps(best, row)
    a, b, c, d = best.reshape(4, 8)
    best = _maxps(_maxps(a, b), _maxps(c, d))
    for row in flat[whole:eights].reshape(-1, 8):
        best = _maxps(best, row)
    best = _maxps(best[:4], best[4:])
    best = _maxps(best[:2], best[2:])
    top = _maxps(best[:1], best[1:])[0]
    for value in flat[eights:]:
        top = value if top < value else top
    return _F(top)


def _maxps(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return np.where(a > b, a, b)
