"""Room in the int32 accumulator for the products of a channel and its bias.

Kernels add the bias to the products in int32 and wrap around: with a bias code of 2^31 - 1001 and eight products of 255
and 127, ONNX Runtime's fused Conv and Gemm give 0 where the float path gives 255. So a bias has less than int32 to
itself, and what does not fit is found before the kernel does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bias import INT32_MAX
from .bounds import accumulator_fits
from .errors import BiasOverflow
from .scales import QMAX
from .tensor import QuantizedTensor

_X_SPAN = 255
_CHUNK = 1 << 18


def bias_limit(depth: int, reach: int = QMAX) -> int:
    """The largest bias code that leaves room for `depth` products of an 8-bit input and a code up to reach.

    At least 2^30: beyond depth 33,000 products of the largest magnitude alone come near the end of int32, but those
    that there are hardly do; `require_room` looks at them.
    """
    return max(INT32_MAX - _X_SPAN * reach * depth, 2**30)


def require_room(
    codes: NDArray[Any], zero_point: NDArray[Any], bias: QuantizedTensor | None, axis: int | None, repeat: int = 1
) -> None:
    """Raises BiasOverflow where some 8-bit input makes the products of a channel and its bias leave int32.

    codes: 8-bit ones of a weight, its output channels along axis, repeat times as in `quantize_unit`. zero_point:
    broadcasts with them. Only where the largest magnitudes would not fit are the codes summed, a few channels at a
    time.
    """
    if codes.size == 0:
        return
    rows = output_rows(codes, axis, repeat)
    outputs, depth = rows.shape
    held = np.zeros(1, np.int64) if bias is None else np.abs(bias.codes.astype(np.int64)).reshape(-1)
    reach = _X_SPAN if zero_point.any() or codes.dtype == np.uint8 else 2**7
    if depth * _X_SPAN * reach + int(held.max(initial=0)) <= INT32_MAX:
        return
    per_output = bias is not None and bias.codes.ndim and bias.codes.shape[-1] == outputs
    most = held.reshape(-1, outputs if per_output else 1).max(axis=0, initial=0)
    most = np.broadcast_to(most, outputs)
    zeros = output_rows(np.broadcast_to(zero_point, codes.shape), axis, repeat)[:, :1].astype(np.int64)
    size = max(1, _CHUNK // max(1, depth))
    for start in range(0, outputs, size):
        part = slice(start, start + size)
        fits = accumulator_fits(rows[part] - zeros[part], most[part], _X_SPAN)
        if not fits.all():
            channel = start + int(fits.argmin())
            what = f"a bias of {most[channel]} steps and {depth} products can exceed an int32 accumulator"
            raise BiasOverflow(f"output channel {channel}: {what}", (channel,))


def output_rows(codes: NDArray[Any], axis: int | None, repeat: int = 1) -> NDArray[Any]:
    """The codes of a weight, of which there are some, that meet in each output: [C * repeat, K], group g and scale c
    in row g * C + c.

    axis: of the output channels; None for a MatMul, which sums over the last axis but one.
    """
    if axis is None:
        summed = max(0, codes.ndim - 2)
        return np.moveaxis(codes, summed, -1).reshape(-1, codes.shape[summed])
    grouped = np.moveaxis(codes.reshape(repeat if axis == 1 else 1, -1, *codes.shape[1:]), axis + 1, 1)
    outputs = grouped.shape[0] * grouped.shape[1]
    return grouped.reshape(outputs, -1)
