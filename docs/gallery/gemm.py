"""MatMul and Add of a bias to Gemm.

Shows: markers (`Rank`, `Float`), `P.Core` and `P.OnlyUse`, and a `Decline` whose sentence reaches the
report. Gemm's bias may be broadcast to the product, but not the other way round: a condition that only a
callback can state.
"""

from typing import Annotated

from onnxscript import opset13 as op
from onnxscript import script

from rewriter import Decline, Match, rule
from rewriter.pattern import Float, P, Rank, Tensor


@script(default_opset=op)
def matmul_add(
    a: Annotated[Tensor, Float, Rank(2)],
    b: Annotated[Tensor, Rank(2)],
    bias: Annotated[Tensor, Rank(0, 1, 2)],
) -> Tensor:
    product = P.Core(op.MatMul(a, b))
    return P.OnlyUse(product) + bias


@script(default_opset=op)
def gemm(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return op.Gemm(a, b, bias)


@rule(matmul_add, gemm)
def matmul_add_to_gemm(m: Match) -> None:
    rows, columns = (m.value("a").shape or (None,))[0], (m.value("b").shape or (None,))[-1]
    bias = m.value("bias").shape or ()
    for have, want in zip(reversed(bias), (columns, rows), strict=False):
        if have != 1 and (have is None or have != want):
            raise Decline(f"its bias of shape {list(bias)} is not known to fit [{rows}, {columns}]")
