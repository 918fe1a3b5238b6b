"""Gelu, as exporters write it out with Erf, back to one Gelu.

Shows: several sources for one target, `P.AnyOf`, a call of another script function (inlined), commuted
operands for free, constants within a tolerance, and a rule that needs no callback.
"""

from math import sqrt

from onnxscript import opset20 as op
from onnxscript import script

from rewriter import rewrite
from rewriter.pattern import P, Tensor

SQRT_2 = sqrt(2.0)
SQRT_HALF = sqrt(0.5)


@script(default_opset=op)
def one_plus_erf(x: Tensor) -> Tensor:
    return op.Erf(P.AnyOf(x / SQRT_2, x * SQRT_HALF)) + 1.0


@script(default_opset=op)
def half_at_the_end(x: Tensor) -> Tensor:
    return x * one_plus_erf(x) * 0.5


@script(default_opset=op)
def half_on_x(x: Tensor) -> Tensor:
    return x * 0.5 * one_plus_erf(x)


@script(default_opset=op)
def half_on_erf(x: Tensor) -> Tensor:
    return x * (one_plus_erf(x) * 0.5)


@script(default_opset=op)
def gelu(x: Tensor) -> Tensor:
    return op.Gelu(x)


erf_gelu = rewrite([half_at_the_end, half_on_x, half_on_erf], gelu, name="erf_gelu")
