"""Units that are quantized throughout, as patterns to look for: what `rules.legal` asks of a finished model."""

from onnxscript import opset21 as op
from onnxscript import script

from rewriter.pattern import P, Tensor
from rules.qdq_unit.patterns import ACTIVATIONS, CONVOLUTIONS, DQ, Codes, ConstantBias, MaybeBias, Optional, Q


@script(default_opset=op)
def complete_conv(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b: MaybeBias, b_q: Codes, b_scale: Tensor, b_zp: Optional, y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    conv = P.Op(x, w, P.AnyOf(P.Op(b_q, b_scale, b_zp, types=DQ), b), types=CONVOLUTIONS)
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def complete_gemm(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b: MaybeBias, b_q: Codes, b_scale: Tensor, b_zp: Optional, y_scale: Tensor, y_zp: Optional,
    alpha: float, beta: float, trans_b: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    bias = P.AnyOf(P.Op(b_q, b_scale, b_zp, types=DQ), b)
    gemm = op.Gemm(x, w, bias, alpha=alpha, beta=beta, transB=trans_b)
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def complete_matmul(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    matmul = op.MatMul(x, w)
    act = P.Chain(matmul, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def complete_matmul_add(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b: ConstantBias, b_q: Codes, b_scale: Tensor, b_zp: Optional, y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    matmul = op.MatMul(x, w)
    add = op.Add(matmul, P.AnyOf(P.Op(b_q, b_scale, b_zp, types=DQ), b))
    act = P.Chain(add, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)
