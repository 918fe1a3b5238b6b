"""BatchNormalization folded into the Conv before it.

Shows: constants computed by the callback, a tied node (`conv` keeps its name and attributes; its value
changes, so the engine asks by itself that nobody else reads it), an input that was absent and is now given,
and one source per opset form.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from onnxscript import opset13, script
from onnxscript import opset15 as op

from rewriter import Decline, Match, rule
from rewriter.pattern import Const, Float, Maybe, P, Rank, Tensor

Weight = Annotated[Tensor, Const, Float]
Vector = Annotated[Tensor, Const, Rank(1)]


@script(default_opset=op)
def conv_bn(
    x: Tensor, w: Weight, b: Annotated[Tensor, Const, Maybe],
    scale: Vector, shift: Vector, mean: Vector, var: Vector, epsilon: float,
) -> Tensor:  # fmt: skip
    conv = P.Core(op.Conv(x, w, b))
    bn = op.BatchNormalization(conv, scale, shift, mean, var, epsilon=epsilon, training_mode=0)
    return bn


@script(default_opset=opset13)
def conv_bn_before_14(
    x: Tensor, w: Weight, b: Annotated[Tensor, Const, Maybe],
    scale: Vector, shift: Vector, mean: Vector, var: Vector, epsilon: float,
) -> Tensor:  # fmt: skip
    conv = P.Core(opset13.Conv(x, w, b))
    bn = opset13.BatchNormalization(conv, scale, shift, mean, var, epsilon=epsilon)
    return bn


@script(default_opset=op)
def conv_alone(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    conv = op.Conv(x, w, b)
    return conv


@rule([conv_bn, conv_bn_before_14], conv_alone)
def fold_batch_norm(m: Match) -> Mapping[str, object]:
    if len(m.node("bn").outputs) > 1:
        raise Decline("its BatchNormalization is in training mode")
    w, mean = m.array("w"), m.array("mean").astype(np.float64)
    b = np.zeros_like(mean) if m.maybe("b") is None else m.array("b").astype(np.float64)
    factor = m.array("scale") / np.sqrt(m.array("var").astype(np.float64) + m.attribute("epsilon"))
    per_channel = factor.reshape(-1, *[1] * (w.ndim - 1))
    return {
        "w": (w * per_channel).astype(w.dtype),
        "b": ((b - mean) * factor + m.array("shift")).astype(w.dtype),
    }
