"""Reading rules: a catalogue of small scripts and the graphs they are read into.

Each rule is a real `@script()` function in this file, so `read_script` also compares every one of them with
what onnxscript's converter made of it. Pattern operators and calls are in `test_reading_operators`,
mistakes in `test_reading_mistakes`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Optional

import numpy as np
import onnx
import pytest
from onnxscript import script
from onnxscript.onnx_opset import opset18, opset21
from onnxscript.values import Opset

from rewriter.pattern import Const, Float, Maybe, P, Rank, Scalar, Tensor
from rewriter.pattern.graph import AttributeParameter
from rewriter.reading import read_script
from tests.rewriter.pattern_text import show

op: Any = opset21
ms: Any = Opset("com.microsoft", 1)
EPS = 1e-5
SQRT2 = math.sqrt(2)
TABLE = np.arange(3, dtype=np.int8)
PROTO = onnx.numpy_helper.from_array(np.zeros(2, np.float16))


# The example of the design


@script(default_opset=op)
def float_conv(
    x_q: Tensor,
    x_scale: Annotated[Tensor, Const, Scalar],
    x_zp: Annotated[Tensor, Maybe],
    w: Annotated[Tensor, Const, Float],
    b: Annotated[Tensor, Const, Float, Maybe],
    y_scale: Tensor,
    y_zp: Annotated[Tensor, Maybe],
) -> Tensor:
    """A convolution with float weights."""
    x = op.DequantizeLinear(x_q, x_scale, x_zp)
    conv = P.Core(op.Conv(x, w, b))
    act = P.Chain(conv, ops=["Relu", "Clip"])
    return op.QuantizeLinear(act, y_scale, y_zp)


@script(default_opset=op)
def qdq_conv(
    x_q: Tensor,
    x_scale: Tensor,
    x_zp: Tensor,
    w_q: Tensor,
    w_scale: Tensor,
    y_scale: Tensor,
    y_zp: Tensor,
    axis: int,
) -> Tensor:
    x = op.DequantizeLinear(x_q, x_scale, x_zp)
    w_dq = op.DequantizeLinear(w_q, w_scale, axis=axis)
    conv = op.Conv(x, w_dq)
    act = P.Chain(P.Core(conv), ops=["Relu", "Clip"])
    return op.QuantizeLinear(act, y_scale, y_zp)


def test_a_source() -> None:
    graph = read_script(float_conv, "source")
    assert show(graph) == [
        "x = DequantizeLinear(x_q, x_scale, x_zp)",
        "conv = Conv(x, w, b)",
        "act = Relu/Clip*(conv)",
        "%3 = QuantizeLinear(act, y_scale, y_zp)",
        "return %3",
    ]
    assert graph.name == "float_conv"
    assert graph.opsets == {"": 21}
    assert list(graph.parameters) == ["x_q", "x_scale", "x_zp", "w", "b", "y_scale", "y_zp"]
    assert graph.parameters["b"].markers == (Const(), Float(), Maybe())
    assert graph.parameters["b"].may_be_absent
    nodes = graph.nodes()
    assert [n.name for n in nodes] == ["x", "conv", "act", None]
    assert [n.outputs[0].core for n in nodes] == [False, True, False, False]
    assert nodes[2].chain
    assert nodes[0].inputs[0] is graph.parameters["x_q"]


def test_a_target() -> None:
    graph = read_script(qdq_conv, "target")
    assert show(graph)[1] == "w_dq = DequantizeLinear(w_q, w_scale, axis=@axis)"
    assert graph.attribute_parameters == {"axis": AttributeParameter("axis", int)}
    assert not any(n.outputs[0].core for n in graph.nodes())


def test_places_are_lines_of_this_file() -> None:
    graph = read_script(float_conv, "source")
    with open(__file__, encoding="utf-8") as f:
        lines = f.read().splitlines()
    assert {n.place.file for n in graph.nodes()} == {graph.place.file} == {__file__}
    assert lines[graph.place.line - 1] == "def float_conv("
    assert "op.Conv(x, w, b)" in lines[graph.nodes()[1].place.line - 1]
    assert lines[graph.parameters["w"].place.line - 1].strip().startswith("w:")


# Parameters


def test_kinds_of_parameters() -> None:
    @script(default_opset=op)
    def rule(  # type: ignore[no-untyped-def]
        x,
        y: Optional[Tensor],  # noqa: UP045
        axis: int,
        alpha: float = 0.5,
        mode: str = "linear",
        perm: list[int] = [1, 0],  # noqa: B006
    ):
        a = op.Transpose(op.Elu(op.Softmax(x, axis=axis), alpha=alpha), perm=perm)
        return ms.Thing(a, y, mode=mode)

    graph = read_script(rule, "source")
    assert list(graph.parameters) == ["x", "y"]
    assert not graph.parameters["x"].may_be_absent
    assert graph.parameters["y"].may_be_absent
    assert list(graph.attribute_parameters.values()) == [
        AttributeParameter("axis", int),
        AttributeParameter("alpha", float, 0.5),
        AttributeParameter("mode", str, "linear"),
        AttributeParameter("perm", list[int], [1, 0]),
    ]
    assert graph.opsets == {"": 21, "com.microsoft": 1}
    assert show(graph)[-2] == "%3 = com.microsoft::Thing(a, y, mode=@mode)"


def test_a_default_of_none_means_maybe() -> None:
    @script(default_opset=op)
    def rule(x: Tensor, w: Tensor, b: Optional[Tensor] = None):  # type: ignore[no-untyped-def]  # noqa: UP045
        return op.Conv(x, w, b)

    assert read_script(rule, "source").parameters["b"].markers == (Maybe(),)


def test_markers_on_a_variable() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        y: Annotated[Tensor, Rank(4)] = op.Relu(x)
        return op.Neg(y)

    assert read_script(rule, "source").nodes()[0].outputs[0].markers == (Rank(4),)


# Expressions


def test_operators() -> None:
    @script(default_opset=op)
    def rule(a: Tensor, b: Tensor) -> Tensor:
        c = (-a + b) * a / b - a**b
        d = (c % 2.0) @ b
        e = (d < a) & (d >= b) | (a != b)
        f = not (a == b)  # noqa: SIM201
        return op.Where(op.And(e, f), a, b)

    graph = read_script(rule, "source")
    counts = [n.types[0] for n in graph.nodes()]
    assert " ".join(counts) == (
        "Neg Add Mul Div Pow Sub Mod MatMul Less GreaterOrEqual And Equal Not Or Equal Not And Where"
    )
    assert graph.nodes()[6].attributes == {"fmod": 1}
    assert graph.opsets == {"": 21}


def test_constants() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        half = 0.5
        a = op.Mul(op.Div(x, SQRT2), half) + (1 / EPS)
        b = op.Clip(a, -1, 6.0)
        return op.Gather(op.Reshape(b, [2, -1]), TABLE)

    graph = read_script(rule, "source")
    literals = [v.literal for n in graph.nodes() for v in n.inputs if v is not None and v.literal is not None]
    assert [(str(a.dtype), a.tolist()) for a in literals] == [
        ("float32", pytest.approx(SQRT2)),
        ("float32", 0.5),
        ("float32", pytest.approx(1 / EPS)),
        ("int64", -1),
        ("float32", 6.0),
        ("int64", [2, -1]),
        ("int8", [0, 1, 2]),
    ]
    castable = [v.castable for n in graph.nodes() for v in n.inputs if v is not None and v.literal is not None]
    assert castable == [True] * 6 + [False]


def test_constant_ops_are_literals() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        one = op.Constant(value_float=1)
        axes = op.Constant(value_ints=[])
        return op.ReduceSum(op.Add(op.Mul(x, one), op.Constant(value=PROTO)), axes)

    graph = read_script(rule, "source")
    literals = [v for n in graph.nodes() for v in n.inputs if v is not None and v.literal is not None]
    assert [(str(v.literal.dtype), v.castable) for v in literals if v.literal is not None] == [
        ("float32", False),
        ("float16", False),
        ("int64", False),
    ]
    assert len(graph.nodes()) == 3


def test_an_input_by_keyword_goes_where_the_author_meant() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        return op.Clip(x, max=6.0)

    assert show(read_script(rule, "source"))[0] == "%0 = Clip(x, None, 6.0)"


def test_absent_inputs() -> None:
    @script(default_opset=op)
    def rule(x: Tensor, s: Tensor) -> Tensor:
        return op.Resize(op.Clip(x, None, None), None, s, mode="linear")

    assert show(read_script(rule, "source"))[:2] == [
        "%0 = Clip(x)",
        "%1 = Resize(%0, None, s, mode='linear')",
    ]


def test_several_outputs() -> None:
    @script(default_opset=op)
    def rule(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        values, _ = op.TopK(x, k)
        a, b = op.Split(values, num_outputs=2)
        return op.Relu(a), op.Neg(b)

    graph = read_script(rule, "source")
    assert show(graph)[1] == "a, b = Split(values, num_outputs=2)"
    assert len(graph.outputs) == 2
    assert [v.slot for v in graph.nodes()[1].outputs] == [0, 1]
    assert [v.name for v in graph.nodes()[0].outputs] == ["values", None]


def test_a_value_used_twice_is_one_value() -> None:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        y = op.Sigmoid(x)
        return op.Mul(y, y)

    node = read_script(rule, "source").nodes()[1]
    assert node.inputs[0] is node.inputs[1]


def test_a_target_may_return_a_parameter_and_a_value_twice() -> None:
    @script(default_opset=op)
    def identity(x: Tensor) -> Tensor:
        return x

    @script(default_opset=op)
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        y = op.Relu(x)
        return y, y

    graph = read_script(identity, "target")
    assert graph.outputs == [graph.parameters["x"]]
    assert graph.opsets == {}
    graph = read_script(twice, "target")
    assert graph.outputs[0] is graph.outputs[1]


def test_what_comes_from_enclosing_functions() -> None:
    other: Any = opset18
    slope = 0.1

    @script(default_opset=other)
    def rule(x: Tensor) -> Tensor:
        return other.LeakyRelu(x * slope, alpha=slope)

    graph = read_script(rule, "source")
    assert show(graph)[1] == "%1 = LeakyRelu(%0, alpha=0.1)"
    assert graph.opsets == {"": 18}


class Holder:
    @script(default_opset=op)
    def rule(x: Tensor) -> Tensor:
        return op.Relu(x)


def test_a_rule_inside_a_class() -> None:
    graph = read_script(Holder.rule, "source")
    assert show(graph) == ["%0 = Relu(x)", "return %0"]
