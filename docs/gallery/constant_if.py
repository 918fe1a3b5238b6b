"""An If whose condition is known: the branch that is taken moves to where the If stood.

Shows: the escape hatch. No fixed target can say what comes out, so the rule has none, and its callback
edits the graph through `m.edit`, the interface that scripts compile to.
"""

from typing import Annotated

from onnxscript import opset13 as op
from onnxscript import script

from rewriter import Match, rule
from rewriter.pattern import Const, P, Scalar, Tensor


@script(default_opset=op)
def decided(condition: Annotated[Tensor, Const, Scalar]) -> Tensor:
    return P.Op(condition, types=["If"])


@rule(decided, opset=(1, None))
def constant_if(m: Match) -> None:
    m.edit.inline(m.root, "then_branch" if m.array("condition").item() else "else_branch")
