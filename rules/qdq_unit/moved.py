"""Units behind a DequantizeLinear that ONNX Runtime moves: a warning, for whole files that it then cannot load.

ONNX Runtime moves a DequantizeLinear past a MaxPool, Reshape and the like by putting a QuantizeLinear and another
DequantizeLinear behind it. From opset 21 on these state their `output_dtype`, and where int8 is made uint8 for x86
that statement stays what it was: the session fails to load, with float weights and with quantized ones alike. Nothing
about the weight mends that, so that all there is to do here is to say what would.
"""

from onnxscript import opset23 as op
from onnxscript import script

from rewriter import Decline, Match, NoMatch
from rewriter.pattern import P, Tensor
from rules.backends import CANNOT_LOAD
from rules.qdq_unit.float_types import is_microsoft, x_type
from rules.qdq_unit.patterns import CONVOLUTIONS, DQ, Optional
from rules.qdq_unit.weight_only import AnyBias

MOVES = ["MaxPool", "Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze"]
"""What ONNX Runtime moves a DequantizeLinear past, as measured with 1.32."""


@script(default_opset=op)
def behind_moves(x_q: Tensor, x_scale: Tensor, x_zp: Optional, w: Tensor, b: AnyBias) -> Tensor:
    x = P.Op(x_q, x_scale, x_zp, types=DQ)
    moved = P.Chain(x, ops=MOVES)
    return P.Op(moved, w, b, types=[*CONVOLUTIONS, "Gemm", "MatMul"])


def warn_of_int8(m: Match) -> None:
    """Decline a unit behind an int8 DequantizeLinear and what it is moved past; no match where the session loads."""
    moved = m.nodes("moved")
    if not moved or x_type(m) != "int8" or is_microsoft(m) or m.opset < 21:
        raise NoMatch
    raise Decline(CANNOT_LOAD.format(what=moved[0].op_type))
