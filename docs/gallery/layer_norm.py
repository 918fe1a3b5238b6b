"""LayerNormalization from the ops that it was decomposed into.

Shows: opset forms (ReduceMean has its axes as an attribute before opset 18, then as an input), a number of
the target taken from a constant of the model, `P.AnyOf` over an optional last node, and a parameter that
one alternative lacks (`bias`).
"""

from collections.abc import Mapping
from typing import Annotated, Any

import onnxscript
from onnxscript import script

from rewriter import Decline, Match, rule
from rewriter.pattern import Const, DType, P, Scalar, Tensor

op: Any = onnxscript.opset18  # Any: else mypy rejects numbers where an op takes tensors
op17: Any = onnxscript.opset17

Input = Annotated[Tensor, DType("FLOAT", "FLOAT16")]
Number = Annotated[Tensor, Const, Scalar]


@script(default_opset=op)
def decomposed(x: Input, eps: Number, scale: Tensor, bias: Tensor) -> Tensor:
    centered = x - op.ReduceMean(x, [-1], keepdims=1)
    square = P.AnyOf(op.Pow(centered, 2.0), centered * centered)
    variance = op.ReduceMean(square, [-1], keepdims=1)
    normal = centered / op.Sqrt(variance + eps)
    scaled = normal * scale
    return P.AnyOf(scaled + bias, scaled)


@script(default_opset=op17)
def decomposed_17(x: Input, eps: Number, scale: Tensor, bias: Tensor) -> Tensor:
    centered = x - op17.ReduceMean(x, axes=[-1], keepdims=1)
    square = P.AnyOf(op17.Pow(centered, 2.0), centered * centered)
    variance = op17.ReduceMean(square, axes=[-1], keepdims=1)
    normal = centered / op17.Sqrt(variance + eps)
    scaled = normal * scale
    return P.AnyOf(scaled + bias, scaled)


@script(default_opset=op)
def layer_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return op.LayerNormalization(x, scale, bias, epsilon=epsilon)


@rule([decomposed, decomposed_17], layer_norm)
def layer_normalization(m: Match) -> Mapping[str, object]:
    shape = m.value("x").shape
    for name in ("scale", "bias"):
        value = m.maybe(name)
        if value is not None and (not shape or shape[-1] is None or value.shape != shape[-1:]):
            raise Decline(f"its {name} is not known to have the one dimension that is normalized")
    return {"epsilon": float(m.array("eps").item())}
