"""The units before and after, as ONNX Script.

Each pattern is `DQ -> op -> [Relu|Clip]* -> Q` with the op as its core, so that a unit which fails further on is
declined with its reason. Q and DQ may be of ai.onnx or com.microsoft; new DequantizeLinear nodes take their type from
the unit's own (`inherit`). A weight is float if no DequantizeLinear produces it. A bias may be float, quantized
already, or absent; one that is known only at run time stays as it is (the `*_weight` targets). `dtype` is the output
type of new nodes whose scale has another (opset 23).

In the targets the nodes tie by name: x, conv, gemm, matmul, add and act are those of the model, and only the inputs
that differ are rewired.
"""

from typing import Annotated, Any

from onnxscript import opset23 as op
from onnxscript import script

from rewriter.pattern import Const, Maybe, NotConst, NotFrom, P, Tensor, Where

DQ = ["DequantizeLinear", "com.microsoft::DequantizeLinear"]
Q = ["QuantizeLinear", "com.microsoft::QuantizeLinear"]
ACTIVATIONS = ["Relu", "Clip"]
CONVOLUTIONS = ["Conv", "ConvTranspose"]


def is_stored(value: Any) -> bool:
    return bool(value.is_constant or value.is_overridable)


Optional = Annotated[Tensor, Maybe]
FloatWeight = Annotated[Tensor, NotFrom(*DQ), Where(is_stored, "a constant or an initializer")]
FloatBias = Annotated[Tensor, NotFrom(*DQ)]
MaybeBias = Annotated[Tensor, Maybe, NotFrom(*DQ)]
ConstantBias = Annotated[Tensor, Const, NotFrom(*DQ)]
RuntimeBias = Annotated[Tensor, NotConst]
Codes = Annotated[Tensor, Const]


# -- float weight ----------------------------------------------------------------------------------


