"""Small rules for tests of how models are read and written: they exercise every kind of edit and need no
thought.
"""

from typing import Annotated, Any

import numpy as np
from onnxscript import opset17 as op
from onnxscript import script

from rewriter import Match, rewrite, rule
from rewriter.pattern import Const, Float, P, Tensor


@script(default_opset=op)
def relu_of_relu(x: Tensor) -> Tensor:
    return op.Relu(op.Relu(x))


@script(default_opset=op)
def one_relu(x: Tensor) -> Tensor:
    return op.Relu(x)


@script(default_opset=op)
def any_relu(x: Tensor) -> Tensor:
    y = op.Relu(x)
    return y


@script(default_opset=op)
def a_tanh(x: Tensor) -> Tensor:
    return op.Tanh(x)


@script(default_opset=op)
def an_abs(x: Tensor) -> Tensor:
    return op.Abs(x)


@script(default_opset=op)
def doubled(x: Tensor, two: Annotated[Tensor, Const, Float]) -> Tensor:
    y = op.Mul(x, two)
    return y


@script(default_opset=op)
def halved(x: Tensor, half: Tensor) -> Tensor:
    y = op.Div(x, half)
    return y


@script(default_opset=op)
def negated_twice(x: Tensor) -> Tensor:
    return op.Neg(op.Neg(x))


@script(default_opset=op)
def kept(x: Tensor) -> Tensor:
    return op.Identity(x)


@script(default_opset=op)
def leaky(x: Tensor) -> Tensor:
    y = op.LeakyRelu(x, alpha=0.01)
    return y


@script(default_opset=op)
def less_leaky(x: Tensor) -> Tensor:
    y = op.LeakyRelu(x, alpha=0.25)
    return y


@script(default_opset=op)
def thresholded(x: Tensor) -> Tensor:
    z = op.ThresholdedRelu(x)
    return z


@script(default_opset=op)
def any_leaky(x: Tensor) -> Tensor:
    y = op.LeakyRelu(x)
    return y


@script(default_opset=op)
def an_if(c: Annotated[Tensor, Const]) -> Tensor:
    y = P.Op(c, types=["If"])
    return y


relus = rewrite(relu_of_relu, one_relu, name="relus")
negs = rewrite(negated_twice, kept, name="negs")
leak = rewrite(leaky, less_leaky, name="leak")
threshold = rewrite(any_leaky, thresholded, inherit={"y": "z"}, name="threshold")


@rule(doubled, halved)
def mul_to_div(m: Match) -> dict[str, Any]:
    """Multiply by a constant -> divide by its inverse: a new initializer for an old one."""
    two = m.array("two")
    m.note(factor=float(two.reshape(-1)[0]))
    return {"half": (1 / two).astype(np.float32)}


@rule(an_if)
def constant_if(m: Match) -> None:
    """A constant If becomes its branch: the one edit that moves nodes between graphs."""
    m.edit.inline(m.node("y"), "then_branch" if m.array("c") else "else_branch")


everything = relus + negs + leak + mul_to_div
