"""A Reshape does not care how its input was shaped: the op before it goes.

Shows: `P.Op` (one pattern for several op types), a callback that replaces a bound value, and a tied node
(`last`) that keeps its name and `allowzero`.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from onnxscript import opset14 as op
from onnxscript import script

from rewriter import Decline, Match, rule
from rewriter.pattern import Const, Maybe, P, Tensor


@script(default_opset=op)
def reshaped_twice(x: Tensor, how: Annotated[Tensor, Maybe], shape: Annotated[Tensor, Const]) -> Tensor:
    first = P.Op(x, how, types=["Reshape", "Squeeze", "Unsqueeze", "Flatten"])
    last = op.Reshape(first, shape)
    return last


@script(default_opset=op)
def reshaped_once(x: Tensor, shape: Tensor) -> Tensor:
    last = op.Reshape(x, shape)
    return last


@rule(reshaped_twice, reshaped_once, opset=(13, None))
def reshape_chain(m: Match) -> Mapping[str, object]:
    """A 0 in the shape copies a dimension of the first op's output, which must then be known."""
    shape = m.array("shape")
    if m.node("last").attribute("allowzero") or 0 not in shape:
        return {}
    how, first = m.maybe("how"), m.node("first")
    if first.op_type != "Reshape" or how is None or not how.is_constant or first.attribute("allowzero"):
        raise Decline("its shape copies a dimension that is not known at build time")
    inner = how.numpy()
    copied = np.where(shape == 0, np.pad(inner, (0, len(shape)))[: len(shape)], shape)
    if np.count_nonzero(copied == -1) > 1:
        raise Decline("its shape would have two unknown dimensions")
    return {"shape": copied}
