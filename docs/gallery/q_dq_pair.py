"""QuantizeLinear and DequantizeLinear right after each other.

Where the value comes from a DequantizeLinear with the same parameters, the pair gives back exactly what
went in. Else it rounds, and taking it away is a decision: an option of the rule set.

Shows: a rule set with an option, `enabled`, `P.Chain`, and repeated variables.
"""

from dataclasses import dataclass
from typing import Annotated

from onnxscript import opset13 as op
from onnxscript import script

from rewriter import Decline, Match, RuleSet, rule
from rewriter.pattern import Const, Float, Maybe, P, Scalar, Tensor

MOVES = ["Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten"]
OPSETS = (13, 22)  # from 23 on there is output_dtype to look at


@script(default_opset=op)
def quantized_again(
    x_q: Tensor, scale: Annotated[Tensor, Const, Scalar], zero_point: Annotated[Tensor, Maybe]
) -> Tensor:
    x = op.DequantizeLinear(x_q, scale, zero_point)
    moved = P.Chain(x, ops=MOVES)
    q = op.QuantizeLinear(moved, scale, zero_point)
    return op.DequantizeLinear(q, scale, zero_point)


@script(default_opset=op)
def quantized_once(x_q: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    x = op.DequantizeLinear(x_q, scale, zero_point)
    moved = P.Chain(x, ops=MOVES)
    return moved


@script(default_opset=op)
def fake_quantization(
    x: Annotated[Tensor, Float], scale: Annotated[Tensor, Const], zero_point: Annotated[Tensor, Const, Maybe]
) -> Tensor:
    return op.DequantizeLinear(op.QuantizeLinear(x, scale, zero_point), scale, zero_point)


@script(default_opset=op)
def nothing(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class QdqPairs(RuleSet):
    lossy: bool = False
    """Take away the pairs that round, too: the model is then a float model where it was a quantized one."""

    @rule(quantized_again, quantized_once, opset=OPSETS)
    def idempotent(self, m: Match) -> None:
        if m.value("x_q").dtype != m.output("q").dtype:
            raise Decline("the pair converts to another integer type")
        if not 2.0**-100 < abs(float(m.array("scale").item())) < 2.0**100:
            raise Decline("its scale is so small or large that x / scale * scale is not x")

    @rule(fake_quantization, nothing, opset=OPSETS, enabled=lambda options: options.lossy)
    def fake(self, m: Match) -> None:
        """Nothing to ask: the option says that rounding is not wanted."""


qdq_pairs = QdqPairs()
