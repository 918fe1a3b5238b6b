"""Reading rules: pattern operators, calls of other scripts, and the agreement with onnxscript's converter."""

from __future__ import annotations

import math
from typing import Annotated, Any, Optional

import pytest
from onnxscript import script
from onnxscript.onnx_opset import opset21

from rewriter.errors import RuleError
from rewriter.pattern import Maybe, P, Tensor
from rewriter.reading import read_script
from rewriter.reading.agreement import check_agreement
from rewriter.reading.source import Source
from tests.rewriter.pattern_text import show

op: Any = opset21
SQRT2 = math.sqrt(2)
KINDS = ("Relu", "Sigmoid")


# Pattern operators


def test_any_of_gives_its_name_to_nodes_that_have_none() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        soft = op.Softplus(x)
        act = P.AnyOf(soft, op.Relu(x), P.AnyOf(op.Clip(x, 0.0), x))
        return op.Neg(act)

    graph = read_script(rule, "source")
    choice = graph.nodes()[-1].inputs[0]
    assert choice is not None
    assert choice.name == "act"
    assert [c.name for c in choice.choices] == ["soft", "act", "act"]
    assert [n.name for n in graph.nodes()] == ["soft", "act", "act", None]
    assert choice.choices[2].choices[1] is graph.parameters["x"]


def test_op_of_several_types() -> None:
    @script(default_opset=op)
    def rule(x: Tensor, w: Tensor, b: Annotated[Tensor, Maybe], auto_pad: str) -> Tensor:
        y = P.Op(x, w, b, types=["Conv", "ConvTranspose"], auto_pad=auto_pad, group=1)
        z = P.Op(P.OnlyUse(y), types=KINDS)
        return P.Op(z, types=["ai.onnx::Gelu", "com.microsoft::QuickGelu"])

    graph = read_script(rule, "source")
    assert show(graph)[:3] == [
        "y = Conv/ConvTranspose(x, w, b, auto_pad=@auto_pad, group=1)",
        "z = Relu/Sigmoid(y)",
        "%2 = Gelu/com.microsoft::QuickGelu(z)",
    ]
    assert graph.opsets == {"": 21, "com.microsoft": 1}
    assert graph.nodes()[0].outputs[0].only_use


def test_the_loosest_of_several_types() -> None:
    @script(default_opset=op)
    def rule(x: Tensor, y: Tensor) -> Tensor:
        a, b = P.Op(x, y, types=["TopK", "MatMul"])
        return P.Op(P.Op(a, types=["MatMul", "Relu"]), b, types=["Add", "Neg"])

    assert len(read_script(rule, "source").nodes()) == 3


def test_the_default_opset_is_found_in_the_decorator() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        return P.Op(x, types=["Relu", "Gelu"])

    assert read_script(rule, "source").opsets == {"": 21}


# Calls of other script functions


@script(default_opset=op)
def gelu(x: Tensor, factor: float = 0.5, other: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
    inner = op.Erf(op.Div(x, SQRT2))
    return op.Max(op.Mul(op.Mul(x, inner + 1.0), factor), op.Elu(x, alpha=factor), op.Clip(x, other))


@script(default_opset=op)
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = op.Split(x, num_outputs=2)
    return a, b


def test_calls_are_read_in_place() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        y = op.Neg(x)
        g = gelu(y, factor=0.25)
        a, b = halves(g)
        return op.Add(a, b)

    graph = read_script(rule, "source")
    nodes = {n.types[0]: n for n in graph.nodes()}
    assert [n.name for n in graph.nodes()] == ["y", None, None, None, None, None, None, None, "g", "a", None]
    assert nodes["Elu"].attributes == {"alpha": 0.25}
    assert nodes["Elu"].inputs == [nodes["Neg"].outputs[0]]
    assert len(nodes["Clip"].inputs) == 1
    assert nodes["Erf"].place.line < graph.place.line


def test_attribute_parameters_pass_through_calls() -> None:
    @script(default_opset=op)
    def inner(x: Tensor, alpha: float) -> Tensor:
        return op.Elu(x, alpha=alpha)

    @script(default_opset=op)
    def rule(x: Tensor, beta: float) -> Tensor:
        return inner(inner(x, beta), 2)

    assert show(read_script(rule, "source"))[:2] == ["%0 = Elu(x, alpha=@beta)", "%1 = Elu(%0, alpha=2.0)"]


# Agreement with the converter


def test_a_disagreement_with_the_converter_is_an_error() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        return op.Relu(op.Neg(x))

    graph = read_script(rule, "source")
    graph.nodes()[0].types = ("Abs",)
    with pytest.raises(RuleError, match=r"read with \['Abs'\] where onnxscript has \['Neg'\]"):
        check_agreement(Source.of(rule), graph)
