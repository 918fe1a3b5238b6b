"""A model and a rule whose notes tell everything that a report can show, with figures that are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import onnx
from onnx import helper
from onnxscript import opset17 as op
from onnxscript import script

import rewriter
from rewriter import Decline, Match, Result, rule
from rewriter.pattern import Const, Tensor

HOSTILE = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Loss:
    """Of a Mul whose factor becomes a divisor: everything is made up from the factor."""

    factor: float

    def as_dict(self) -> dict[str, Any]:
        return {"ratio": self.factor, "nothing": None, "endless": math.inf, "bad": math.nan}

    def figures(self) -> dict[str, float | None]:
        ratio = math.inf if self.factor == 8 else self.factor
        return {"ratio [dB]": ratio, "least ratio [dB]": self.factor / 2, "steps [steps]": 0.25}

    def error(self) -> float | None:
        return None if self.factor == 8 else 1 / self.factor

    def sizes(self) -> tuple[int, int]:
        return 400, 100

    def histograms(self) -> Mapping[str, Mapping[str, tuple[Sequence[int], Sequence[float]]]]:
        return {f"values of {self.factor}": {"before": ([1, 2], [0, 0.5, 1]), "after": ([3, 0], [0, 0.5, 1])}}

    def __str__(self) -> str:
        return f"a loss of {self.factor}"


@script(default_opset=op)
def scaled(x: Tensor, factor: Annotated[Tensor, Const]) -> Tensor:
    return op.Mul(x, factor)


@script(default_opset=op)
def divided(x: Tensor, divisor: Tensor) -> Tensor:
    return op.Div(x, divisor)


@rule(scaled, divided)
def mul_to_div(m: Match) -> dict[str, Any]:
    factor = m.array("factor")
    if factor.item() == 3:
        raise Decline("3 has no <inverse>")
    m.note(loss=Loss(factor.item()), plain=[1, 2.5])
    return {"divisor": 1 / factor}


def chain(factors: Sequence[float], names: Mapping[int, str] | None = None) -> onnx.ModelProto:
    """x times each factor in turn; the nodes are called mul0, mul1, ..."""
    values = ["x", *(f"v{k}" for k in range(len(factors)))]
    nodes = [
        helper.make_node("Mul", [values[k], f"c{k}"], [values[k + 1]], name=(names or {}).get(k, f"mul{k}"))
        for k in range(len(factors))
    ]
    constants = [helper.make_tensor(f"c{k}", onnx.TensorProto.FLOAT, [1], [f]) for k, f in enumerate(factors)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in (values[0], values[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ran(factors: Sequence[float], names: Mapping[int, str] | None = None) -> tuple[onnx.ModelProto, Result[Any]]:
    model = chain(factors, names)
    return model, rewriter.run(model, mul_to_div)
