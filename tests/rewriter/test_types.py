"""What is known of a value's type where the model declares nothing: inside functions, and behind com.microsoft ops.

What inference over ONNX's own schemas tells is onnx's to test; here are the values that it does not reach.
"""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import ModelProto, parser
from onnxscript import opset17 as op
from onnxscript import script

import rewriter
from rewriter.engine.scope import Shape
from rewriter.pattern import Tensor

FUNCTION = '<domain: "local", opset_import: ["" : 17]> F (a, b) => (c) { t = Neg(a) c = Add(t, b) }'


@script(default_opset=op)
def negated(x: Tensor) -> Tensor:
    return op.Neg(x)


def seen(model: ModelProto) -> tuple[ir.DataType | None, Shape | None]:
    """Type and shape of what the model's Neg reads, the same for each kind of model."""
    (match,) = rewriter.find(model, negated)
    (other,) = rewriter.find(ir.from_proto(model), negated)
    x, y = match.value("x"), other.value("x")
    assert (x.dtype, x.shape) == (y.dtype, y.shape)
    return x.dtype, x.shape


def calls(inputs: str, body: str) -> ModelProto:
    head = '<ir_version: 9, opset_import: ["" : 17, "local" : 1]>'
    return parser.parse_model(f"{head} g ({inputs}) => (float[N] y) {{ {body} }} {FUNCTION}")


@pytest.mark.parametrize(
    ("second", "dtype", "shape"),
    [
        ("float[2,3] v", ir.DataType.FLOAT, (2, 3)),
        ("float[2,5] v", ir.DataType.FLOAT, (2, None)),
        ("float[2,N] v", ir.DataType.FLOAT, (2, None)),
        ("float[3] v", ir.DataType.FLOAT, None),
        ("float16[2,3] v", None, (2, 3)),
    ],
)
def test_an_input_of_a_function_is_what_all_calls_agree_on(
    second: str, dtype: ir.DataType | None, shape: Shape | None
) -> None:
    model = calls(f"float[2,3] u, {second}", "p = local.F(u, u) q = local.F(v, v) y = Cast<to = 1>(q)")
    assert seen(model) == (dtype, shape)


def test_a_symbol_of_one_graph_means_nothing_in_another() -> None:
    model = calls("float[N,3] u", "p = local.F(u, u) q = local.F(u, u) y = Cast<to = 1>(q)")
    assert seen(model) == (ir.DataType.FLOAT, (None, 3))


def test_a_function_that_nobody_calls() -> None:
    assert seen(calls("float[2] u", "y = Abs(u)")) == (None, None)


def test_what_a_call_leaves_out() -> None:
    function = '<domain: "local", opset_import: ["" : 17]> F (a, b) => (c) { t = Abs(a) c = Neg(b) }'
    text = '<ir_version: 9, opset_import: ["" : 17, "local" : 1]> g (float[2] u) => (float[2] y) { y = local.F(u) }'
    assert seen(parser.parse_model(text + function)) == (None, None)


def test_types_reach_through_nested_functions() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (float[2,3] u) => (float[3,2] y) { y = local.Outer(u) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]> Outer (a) => (c) { t = Transpose(a) c = local.Inner(t) }
        <domain: "local", opset_import: ["" : 17]> Inner (a) => (c) { c = Neg(a) }"""
    assert seen(parser.parse_model(text)) == (ir.DataType.FLOAT, (3, 2))


def test_quantization_ops_of_com_microsoft_have_the_types_of_their_twins() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2,3] u) => (float[2,3] y) <float s = {0.5}, uint16 z = {7}> {
            q = com.microsoft.QuantizeLinear(u, s, z) d = com.microsoft.DequantizeLinear(q, s, z) y = Neg(d)
        }"""
    assert seen(parser.parse_model(text)) == (ir.DataType.FLOAT, (2, 3))
