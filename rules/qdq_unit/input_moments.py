"""What the graph tells of a unit's input for free: its range from Q, and that a Relu before leaves no negative values.

The scale and the zero point state the calibrated range. Where activations are quantized symmetrically, half of that
range may never occur: so the producer is looked at too, through what passes values along.
"""

from __future__ import annotations

import math

import numpy as np

from rewriter import Match, Value
from rules import quantization as qm
from rules.qdq_unit.float_types import CODES, x_type
from rules.qdq_unit.unit import zero_point as constant_zero_point

NOT_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Softplus", "Abs", "Exp", "Sqrt")
PASSES = (
    "QuantizeLinear", "DequantizeLinear", "MaxPool", "AveragePool", "GlobalAveragePool", "Reshape", "Flatten",
    "Transpose", "Squeeze", "Unsqueeze", "Slice", "Identity",
)  # fmt: skip
FAR = 8


def input_moments(m: Match, x_scale: np.generic, w_shape: tuple[int, ...]) -> qm.InputMoments | None:
    """Estimated for the input of the matched unit; None where its type or zero point is not known.

    w_shape: of the weight as the operator takes it: with a kernel of more than one position neighbours meet.
    """
    zero_point = m.maybe("x_zp")
    kind = x_type(m)
    zero = constant_zero_point(zero_point)
    if kind not in CODES or zero is None:
        return None
    info = np.iinfo(np.dtype(kind))
    low = zero if not_negative(m, m.value("x_q")) and zero < info.max else int(info.min)
    return qm.InputMoments.of_range(x_scale, zero, low, int(info.max), spatial=math.prod(w_shape[2:]) > 1)


def not_negative(m: Match, value: Value | None) -> bool:
    """Whether the value comes from an op that gives no negative ones, through ops that pass values along."""
    for _ in range(FAR):
        producer = None if value is None else m.reads(value).producer
        if producer is None:
            return False
        op = producer.op_type.removeprefix("com.microsoft::")
        if op in NOT_NEGATIVE:
            return True
        if op not in PASSES or not producer.inputs:
            return False
        value = producer.inputs[0]
    return False