@script(default_opset=op)
def conv_float_weight(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w: FloatWeight, b: MaybeBias, b_q: Codes, b_scale: Tensor, b_zp: Optional,
    y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    bias = P.AnyOf(P.Op(b_q, b_scale, b_zp, types=DQ), b)
    conv = P.Core(P.Op(x, w, bias, types=CONVOLUTIONS))
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def conv_quantized(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, b_quantized: Tensor, b_scale: Tensor,
    y_scale: Tensor, y_zp: Optional, axis: int, bias_axis: int, dtype: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, output_dtype=dtype)
    b_dq = P.Op(b_quantized, b_scale, types=DQ, axis=bias_axis, output_dtype=dtype)
    conv = P.Op(x, w_dq, b_dq, types=CONVOLUTIONS)
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_float_weight(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w: FloatWeight, b: MaybeBias, b_q: Codes, b_scale: Tensor, b_zp: Optional,
    y_scale: Tensor, y_zp: Optional, alpha: float, beta: float, trans_b: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    bias = P.AnyOf(P.Op(b_q, b_scale, b_zp, types=DQ), b)
    gemm = P.Core(op.Gemm(x, w, bias, alpha=alpha, beta=beta, transB=trans_b))
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_quantized(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, b_quantized: Tensor, b_scale: Tensor,
    y_scale: Tensor, y_zp: Optional, axis: int, bias_axis: int, dtype: int, alpha: float, beta: float,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, output_dtype=dtype)
    b_dq = P.Op(b_quantized, b_scale, types=DQ, axis=bias_axis, output_dtype=dtype)
    gemm = op.Gemm(x, w_dq, b_dq, alpha=alpha, beta=beta)
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_float_weight(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w: FloatWeight, y_scale: Tensor, y_zp: Optional
) -> Tensor:
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    matmul = P.Core(op.MatMul(x, w))
    act = P.Chain(matmul, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_quantized(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, y_scale: Tensor, y_zp: Optional,
    axis: int, dtype: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, output_dtype=dtype)
    matmul = op.MatMul(x, w_dq)
    act = P.Chain(matmul, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_add_float_weight(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w: FloatWeight, b: ConstantBias, b_q: Codes, b_scale: Tensor, b_zp: Optional,
    y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    matmul = P.Core(op.MatMul(x, w))
    bias = P.AnyOf(P.Op(b_q, b_scale, b_zp, types=DQ), b)
    add = op.Add(matmul, bias)
    act = P.Chain(add, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_add_quantized(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, b_quantized: Tensor, b_scale: Tensor,
    y_scale: Tensor, y_zp: Optional, axis: int, bias_axis: int, dtype: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, output_dtype=dtype)
    b_dq = P.Op(b_quantized, b_scale, types=DQ, axis=bias_axis, output_dtype=dtype)
    matmul = op.MatMul(x, w_dq)
    add = op.Add(matmul, b_dq)
    act = P.Chain(add, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


# -- float weight, a bias of run time: the weight alone --------------------------------------------


@script(default_opset=op)
def conv_runtime_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w: FloatWeight, b: RuntimeBias, y_scale: Tensor, y_zp: Optional
) -> Tensor:
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    conv = P.Core(P.Op(x, w, b, types=CONVOLUTIONS))
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def conv_quantized_weight(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, b: Tensor, y_scale: Tensor, y_zp: Optional,
    axis: int, dtype: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, output_dtype=dtype)
    conv = P.Op(x, w_dq, b, types=CONVOLUTIONS)
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_runtime_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w: FloatWeight, b: RuntimeBias, y_scale: Tensor, y_zp: Optional,
    alpha: float, beta: float, trans_b: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    gemm = P.Core(op.Gemm(x, w, b, alpha=alpha, beta=beta, transB=trans_b))
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_quantized_weight(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, b: Tensor, y_scale: Tensor, y_zp: Optional,
    axis: int, dtype: int, alpha: float,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ, axis=axis, output_dtype=dtype)
    gemm = op.Gemm(x, w_dq, b, alpha=alpha)
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


# -- quantized weight, a bias that is float or has another scale -----------------------------------
# With a quantized bias the pattern has no core: a unit that is complete already is not worth a word.


@script(default_opset=op)
def conv_float_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional, b: ConstantBias,
    y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    conv = P.Core(P.Op(x, w, b, types=CONVOLUTIONS))
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def conv_quantized_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b_q: Codes, b_scale: Tensor, b_zp: Optional, y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    bias = P.Op(b_q, b_scale, b_zp, types=DQ)
    conv = P.Op(x, w, bias, types=CONVOLUTIONS)
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def conv_with_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b_quantized: Tensor, b_new_scale: Tensor, y_scale: Tensor, y_zp: Optional, bias_axis: int, dtype: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    b_dq = P.Op(b_quantized, b_new_scale, types=DQ, axis=bias_axis, output_dtype=dtype)
    conv = P.Op(x, w, b_dq, types=CONVOLUTIONS)
    act = P.Chain(conv, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_float_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional, b: ConstantBias,
    y_scale: Tensor, y_zp: Optional,
    alpha: float, beta: float, trans_b: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    gemm = P.Core(op.Gemm(x, w, b, alpha=alpha, beta=beta, transB=trans_b))
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_quantized_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b_q: Codes, b_scale: Tensor, b_zp: Optional, y_scale: Tensor, y_zp: Optional,
    alpha: float, beta: float, trans_b: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    bias = P.Op(b_q, b_scale, b_zp, types=DQ)
    gemm = op.Gemm(x, w, bias, alpha=alpha, beta=beta, transB=trans_b)
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_with_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b_quantized: Tensor, b_new_scale: Tensor, y_scale: Tensor, y_zp: Optional, bias_axis: int, dtype: int,
    alpha: float, beta: float,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    b_dq = P.Op(b_quantized, b_new_scale, types=DQ, axis=bias_axis, output_dtype=dtype)
    gemm = op.Gemm(x, w, b_dq, alpha=alpha, beta=beta)
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def gemm_with_bias_and_alpha(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Tensor, w_new_scale: Tensor, w_zp: Optional,
    b_quantized: Tensor, b_new_scale: Tensor, y_scale: Tensor, y_zp: Optional, bias_axis: int, dtype: int,
    alpha: float, beta: float,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_q, w_new_scale, w_zp, types=DQ)
    b_dq = P.Op(b_quantized, b_new_scale, types=DQ, axis=bias_axis, output_dtype=dtype)
    gemm = op.Gemm(x, w_dq, b_dq, alpha=alpha, beta=beta)
    act = P.Chain(gemm, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_add_float_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional, b: ConstantBias,
    y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    matmul = op.MatMul(x, w)
    add = P.Core(op.Add(matmul, b))
    act = P.Chain(add, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_add_quantized_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b_q: Codes, b_scale: Tensor, b_zp: Optional, y_scale: Tensor, y_zp: Optional,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    matmul = op.MatMul(x, w)
    bias = P.Op(b_q, b_scale, b_zp, types=DQ)
    add = op.Add(matmul, bias)
    act = P.Chain(add, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


@script(default_opset=op)
def matmul_add_with_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Codes, w_scale: Tensor, w_zp: Optional,
    b_quantized: Tensor, b_new_scale: Tensor, y_scale: Tensor, y_zp: Optional, bias_axis: int, dtype: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    b_dq = P.Op(b_quantized, b_new_scale, types=DQ, axis=bias_axis, output_dtype=dtype)
    matmul = op.MatMul(x, w)
    add = op.Add(matmul, b_dq)
    act = P.Chain(add, ops=ACTIVATIONS)
    return P.Op(act, y_scale, y_zp, types=Q)


# -- what ONNX Runtime's own optimizer takes (scheme="onnxruntime"): whatever follows is looked at by the callback ---


@script(default_opset=op)
def ort_float_weight(x_q: Tensor, x_scale: Tensor, x_zp: Optional, w: FloatWeight, b: MaybeBias) -> Tensor:
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    return P.Op(x, w, b, types=["Conv", "ConvTranspose", "Gemm"])


@script(default_opset=op)
def ort_quantized(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional,
    w_quantized: Tensor, w_scale: Tensor, w_zero_point: Tensor, b_quantized: Tensor, b_scale: Tensor,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w_dq = P.Op(w_quantized, w_scale, w_zero_point, types=DQ)
    b_dq = P.Op(b_quantized, b_scale, types=DQ)
    return P.Op(x, w_dq, b_dq, types=["Conv", "ConvTranspose", "Gemm"])


@script(default_opset=op)
def ort_quantized_weight(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Tensor, w_scale: Tensor, w_zp: Optional, b: FloatBias
) -> Tensor:
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    return P.Op(x, w, b, types=["Conv", "ConvTranspose", "Gemm"])


@script(default_opset=op)
def ort_with_bias(
    x_q: Tensor, x_scale: Tensor, x_zp: Optional, w_q: Tensor, w_scale: Tensor, w_zp: Optional,
    b_quantized: Tensor, b_new_scale: Tensor, axis: int,
) -> Tensor:  # fmt: skip
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    w = P.Op(w_q, w_scale, w_zp, types=DQ)
    b_dq = P.Op(b_quantized, b_new_scale, types=DQ, axis=axis)
    return P.Op(x, w, b_dq, types=["Conv", "ConvTranspose", "Gemm"])
