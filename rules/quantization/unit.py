"""The weight and the bias of one unit together: Conv, ConvTranspose, Gemm, MatMul with a constant Add.

They are quantized together because the bias' scale is the weight's times the input's: a bias that does not
fit raises the weight's scale, and an all-zero channel takes its scale from the bias. What the operators
differ in is only data: the channel axis, how often a weight scale repeats over the output channels, and
Gemm's two factors.

    Conv           w [M, C/g, ...]        axis 0               b [M] ConvTranspose  w [C, M/g, ...]
    axis 1, repeat=g     b [M]     one scale serves an entry in every group Gemm           w [K, N] or [N, K]
    axis 1 or 0          b any shape that broadcasts to [M, N] MatMul + Add   w [K, N]               axis 1
    b any shape; of other rank, w has axis None
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bias import INT32_MAX, bias_only_scale, quantize_bias, raise_for_bias
from .bias_layout import abs_max_per_scale, lay_out, spread
from .errors import NotQuantizable, check_finite
from .scales import QMAX, idle_scale, symmetric_scale
from .tensor import QuantizedTensor
from .weight import abs_max, quantize_with_scale

_X_SPAN = 255


@dataclass(frozen=True, eq=False)
class QuantizedUnit:
    """weight: int8. bias: int32, None without one. raised: how many weight scales grew for the bias' sake."""

    weight: QuantizedTensor
    bias: QuantizedTensor | None
    raised: int = 0


def quantize_unit(
    w: NDArray[Any],
    b: NDArray[Any] | None,
    x_scale: ArrayLike,
    *,
    axis: int | None,
    alpha: float = 1.0,
    beta: float = 1.0,
    repeat: int = 1,
) -> QuantizedUnit:
    """Quantizes a unit's weight w and bias b (of any float dtypes) for an input of scale x_scale.

    axis: the channel axis of w (may be negative), or None for one scale. repeat: the number of groups that
    share the weight scales. x_scale: shape [] or [1]. alpha and beta are folded into w and b in float64:
    write 1 in their place.

    The bias keeps its shape, but that with a scale per channel a last dimension of 1 (or none) is expanded to
    the channels, so that its DequantizeLinear can be per channel along its last axis.

    The scale of each channel is the smallest that holds its weights, raised where the bias would not fit
    int32 beside the largest dot product of 8-bit inputs, or where x_scale * w_scale is no normal number. A
    channel of zeros takes a scale that suits its bias (`bias_only_scale`), without a bias that of
    `idle_scale`.

    Raises NotQuantizable: an element is not finite or too large, b has no shape that fits, no scale works.
    """
    axis = None if axis is None else axis % w.ndim
    absmax = abs_max(w, axis) * abs(_factor("alpha", alpha))
    layout = None if b is None else lay_out(_times(b, beta), absmax.shape, repeat)
    b_absmax = np.zeros(absmax.shape) if layout is None else abs_max_per_scale(layout[0], absmax.shape)

    fitting = symmetric_scale(absmax)
    idle = np.where(b_absmax > 0, bias_only_scale(b_absmax, x_scale), idle_scale(fitting, absmax))
    fitting = np.where(absmax > 0, fitting, idle)
    limit = bias_limit(w.size // max(1, absmax.size * repeat))
    scale = raise_for_bias(fitting, b_absmax, x_scale, limit=limit)

    weight = quantize_with_scale(w, scale, axis, alpha=alpha)
    bias = None
    if layout is not None:
        values, b_axis = layout
        bias = quantize_bias(values, x_scale, spread(scale, b_axis, repeat), axis=b_axis, limit=limit)
    return QuantizedUnit(weight, bias, int(np.count_nonzero(scale > fitting)))


def quantize_bias_for(
    b: NDArray[Any], x_scale: ArrayLike, w_scale: ArrayLike, *, beta: float = 1.0, repeat: int = 1
) -> QuantizedTensor:
    """The bias of a unit whose weight is quantized already: int32 at the scale that the weight dictates.

    w_scale: shape [] or [C], as it stands in the model; b, beta and repeat as in `quantize_unit`, and so is
    the shape of the result.

    Raises BiasOverflow if a code does not fit int32: then only another weight scale helps. (Whether it fits
    beside the products is for `bounds.accumulator_fits` to say.) NotQuantizable as
    `quantize_unit`, and if x_scale * w_scale is no normal float32.
    """
    scale = np.asarray(w_scale, np.float32)
    values, axis = lay_out(_times(b, beta), scale.shape, repeat)
    return quantize_bias(values, x_scale, spread(scale, axis, repeat), axis=axis)


def bias_limit(depth: int) -> int:
    """The largest bias code that leaves an int32 accumulator room for `depth` products of input and code.

    Kernels add the bias in int32 and wrap around: with a bias code of 2^31 - 1001 and eight products of 255
    and 127, ONNX Runtime's fused Conv and Gemm give 0 where the float path gives 255. At least 2^30, because
    beyond depth 33,000 the products alone come near the end of int32.
    """
    return max(INT32_MAX - _X_SPAN * QMAX * depth, 2**30)


def _times(b: NDArray[Any], beta: float) -> NDArray[np.float64]:
    check_finite("bias", b)
    return np.asarray(b.astype(np.float64) * _factor("beta", beta))


def _factor(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise NotQuantizable(f"{name} is {value}")
    return value
