"""The weight and the bias of one unit together: Conv, ConvTranspose, Gemm, MatMul with a constant Add.

They are quantized together because the bias' scale is the weight's times the input's: a bias that does not
fit raises the weight's scale, and an all-zero channel takes its scale from the bias. What the operators
differ in is only data: the channel axis, how often a weight scale repeats over the output channels, and
Gemm's two factors.

    | operator      | weight           | axis                | bias                                  |
    | ------------- | ---------------- | ------------------- | ------------------------------------- |
    | Conv          | [M, C/g, ...]    | 0                   | [M]                                   |
    | ConvTranspose | [C, M/g, ...]    | 1, repeat=g         | [M]; a scale serves every group       |
    | Gemm          | [K, N] or [N, K] | 1 or 0              | any shape that broadcasts to [M, N]   |
    | MatMul + Add  | [K, N]           | 1; None if no matrix | any shape                            |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .accumulator import bias_limit, require_room
from .bias import BiasValues, bias_fits, bias_only_scale, quantize_bias_values, raise_for_bias
from .bias_layout import abs_max_per_scale, lay_out, spread
from .candidates import preferred
from .errors import NotQuantizable
from .fitted import fitted
from .moments import InputMoments
from .scales import covering_scale, idle_scale, smallest_scale
from .scheme import Scheme
from .search import zero_points
from .tensor import QuantizedTensor
from .weight import codes_of, scales_of

_PLAIN = Scheme(search="minmax", rounding="nearest")


@dataclass(frozen=True, eq=False)
class QuantizedUnit:
    """bias: int32, None without one. raised: how many weight scales grew for the bias' sake. on_grid: how many scales
    are those of a grid that the weights lay on already. scheme: the one that was taken."""

    weight: QuantizedTensor
    bias: QuantizedTensor | None
    raised: int = 0
    on_grid: int = 0
    scheme: Scheme = _PLAIN


def quantize_unit(
    w: NDArray[Any],
    b: NDArray[Any] | BiasValues | None,
    x_scale: ArrayLike,
    *,
    axis: int | None,
    scheme: Scheme = _PLAIN,
    allowed: tuple[Scheme, ...] = (),
    inputs: InputMoments | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    repeat: int = 1,
) -> QuantizedUnit:
    """Quantizes a unit's weight w and bias b (of any float dtypes) for an input of scale x_scale.

    axis: the axis of w's output channels (may be negative), or None: then there is one scale, and rounding is to
    nearest. scheme: the options, by default min-max and nearest; of granularity "tensor" or "channel" (blocks have no
    scale that a bias could share: `quantize_weight`). allowed: further schemes to choose from (`candidates.preferred`).
    inputs: what is known of the input, without which rounding is to nearest. repeat: the number of groups that
    share the weight scales. x_scale: shape [] or [1]. alpha and beta are folded into w and b: write 1 in their place.

    The bias keeps its shape, but that with a scale per channel a last dimension of 1 (or none) is expanded to
    the channels, so that its DequantizeLinear can be per channel along its last axis. One that is quantized already is
    given as `BiasValues` and requantized from its integers.

    The scale of each channel is that of the search, raised where the bias would not fit
    int32 beside the largest dot product of 8-bit inputs, or where x_scale * w_scale is no normal number. A
    channel of zeros takes a scale that suits its bias (`bias_only_scale`), without a bias that of
    `idle_scale`.

    Raises NotQuantizable: an element is not finite or too large, b has no shape that fits, no scale works.
    ValueError for blocks.
    """
    if scheme.granularity == "block":
        raise ValueError("a unit's bias has no scale under blocks: quantize_weight takes the weight alone")
    axis = None if axis is None else axis % w.ndim
    _factor("alpha", alpha)
    along_axis = axis if scheme.granularity == "channel" else None
    scales, ranges = scales_of(w, along_axis, scheme, alpha)
    absmax = np.maximum(-ranges[0], ranges[1])
    wanted, scheme = scheme, preferred(w, axis, scheme, (absmax > 0) & ~scales.on_grid, allowed)
    if scheme is not wanted:
        along_axis = axis if scheme.granularity == "channel" else None
        scales, ranges = scales_of(w, along_axis, scheme, alpha)
        absmax = np.maximum(-ranges[0], ranges[1])
    values = None if b is None else _bias_values(b, beta)
    if values is not None and scheme.symmetric:
        scales = replace(scales, scale=_refined(scales.scale, scales.on_grid, absmax, scheme))
    layout = None if values is None else _lay_out(values, absmax.shape, repeat)
    b_absmax = np.zeros(absmax.shape) if layout is None else abs_max_per_scale(layout[0].absolute, absmax.shape)

    idle = np.where(b_absmax > 0, bias_only_scale(b_absmax, x_scale), idle_scale(scales.scale, absmax))
    fitting = np.where(absmax > 0, scales.scale, _in_type(idle, scheme)).astype(scheme.scale_dtype)
    limit = bias_limit(w.size // max(1, absmax.size * repeat), scheme.span)
    scale = raise_for_bias(fitting, b_absmax, x_scale, limit=limit, reach=scheme.span)
    if scheme.power_of_two:
        scale = covering_scale(scale, 1, scheme.scale_dtype, power_of_two=True)
    raised = np.asarray(scale > fitting)
    zero = np.where(raised, zero_points(ranges[0], scale, scheme), scales.zero_point).astype(scheme.dtype)

    fixed = None if axis is None else np.broadcast_to(scales.on_grid & ~raised, (w.shape[axis],))
    weight = codes_of(
        w, scale, zero, along_axis, scheme,
        alpha=alpha, channel_axis=axis, repeat=repeat, moments=inputs, fixed=fixed,
    )  # fmt: skip
    new = np.zeros(scale.shape, bool)
    if axis is not None and fixed is not None and inputs is not None and scheme.search == "auto":
        weight, new = fitted(
            w, weight, ranges, scheme, inputs, lambda s: bias_fits(s, b_absmax, x_scale, limit), fixed,
            axis=axis, alpha=alpha, repeat=repeat,
        )  # fmt: skip
    bias = None
    if layout is not None:
        laid, b_axis = layout
        bias = quantize_bias_values(laid, x_scale, spread(weight.scale, b_axis, repeat), axis=b_axis, limit=limit)
    if weight.codes.dtype.itemsize == 1:
        require_room(weight.codes, weight.spread(weight.zero_point), bias, axis, repeat)
    on_grid = int(np.count_nonzero(scales.on_grid & ~raised & ~new))
    return QuantizedUnit(weight, bias, int(np.count_nonzero(raised)), on_grid, scheme)


def _refined(scale: NDArray[Any], on_grid: NDArray[np.bool_], absmax: NDArray[Any], scheme: Scheme) -> NDArray[Any]:
    """Grid scales, halved as often as the largest code has room to double: the weights stay exactly where they are.

    A grid of few codes (ternary weights, a channel of one weight) has a large scale, and with it the bias a step of the
    size of whole weights. Division by a power of two is exact, so only the bias gets finer.
    """
    largest = np.rint(np.divide(absmax, scale, out=np.zeros(np.shape(scale)), where=np.asarray(absmax > 0)))
    room = np.floor(np.log2(np.divide(scheme.reach, largest, out=np.ones(np.shape(scale)), where=largest > 0)))
    finer = (scale / np.exp2(np.maximum(room, 0))).astype(scale.dtype)
    fine = np.asarray(on_grid) & (largest > 0) & (finer >= smallest_scale(scale.dtype))
    return np.asarray(np.where(fine, finer, scale).astype(scale.dtype))


def quantize_bias_for(
    b: NDArray[Any] | BiasValues,
    x_scale: ArrayLike,
    w_scale: ArrayLike,
    *,
    beta: float = 1.0,
    repeat: int = 1,
    codes: NDArray[Any] | None = None,
    zero_point: ArrayLike = 0,
    axis: int | None = None,
) -> QuantizedTensor:
    """The bias of a unit whose weight is quantized already: int32 at the scale that the weight dictates.

    w_scale: shape [] or [C], as it stands in the model; b, beta and repeat as in `quantize_unit`, and so is
    the shape of the result. codes: the weight's, where they are known, with its output channels along axis, and a zero
    point that broadcasts with them.

    Raises BiasOverflow if a code does not fit int32, or with codes, if it does not fit beside the products: then only
    another weight scale helps. NotQuantizable as `quantize_unit`, and if x_scale * w_scale is no normal float32.
    """
    scale = np.asarray(w_scale)
    scale = scale if scale.dtype.kind in "fV" and scale.dtype != np.float64 else scale.astype(np.float32)
    values, b_axis = _lay_out(_bias_values(b, beta), scale.shape, repeat)
    bias = quantize_bias_values(values, x_scale, spread(scale, b_axis, repeat), axis=b_axis)
    if codes is not None and codes.dtype.itemsize == 1:
        require_room(codes, np.asarray(zero_point), bias, axis, repeat)
    return bias


def _bias_values(b: NDArray[Any] | BiasValues, beta: float) -> BiasValues:
    values = b if isinstance(b, BiasValues) else BiasValues.of_floats(b)
    return values.times(_factor("beta", beta))


def _lay_out(values: BiasValues, scale_shape: tuple[int, ...], repeat: int) -> tuple[BiasValues, int | None]:
    number, axis = lay_out(values.number, scale_shape, repeat)
    unit = values.unit if values.unit.ndim == 0 else np.broadcast_to(values.unit, values.number.shape)
    return replace(values, number=number, unit=unit if unit.ndim == 0 else lay_out(unit, scale_shape, repeat)[0]), axis


def _in_type(scale: NDArray[Any], scheme: Scheme) -> NDArray[Any]:
    """Scales chosen in float32, within what the scheme's type holds."""
    if scheme.scale_dtype == np.float32:
        return scale
    return np.clip(scale.astype(np.float64), 2.0**-24, 2.0**8).astype(scheme.scale_dtype)


def _factor(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise NotQuantizable(f"{name} is {value}")
    return value
