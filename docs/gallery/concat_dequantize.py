"""Concat of any number of equally scaled DequantizeLinear: concatenate the integers, dequantize once.

Shows: `Many` (the DequantizeLinear before a Concat input is repeated for each of them), variables that must
agree between the repetitions (`scale`, `zero_point`), and a tied node: the Concat keeps its name and stands
before what is new.
"""

from typing import Annotated

from onnxscript import opset13 as op
from onnxscript import script

from rewriter import Decline, Match, rule
from rewriter.pattern import Many, Maybe, Scalar, Tensor


@script(default_opset=op)
def concat_of_floats(
    xs_q: Annotated[Tensor, Many],
    scale: Annotated[Tensor, Scalar],
    zero_point: Annotated[Tensor, Maybe],
    axis: int,
) -> Tensor:
    xs = op.DequantizeLinear(xs_q, scale, zero_point)
    joined = op.Concat(xs, axis=axis)
    return joined


@script(default_opset=op)
def concat_of_integers(xs_q: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    joined = op.Concat(xs_q, axis=axis)
    return op.DequantizeLinear(joined, scale, zero_point)


@rule(concat_of_floats, concat_of_integers, opset=(13, 22))  # from 23 on there is output_dtype to look at
def concat_dequantize(m: Match) -> None:
    types = {x.dtype for x in m.many("xs_q")}
    if len(types) > 1 or None in types:
        raise Decline("its inputs are not known to be of one integer type")
