"""Weights to int8: symmetric, per channel or per tensor.

The division is a true division in float32 or wider and the rounding half to even, because that is what ONNX
QuantizeLinear does: a multiplication by the reciprocal, or half away from zero, gives other codes for
near-ties. Weights run to gigabytes, so they are quantized in blocks and their range is found without a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import check_finite
from .scales import QMAX, idle_scale, symmetric_scale
from .tensor import QuantizedTensor, along

_BLOCK = 1 << 16


def abs_max(w: NDArray[Any], axis: int | None) -> NDArray[np.float64]:
    """max|w| for each entry of `axis`, shape [C], or of the whole tensor, shape []; 0 where there are no
    elements.

    Raises NotQuantizable, naming the element, if w has a NaN or an infinity.
    """
    others = None if axis is None else tuple(i for i in range(w.ndim) if i != axis)
    if w.size == 0:
        return np.zeros(() if axis is None else (w.shape[axis],))
    low, high = w.min(axis=others), w.max(axis=others)
    absmax = np.maximum(-np.asarray(low, np.float64), np.asarray(high, np.float64))
    if not np.all(np.isfinite(absmax)):
        check_finite("weight", w)
    return np.asarray(absmax)


def quantize_symmetric(w: NDArray[Any], axis: int | None) -> QuantizedTensor:
    """int8 codes in [-127, 127] of float weights of any shape, with a scale for each entry of `axis` or one
    in all.

    The scale is `symmetric_scale(max|w|)`; a channel of zeros gets `idle_scale`. Each element comes back
    within `bounds.element_bound`, and 0 as 0. Extra memory: the codes, and a few hundred KiB.

    Raises NotQuantizable if w has a NaN or infinity or is too large to come back finite.
    """
    absmax = abs_max(w, axis)
    scale = symmetric_scale(absmax)
    scale = np.where(absmax > 0, scale, idle_scale(scale, absmax))
    return quantize_with_scale(w, scale, axis)


def quantize_with_scale(
    w: NDArray[Any], scale: ArrayLike, axis: int | None, *, alpha: float = 1.0
) -> QuantizedTensor:
    """int8 codes `clip(rint(alpha * w / scale), -127, 127)` with zero point 0, for a given scale.

    w: finite floats of any shape. scale: float32, positive and finite, shape [] or [C] along `axis`. A factor
    alpha other than 1 (Gemm's) is multiplied in float64, where the product of two float32 is exact; it needs
    no copy of w.

    Raises ValueError for a scale that is not positive and finite or has the wrong shape, NotQuantizable for a
    w that is not finite.
    """
    scale = np.asarray(scale, np.float32)
    if not np.all((scale > 0) & np.isfinite(scale)):
        raise ValueError("a scale must be positive and finite")
    check_finite("weight", w)
    codes = np.empty(w.shape, np.int8)
    wide = alpha != 1 or w.dtype == np.float64
    work = np.float64 if wide else np.float32
    blocks = np.nditer(
        [w, np.broadcast_to(along(scale, w.ndim, axis), w.shape), codes],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly"], ["readonly"], ["writeonly"]],
        op_dtypes=[work, work, np.int8],
        casting="same_kind",
        buffersize=_BLOCK,
    )
    with blocks, np.errstate(over="ignore", under="ignore"):
        for value, step, code in blocks:
            steps = (value * alpha if wide else value) / step
            code[...] = np.clip(np.rint(steps), -QMAX, QMAX)
    return QuantizedTensor(codes, scale, np.zeros(scale.shape, np.int8), axis)
