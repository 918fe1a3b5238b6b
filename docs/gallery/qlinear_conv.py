"""QLinearConv, the operator form of a quantized convolution, to the form with DequantizeLinear and
QuantizeLinear.

Shows: `inherit` (the new Conv takes over all attributes of the QLinearConv), an absent value that makes a
node disappear (without `b` there is no DequantizeLinear for it), and an explicit opset window.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from onnxscript import opset13 as op
from onnxscript import script

from rewriter import Match, rule
from rewriter.pattern import Const, Maybe, Scalar, Tensor


@script(default_opset=op)
def operator_form(
    x: Tensor, x_scale: Annotated[Tensor, Const, Scalar], x_zp: Tensor,
    w: Tensor, w_scale: Annotated[Tensor, Const], w_zp: Tensor,
    y_scale: Tensor, y_zp: Tensor, b: Annotated[Tensor, Maybe],
) -> Tensor:  # fmt: skip
    qconv = op.QLinearConv(x, x_scale, x_zp, w, w_scale, w_zp, y_scale, y_zp, b)
    return qconv


@script(default_opset=op)
def qdq_form(
    x: Tensor, x_scale: Tensor, x_zp: Tensor,
    w: Tensor, w_scale: Tensor, w_zp: Tensor,
    y_scale: Tensor, y_zp: Tensor, b: Tensor, b_scale: Tensor, axis: int,
) -> Tensor:  # fmt: skip
    x_dq = op.DequantizeLinear(x, x_scale, x_zp)
    w_dq = op.DequantizeLinear(w, w_scale, w_zp, axis=axis)
    b_dq = op.DequantizeLinear(b, b_scale, axis=axis)
    conv = op.Conv(x_dq, w_dq, b_dq)
    return op.QuantizeLinear(conv, y_scale, y_zp)


@rule(operator_form, qdq_form, inherit={"qconv": "conv"}, opset=(13, None))
def qlinear_conv_to_qdq(m: Match) -> Mapping[str, object]:
    w_scale = m.array("w_scale")
    return {
        "b_scale": None if m.maybe("b") is None else (m.array("x_scale") * w_scale).astype(np.float32),
        "axis": None if w_scale.size == 1 else 0,
    }
