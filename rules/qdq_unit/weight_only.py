"""Units whose weight is quantized and whose bias stays as it is: `bias=False`, and weights in blocks.

A bias in integers stands at x_scale * w_scale, and blocks have no one w_scale per channel; and who quantizes for
size alone may want the bias untouched. So in these patterns the bias is any value or none, behind a DequantizeLinear
or not, and the new DequantizeLinear may have a block_size.
"""

from typing import Annotated

from onnxscript import opset23 as op
from onnxscript import script

from rewriter.pattern import Maybe, P, Tensor
from rules.qdq_unit.patterns import ACTIVATIONS, CONVOLUTIONS, DQ, FloatWeight, Optional, Q

AnyBias = Annotated[Tensor, Maybe]
AFTER_MATMUL = ["Add", *ACTIVATIONS]


@script(default_opset=op)
def conv_any_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w: FloatWeight, b: AnyBias, y_scale: Tensor, y_zp: Optional
) -> Tensor:
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    conv = P.Core(P.Op(x, w, b, types=CONVOLUTIONS))
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def conv_weight_quantized(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, b: AnyBias, y_scale: Tensor, y_zp: Optional,
    axis: int, block_size: int, dtype: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, block_size=block_size, output_dtype=dtype)
    conv = P.Op(x, w_dq, b, types=CONVOLUTIONS)
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_any_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w: FloatWeight, b: AnyBias,
    y_scale: Tensor, y_zp: Optional, alpha: float, trans_b: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    gemm = P.Core(op.Gemm(x, w, b, alpha=alpha, transB=trans_b))
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_weight_quantized(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, b: AnyBias, y_scale: Tensor, y_zp: Optional,
    axis: int, block_size: int, dtype: int, alpha: float,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, block_size=block_size, output_dtype=dtype)
    gemm = op.Gemm(x, w_dq, b, alpha=alpha)
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_any_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w: FloatWeight, y_scale: Tensor, y_zp: Optional
) -> Tensor:
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    matmul = P.Core(op.MatMul(x, w))
    act = P.Chain(matmul, ops=AFTER_MATMUL)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_weight_quantized(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, y_scale: Tensor, y_zp: Optional,
    axis: int, block_size: int, dtype: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, block_size=block_size, output_dtype=dtype)
    matmul = op.MatMul(x, w_dq)
    act = P.Chain(matmul, ops=AFTER_MATMUL)
    return P.Op(act, y_scale, y_zp, types=Q)
