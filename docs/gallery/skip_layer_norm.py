"""A skip connection and its LayerNormalization to ONNX Runtime's fused operator, which has both results.

Shows: several outputs (the k-th returned value replaces the k-th; both may have consumers anywhere), an op
of another domain (its import is added to the model), and an output of the target that nobody wants (`_`).
"""

from typing import Annotated, Any

from onnxscript import opset17 as op
from onnxscript import script
from onnxscript.values import Opset

from rewriter import Decline, Match, rule
from rewriter.pattern import DType, Rank, Tensor

microsoft: Any = Opset("com.microsoft", 1)


@script(default_opset=op)
def add_and_norm(
    x: Annotated[Tensor, DType("FLOAT", "FLOAT16"), Rank(3)], skip: Annotated[Tensor, Rank(3)],
    scale: Annotated[Tensor, Rank(1)], bias: Annotated[Tensor, Rank(1)], axis: int, epsilon: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    total = x + skip
    normal = op.LayerNormalization(total, scale, bias, axis=axis, epsilon=epsilon, stash_type=1)
    return normal, total


@script(default_opset=op)
def fused(x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    both, _, _, sum = microsoft.SkipLayerNormalization(x, skip, scale, bias, epsilon=epsilon)
    return both, sum


@rule(add_and_norm, fused)
def skip_layer_norm(m: Match) -> None:
    shape = m.value("x").shape
    if shape is None or None in shape or shape != m.value("skip").shape:
        raise Decline("the two summands are not known to be of one shape")
    if m.attribute("axis") not in (-1, 2):
        raise Decline("it normalizes more than the last axis")
