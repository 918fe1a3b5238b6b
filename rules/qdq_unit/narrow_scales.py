"""Scales of float16, which is narrow: where it will do, and what takes its place where it will not.

float16 has no numbers below 2^-24, and x_scale * w_scale, at which the bias stands, may be smaller. Then the weight's
scale has to grow, and the weight's error with it. It may grow where nobody sees it, in channels whose weights come back
within half a step of the output whatever the input is (bound 9 of the error bounds: such channels are all but dead),
and anywhere to twice the size: that is one bit of the weight, 6 dB. Where it would have to grow more, scales are
float32 beside an `output_dtype`, which ai.onnx has from opset 23 on, and below that the unit is declined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewriter import Decline, Match
from rules import quantization as qm
from rules.qdq_unit.float_types import CODES, FLOATS, can_mix, float_type, scale_type, x_type
from rules.qdq_unit.unit import input_scale, scalar

LARGEST_RAISE = 2.0
SMALLEST = 2.0**-24
"""The smallest float16."""


def quantized_in_type(
    m: Match, weight: str, depth: int, x_scale: np.floating[Any], work: Callable[[str], qm.QuantizedUnit]
) -> qm.QuantizedUnit:
    """`work(type of the scales)`: in the type of x's scale, or in float32 where float16 is too narrow.

    weight: its name, for the reason. depth: how many products are summed up, at most. x_scale: what the bias' scale is
    a multiple of. Raises Decline where float16 is too narrow and float32 has no place, and what work raises.
    """
    own = scale_type(m)
    if own != "float16":
        return work(own)
    try:
        narrow = work(own)
    except qm.NotQuantizable:
        if not can_mix(m):
            raise
        return work("float32")
    if qm.bias_scale(x_scale, narrow.weight.scale).min(initial=np.inf) > 4 * SMALLEST:
        return narrow  # nothing had to grow
    wide = work("float32")
    raised = largest_raise(m, narrow.weight, wide.weight, depth)
    if raised <= LARGEST_RAISE:
        return narrow
    if can_mix(m):
        return wide
    raise Decline(
        f"x_scale * w_scale is too small for float16: the scales of the weight {weight!r} would have to grow "
        f"{raised:.3g} times; in ai.onnx they could be float32 from opset 23 on"
    )


def largest_raise(m: Match, narrow: qm.QuantizedTensor, wide: qm.QuantizedTensor, depth: int) -> float:
    """How many times larger the scales of one tensor are than those of the other, where it is seen.

    It is not for zeros, nor below the smallest number of the weight's own type, nor where the output hardly moves.
    """
    scale = narrow.scale.astype(np.float64)
    axes = tuple(i for i in range(wide.codes.ndim) if i != wide.axis)
    seen = np.any(wide.codes != wide.spread(wide.zero_point), axis=axes) & (depth * scale > weight_step_of_output(m))
    least = SMALLEST if float_type(m) == "float16" else 0.0
    return float(np.max(scale / np.maximum(wide.scale.astype(np.float64), least), where=seen, initial=0.0))


def weight_step_of_output(m: Match) -> float:
    """By how much a weight has to be off, so that its product can be half a step of the output; 0 if unknown."""
    y_scale = scalar(m.value("y_scale"))
    kind = x_type(m)
    if y_scale is None or kind not in CODES:
        return 0.0
    info = np.iinfo(kind)
    return y_scale / 2 / (float(input_scale(m)) * (int(info.max) - int(info.min)))


def require_finite(m: Match, weight: str, q: qm.QuantizedTensor) -> None:
    """Decline a weight that its scale brings back finite, but the narrower type of the output as infinity."""
    kind = float_type(m)
    if kind is None or FLOATS[kind] == q.scale.dtype.name or not q.codes.size:
        return
    steps = np.abs(q.codes.astype(np.float64) - q.spread(q.zero_point).astype(np.float64))
    largest = (steps * q.spread(q.scale).astype(np.float64)).max()
    with np.errstate(over="ignore"):
        if not np.isfinite(largest.astype(np.dtype(FLOATS[kind]))):
            raise Decline(f"the largest element of the weight {weight!r} would come back as infinity in {kind}")


def bias_in_type(
    m: Match,
    bias: str,
    x_scale: np.floating[Any],
    w_scale: NDArray[np.generic],
    work: Callable[[NDArray[np.generic]], qm.QuantizedTensor],
) -> qm.QuantizedTensor:
    """`work(scale of the weight)`, for a weight that is quantized already: the bias' scale has the type of that.

    That is the type of x's scale; float32 where the weight's scale has another, or float16 is too narrow for the
    product. bias: its name, for the reason. Raises Decline where float32 has no place, and what work raises.
    """
    own = scale_type(m)
    alike = own in ("float32", w_scale.dtype.name)
    held = w_scale.astype(own)
    if alike and not (own == "float16" and qm.bias_scale(x_scale, held).min(initial=np.inf) < SMALLEST):
        return work(held)
    if can_mix(m):
        return work(w_scale.astype(np.float32))
    why = "x_scale * w_scale is too small for float16" if alike else f"the weight's scale is {w_scale.dtype.name}"
    raise Decline(f"the bias {bias!r} can have no {own} scale: {why}; in ai.onnx it could be float32 from opset 23 on")
