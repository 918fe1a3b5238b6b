"""What a pattern matches: a table of small patterns, and of models that they must or must not find.

Each pattern is asked by `find`, which changes nothing. What is then done with a match is in
`test_engine_edits`.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxscript
import pytest
from onnx import numpy_helper
from onnxscript import script
from onnxscript.values import Opset

import rewriter
from rewriter import Match, RuleSet, rule
from rewriter.pattern import (
    Const,
    Dims,
    DType,
    Float,
    Integer,
    Many,
    Maybe,
    NotConst,
    NotFrom,
    P,
    Rank,
    Scalar,
    Tensor,
    Where,
)
from tests.rewriting import parse

op: Any = onnxscript.opset17
op13: Any = onnxscript.opset13
custom: Any = Opset("custom", 1)


def find(pattern: Any, text: str, opset: int = 17, ir_version: int = 9) -> list[Match]:
    return list(rewriter.find(parse(text, opset, ir_version), pattern))


def count(pattern: Any, text: str, opset: int = 17, ir_version: int = 9) -> int:
    return len(find(pattern, text, opset, ir_version))


def body(nodes: str, constants: str = "", x: str = "float[2,3] x", y: str = "float[a,b] y") -> str:
    return f"g ({x}) => ({y}) {f'<{constants}>' if constants else ''} {{ {nodes} }}"


# Variables


@script(default_opset=op)
def square(x: Tensor) -> Tensor:
    return x * x


@pytest.mark.parametrize(
    ("nodes", "constants", "expected"),
    [
        ("y = Mul(x, x)", "", 1),
        ("a = Relu(x)\n y = Mul(x, a)", "", 0),
        ("a = Relu(x)\n b = Relu(x)\n y = Mul(a, b)", "", 0),  # equal, but not the same value
        ("y = Mul(c, d)", "float[2] c = {1, 2}, float[2] d = {1, 2}", 1),
        ("y = Mul(c, d)", "float[2] c = {1, 2}, float[2] d = {1, 3}", 0),
        ("y = Mul(c, d)", "float[2] c = {1, 1}, float[2,1] d = {1, 1}", 0),
        ("y = Mul(c, d)", "float[1] c = {0.0}, float[1] d = {-0.0}", 0),  # equal in value, not in bytes
    ],
)
def test_a_repeated_variable_must_agree(nodes: str, constants: str, expected: int) -> None:
    assert count(square, body(nodes, constants)) == expected


def test_constants_of_another_type_do_not_agree() -> None:
    @script(default_opset=op)
    def cast_twice(x: Tensor) -> Tensor:
        return op.Add(op.Cast(x, to=1), op.Cast(x, to=1))

    same = body("a = Cast <to = 1> (c)\n b = Cast <to = 1> (d)\n y = Add(a, b)", "int32[1] c = {1}, int32[1] d = {1}")
    assert count(cast_twice, same) == 1
    assert count(cast_twice, same.replace("int32[1] d", "int64[1] d")) == 0


# Absent inputs


@script(default_opset=op)
def clip(x: Tensor, low: Annotated[Tensor, Maybe], high: Annotated[Tensor, Maybe]) -> Tensor:
    return op.Clip(x, low, high)


@script(default_opset=op)
def clip_above(x: Tensor, high: Tensor) -> Tensor:
    return op.Clip(x, None, high)


@pytest.mark.parametrize(
    ("node", "bound", "above"),
    [
        ("y = Clip(x)", (None, None), 0),
        ("y = Clip(x, )", (None, None), 0),
        ("y = Clip(x, lo)", ("lo", None), 0),
        ("y = Clip(x, , hi)", (None, "hi"), 1),
        ("y = Clip(x, lo, hi)", ("lo", "hi"), 0),
    ],
)
def test_absent_inputs(node: str, bound: tuple[str | None, str | None], above: int) -> None:
    text = body(node, "float lo = {0}, float hi = {1}")
    (match,) = find(clip, text)
    assert tuple(v and v.name for v in (match["low"], match["high"])) == bound
    assert count(clip_above, text) == above


# Attributes


@script(default_opset=op)
def softmax(x: Tensor, axis: int) -> Tensor:
    return op.Softmax(x, axis=axis)


@script(default_opset=op)
def softmax_last(x: Tensor) -> Tensor:
    return op.Softmax(x, axis=-1)


@script(default_opset=op)
def transposed(x: Tensor, perm: list[int]) -> Tensor:
    return op.Transpose(x, perm=perm)


@script(default_opset=op)
def leaky(x: Tensor) -> Tensor:
    return op.LeakyRelu(x, alpha=0.3)


def test_an_attribute_binds_with_the_default_of_the_schema() -> None:
    assert [m["axis"] for m in find(softmax, body("a = Softmax(x)\n y = Softmax <axis = 0> (a)"))] == [-1, 0]


def test_an_attribute_without_default_binds_none() -> None:
    matches = find(transposed, body("a = Transpose(x)\n y = Transpose <perm = [0, 1]> (a)"))
    assert [m["perm"] for m in matches] == [None, [0, 1]]


def test_a_literal_attribute_is_compared_with_the_default_filled_in() -> None:
    assert count(softmax_last, body("y = Softmax(x)")) == 1
    assert count(softmax_last, body("y = Softmax <axis = -1> (x)")) == 1
    assert count(softmax_last, body("y = Softmax <axis = 1> (x)")) == 0


def test_the_default_of_another_opset_is_not_assumed() -> None:
    """Softmax meant axis=1, and something else, before opset 13."""
    assert count(softmax_last, body("y = Softmax(x)"), opset=11) == 0


def test_a_float_attribute_is_compared_as_float32() -> None:
    assert count(leaky, body("y = LeakyRelu <alpha = 0.3> (x)")) == 1
    assert count(leaky, body("y = LeakyRelu <alpha = 0.30001> (x)")) == 0
    assert count(leaky, body("y = LeakyRelu(x)")) == 0


def test_a_repeated_attribute_must_agree() -> None:
    @script(default_opset=op)
    def twice(x: Tensor, axis: int) -> Tensor:
        return op.Softmax(op.Softmax(x, axis=axis), axis=axis)

    assert count(twice, body("a = Softmax <axis = 1> (x)\n y = Softmax <axis = 1> (a)")) == 1
    assert count(twice, body("a = Softmax(x)\n y = Softmax <axis = -1> (a)")) == 1
    assert count(twice, body("a = Softmax <axis = 1> (x)\n y = Softmax <axis = 0> (a)")) == 0


# Literal constants


@script(default_opset=op)
def plus_one_third(x: Tensor) -> Tensor:
    return x + 0.3333333


@script(default_opset=op)
def plus_two(x: Tensor) -> Tensor:
    return x + 2


@script(default_opset=op)
def flattened(x: Tensor) -> Tensor:
    return op.Reshape(x, [1, -1])


@pytest.mark.parametrize(
    ("pattern", "node", "constant", "expected"),
    [
        (plus_one_third, "Add(x, c)", "float c = {0.3333333}", 1),
        (plus_one_third, "Add(x, c)", "float[1] c = {0.3333334}", 1),  # within 1e-5, relative
        (plus_one_third, "Add(x, c)", "float c = {0.33334}", 0),
        (plus_one_third, "Add(x, c)", "float[1,1] c = {0.3333333}", 0),  # of rank 2
        (plus_one_third, "Add(x, c)", "float[3] c = {0.3333333, 0.3333333, 0.3333333}", 0),
        (plus_two, "Add(x, c)", "float c = {2}", 1),
        (plus_two, "Add(x, c)", "float c = {2.5}", 0),
        (flattened, "Reshape(x, c)", "int64[2] c = {1, -1}", 1),
        (flattened, "Reshape(x, c)", "int64[2] c = {1, 6}", 0),
        (flattened, "Reshape(x, c)", "int64[3] c = {1, -1, 1}", 0),
    ],
)
def test_literals(pattern: Any, node: str, constant: str, expected: int) -> None:
    assert count(pattern, body(f"y = {node}", constant)) == expected


def test_a_literal_is_met_by_half_precision() -> None:
    model = parse(body("y = Add(x, c)", "float16 c = {0}", "float16[2,3] x", "float16[2,3] y"))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(0.3333333, np.float16), "c"))
    assert len(list(rewriter.find(model, plus_one_third))) == 1


def test_a_run_time_value_meets_no_literal() -> None:
    assert count(plus_two, body("y = Add(x, x)")) == 0


# Constants


@script(default_opset=op)
def scaled(x: Annotated[Tensor, NotConst], c: Annotated[Tensor, Const]) -> Tensor:
    return x * c


C = "float[3] c = {1, 2, 3}, float s = {0.5}, uint8 z = {0}, int64[1] shape = {3}"


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Mul(x, c)",
        "a = Constant <value_floats = [1.0, 2.0, 3.0]> ()\n y = Mul(x, a)",
        "a = Constant <value = float[3] {1, 2, 3}> ()\n y = Mul(x, a)",
        "a = Identity(c)\n y = Mul(x, a)",
        "b = Cast <to = 11> (c)\n a = Cast <to = 1> (b)\n y = Mul(x, a)",
        "a = Transpose <perm = [0]> (c)\n y = Mul(x, a)",
        "a = Reshape(c, shape)\n y = Mul(x, a)",
        "q = QuantizeLinear(c, s, z)\n a = DequantizeLinear(q, s, z)\n y = Mul(x, a)",
        "b = Identity(c)\n q = QuantizeLinear(b, s, z)\n d = DequantizeLinear(q, s, z)\n"
        "a = Reshape(d, shape)\n y = Mul(x, a)",
    ],
)
def test_const_is_what_can_be_computed(nodes: str) -> None:
    (match,) = find(scaled, body(nodes, C))
    np.testing.assert_array_equal(match.array("c"), np.array([1, 2, 3], np.float32))
    assert match.value("c").shape == (3,)


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Relu(x)\n y = Mul(x, a)",
        "a = Relu(c)\n y = Mul(x, a)",
        "a = Identity(x)\n b = Transpose(a)\n y = Mul(x, a)",
    ],
)
def test_const_is_nothing_else(nodes: str) -> None:
    assert count(scaled, body(nodes, C)) == 0


def test_an_initializer_that_the_caller_can_override_is_no_constant() -> None:
    text = body("y = Mul(x, c)", "float[3] c = {1, 2, 3}", "float[2,3] x, float[3] c")
    assert count(scaled, text, ir_version=9) == 0
    assert count(scaled, text, ir_version=3) == 1  # before IR version 4 every initializer had to be an input


def test_a_constant_of_an_outer_scope() -> None:
    text = """g (float[2,3] x, bool k) => (float[a,b] y) <float[3] c = {1, 2, 3}> {
        y = If (k) <then_branch = t () => (float[a,b] r) { r = Mul(x, c) },
                    else_branch = e () => (float[a,b] r2) { r2 = Neg(x) }>
    }"""
    (match,) = find(scaled, text)
    assert match.root.name == "r"


# Commutation


@script(default_opset=op)
def sum_of_relu_and_exp(x: Tensor, z: Tensor) -> Tensor:
    return op.Relu(x) + op.Exp(z)


@script(default_opset=op)
def relu_minus_exp(x: Tensor, z: Tensor) -> Tensor:
    return op.Relu(x) - op.Exp(z)


@script(default_opset=op)
def nested(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return op.Mul(op.Add(op.Relu(a), b), op.Max(op.Exp(c), op.Neg(a)))


def test_commuted_operands() -> None:
    for order in ("r, e", "e, r"):
        assert count(sum_of_relu_and_exp, body(f"r = Relu(x)\n e = Exp(x)\n y = Add({order})")) == 1
    assert count(relu_minus_exp, body("r = Relu(x)\n e = Exp(x)\n y = Sub(r, e)")) == 1
    assert count(relu_minus_exp, body("r = Relu(x)\n e = Exp(x)\n y = Sub(e, r)")) == 0


def test_commuted_operands_at_every_depth() -> None:
    for first in ("r, x", "x, r"):
        for second in ("e, n", "n, e"):
            for third in ("s, m", "m, s"):
                nodes = f"r = Relu(x)\n s = Add({first})\n e = Exp(x)\n n = Neg(x)"
                nodes += f"\n m = Max({second})\n y = Mul({third})"
                assert count(nested, body(nodes)) == 1


def test_a_rule_can_ask_for_the_order_as_written() -> None:
    @rule(sum_of_relu_and_exp, commute=False)
    def strict(m: Match) -> None:
        """Only asked."""

    assert count(strict, body("r = Relu(x)\n e = Exp(x)\n y = Add(r, e)")) == 1
    assert count(strict, body("r = Relu(x)\n e = Exp(x)\n y = Add(e, r)")) == 0


def test_a_variadic_op_of_three_inputs_is_not_one_of_two() -> None:
    @script(default_opset=op)
    def biggest(a: Tensor, b: Tensor) -> Tensor:
        return op.Max(op.Relu(a), b)

    assert count(biggest, body("r = Relu(x)\n y = Max(x, r)")) == 1
    assert count(biggest, body("r = Relu(x)\n y = Max(r, x, x)")) == 0


# Markers


def is_positive(value: Any) -> bool:
    return value.is_constant and bool((value.numpy() > 0).all())


@script(default_opset=op)
def marked(
    x: Annotated[Tensor, Rank(2), Float, Dims("N", "C")],
    w: Annotated[Tensor, Dims("C", 4), DType("FLOAT")],
    b: Annotated[Tensor, Where(is_positive, "a positive constant"), Rank(1, 2)],
) -> Tensor:
    return op.Gemm(x, w, b)


GEMM = "g (float[2,3] x, float[3,4] w) => (float[2,4] y) <float[4] b = {1, 2, 3, 4}> { y = Gemm(x, w, b) }"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("", ""), 1),
        (("{1, 2, 3, 4}", "{1, 2, 3, -4}"), 0),
        (("float[4] b = {1, 2, 3, 4}", "float b = {1}"), 0),
        (("float[3,4] w", "float[k,4] w"), 0),  # 3 and k are not known to agree
        (("float[3,4] w", "float[3,5] w"), 0),
        (("float[2,3] x", "float x"), 0),
    ],
)
def test_markers(change: tuple[str, str], expected: int) -> None:
    assert count(marked, GEMM.replace(*change)) == expected


def test_symbolic_dimensions_agree_by_name() -> None:
    text = GEMM.replace("float[2,3] x", "float[2,k] x").replace("float[3,4] w", "float[k,4] w")
    assert count(marked, text) == 1


def test_markers_of_variables() -> None:
    @script(default_opset=op)
    def scalar_of(x: Annotated[Tensor, NotFrom("Relu", "Exp")]) -> Tensor:
        total: Annotated[Tensor, Scalar] = op.ReduceSum(x)
        return op.Neg(total)

    text = "g (float[2,3] x) => (float[a] y) { s = ReduceSum <keepdims = 0> (x)\n y = Neg(s) }"
    assert count(scalar_of, text, 13) == 1  # an attribute that the pattern does not name may be anything
    assert count(scalar_of, text.replace("keepdims = 0", "keepdims = 1").replace("[2,3]", "[1]")) == 1
    assert count(scalar_of, text.replace("keepdims = 0", "keepdims = 1").replace("[2,3]", "[1,1]")) == 0
    assert count(scalar_of, text.replace("(x)\n", "(r)\n").replace("{ s", "{ r = Relu(x)\n s")) == 0


def test_integers_are_no_floats() -> None:
    @script(default_opset=op)
    def halves(x: Annotated[Tensor, Integer]) -> Tensor:
        return op.Neg(x)

    assert count(halves, body("y = Neg(x)", x="int32[2] x", y="int32[2] y")) == 1
    assert count(halves, body("y = Neg(x)")) == 0


# Other domains, other script functions


@script(default_opset=op)
def custom_op(x: Tensor, size: int) -> Tensor:
    return op.Relu(custom.Wobble(x, size=size))


def test_a_custom_domain() -> None:
    text = body("a = custom.Wobble <size = 3, other = 1> (x)\n y = Relu(a)")
    assert [m["size"] for m in find(custom_op, text)] == [3]
    assert count(custom_op, text.replace("custom.Wobble", "Identity").replace("<size = 3, other = 1>", "")) == 0
    assert [m["size"] for m in find(custom_op, text.replace("size = 3, ", ""))] == [None]


@script(default_opset=op)
def mish(x: Tensor) -> Tensor:
    return x * op.Tanh(op.Softplus(x))


@script(default_opset=op)
def mish_of_relu(x: Tensor) -> Tensor:
    return mish(op.Relu(x))


def test_a_called_script_function_is_inlined() -> None:
    nodes = "r = Relu(x)\n s = Softplus(r)\n t = Tanh(s)\n y = Mul(r, t)"
    assert count(mish_of_relu, body(nodes)) == 1
    assert count(mish_of_relu, body(nodes.replace("Mul(r, t)", "Mul(x, t)"))) == 0


# Several outputs


@script(default_opset=op)
def split(x: Tensor) -> tuple[Tensor, Tensor]:
    left, right = op.Split(x, axis=1)
    return op.Relu(right), op.Neg(left)


def test_several_outputs_are_told_apart() -> None:
    nodes = "a, b = Split <axis = 1> (x)\n r = Relu({0})\n n = Neg({1})\n y = Add(r, n)"
    text = body(nodes, x="float[2,4] x").replace("{0}", "b").replace("{1}", "a")
    assert count(split, text, 13) == 1
    text = body(nodes, x="float[2,4] x").replace("{0}", "a").replace("{1}", "b")
    assert count(split, text, 13) == 0
    text = body(nodes, x="float[2,4] x").replace("{0}", "b").replace("{1}", "b")
    assert count(split, text, 13) == 0


@script(default_opset=op)
def siblings(x: Tensor) -> tuple[Tensor, Tensor]:
    return op.Relu(x), op.Neg(x)


def test_siblings_share_an_input() -> None:
    assert count(siblings, body("a = Relu(x)\n b = Neg(x)\n y = Add(a, b)")) == 1
    assert count(siblings, body("a = Relu(x)\n c = Exp(x)\n b = Neg(c)\n y = Add(a, b)")) == 0
    two = find(siblings, body("a = Relu(x)\n b = Neg(x)\n c = Neg(x)\n d = Add(b, c)\n y = Add(a, d)"))
    assert [[n.name for n in m.matched] for m in two] == [["a", "b"], ["a", "c"]]


@script(default_opset=op)
def twins(x: Tensor) -> tuple[Tensor, Tensor]:
    return op.Relu(x), op.Relu(x)


def test_two_pattern_nodes_are_two_nodes() -> None:
    assert count(twins, body("a = Relu(x)\n y = Add(a, a)")) == 0
    assert count(twins, body("a = Relu(x)\n b = Relu(x)\n y = Add(a, b)")) == 1


# Pattern operators


@script(default_opset=op)
def either(x: Tensor) -> Tensor:
    return op.Neg(P.AnyOf(op.Relu(x), op.Max(x, 0.0)))


@script(default_opset=op)
def one_of(x: Tensor, b: Annotated[Tensor, Maybe]) -> Tensor:
    return P.Op(op.Neg(x), b, types=["Relu", "Add", "custom::Wobble"])


def test_any_of() -> None:
    assert count(either, body("r = Relu(x)\n y = Neg(r)")) == 1
    assert count(either, body("r = Max(z, x)\n y = Neg(r)", "float z = {0}")) == 1
    assert count(either, body("r = Exp(x)\n y = Neg(r)")) == 0


def test_op_of_several_types() -> None:
    nodes = "n = Neg(x)\n y = {0}"
    for node, expected in [
        ("Relu(n)", 1),
        ("Add(n, x)", 1),
        ("custom.Wobble(n)", 1),
        ("Mul(n, x)", 0),
        ("Relu(x)", 0),
    ]:
        assert count(one_of, body(nodes.replace("{0}", node))) == expected, node


@script(default_opset=op)
def chained(x: Tensor) -> Tensor:
    start = op.Abs(x)
    chain = P.Chain(start, ops=["Relu", "Clip"])
    return op.Neg(chain)


def links(*ops: str, constants: str = "float lo = {0}", more: str = "") -> str:
    lines = ["v0 = Abs(x)"]
    for k, link in enumerate(ops):
        lines.append(f"v{k + 1} = " + link.replace("_", f"v{k}"))
    return body("\n".join([*lines, f"y = Neg(v{len(ops)})", more]), constants)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (links(), []),
        (links("Relu(_)"), ["v1"]),
        (links("Relu(_)", "Clip(_, lo)", "Relu(_)"), ["v1", "v2", "v3"]),
        (links("Relu(_)", "Exp(_)"), None),
        (
            links("Clip(_, z)", constants="", more="").replace(
                "v0 = Abs", "z = ReduceMax <keepdims = 0> (x)\n v0 = Abs"
            ),
            None,
        ),
        (links("Clip(x, _)"), None),  # not through input 0
        (links("Relu(_)", "Relu(_)", more="w = Exp(v1)"), None),  # a second consumer within
        (links("Relu(_)", more="w = Exp(v1)"), None),
        (links(more="w = Exp(v0)"), None),  # nor where the chain is empty
    ],
)
def test_chains(text: str, names: list[str] | None) -> None:
    found = find(chained, text)
    assert [[n.name for n in m.nodes("chain")] for m in found] == ([] if names is None else [names])


@script(default_opset=op)
def returned_chain(x: Tensor) -> Tensor:
    chain = P.Chain(op.Abs(x), ops=["Relu"])
    return chain


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("y = Abs(x)", []),
        ("a = Abs(x)\n y = Relu(a)", ["y"]),
        ("a = Abs(x)\n b = Relu(a)\n c = Relu(b)\n y = Exp(c)", ["b", "c"]),
        ("a = Abs(x)\n b = Relu(a)\n c = Relu(b)\n d = Relu(b)\n y = Add(c, d)", ["b"]),
    ],
)
def test_the_end_of_a_returned_chain_may_be_read_by_anybody(nodes: str, names: list[str]) -> None:
    assert [[n.name for n in m.nodes("chain")] for m in find(returned_chain, body(nodes))] == [names]


def test_only_use() -> None:
    @script(default_opset=op)
    def single(x: Tensor) -> Tensor:
        return op.Neg(P.OnlyUse(op.Relu(x)))

    assert count(single, body("r = Relu(x)\n y = Neg(r)")) == 1
    assert count(single, body("r = Relu(x)\n n = Neg(r)\n y = Add(n, r)")) == 0
    assert count(single, body("r = Relu(x)\n y = Neg(r)", y="float[a,b] y, float[a,b] r")) == 0


@script(default_opset=op)
def concat(xs: Annotated[Tensor, Many], axis: int) -> Tensor:
    return op.Concat(op.Relu(xs), axis=axis)


@script(default_opset=op)
def stacked(first: Tensor, xs: Annotated[Tensor, Many], s: Tensor) -> Tensor:
    return op.Concat(op.Neg(first), xs * s, axis=0)


def test_many() -> None:
    nodes = "a = Relu(x)\n b = Relu(a)\n c = Exp(x)\n y = Concat <axis = 0> ({0})"
    (match,) = find(concat, body(nodes.replace("{0}", "a, b, a")))
    assert [v.name for v in match.many("xs")] == ["x", "a", "x"]
    assert count(concat, body(nodes.replace("{0}", "a, c"))) == 0


def test_many_after_others_and_in_either_order() -> None:
    nodes = "n = Neg(x)\n a = Mul(x, s)\n b = Mul(s, n)\n t = Exp(s)\n c = Mul(n, t)"
    nodes += "\n y = Concat <axis = 0> ({0})"
    (match,) = find(stacked, body(nodes.replace("{0}", "n, a, b"), "float s = {2}"))
    assert [v.name for v in match.many("xs")] == ["x", "n"]
    assert match.value("s").name == "s"
    assert count(stacked, body(nodes.replace("{0}", "n, a, c"), "float s = {2}")) == 0
    assert count(stacked, body(nodes.replace("{0}", "a, a, b"), "float s = {2}")) == 0


# Scopes and opsets


@script(default_opset=op)
def relu_relu(x: Tensor) -> Tensor:
    return op.Relu(op.Relu(x))


def test_bodies_and_functions_are_searched() -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "custom": 1]>
    g (float[2] x, bool k) => (float[2] y) {
        a = Relu(x)
        b = If (k) <then_branch = t () => (float[2] r) { q = Relu(a)
                        r = Relu(q) },
                    else_branch = e () => (float[2] r2) { r2 = Neg(x) }>
        y = custom.twice(b)
    }
    <domain: "custom", opset_import: ["": 17]>
    twice (p) => (q) { s = Relu(p)
        q = Relu(s) }"""
    matches = find(relu_relu, text)
    assert [sorted(n.name for n in m.matched) for m in matches] == [["a", "q"], ["q", "r"], ["q", "s"]]


def test_a_rule_holds_where_the_schemas_agree() -> None:
    text = body("y = Softmax <axis = -1> (x)")
    assert count(softmax_last, text, 13) == 1
    assert count(softmax_last, text, 11) == 0

    @rule(softmax_last, opset=(11, 12))
    def old(m: Match) -> None:
        """Only asked."""

    assert (count(old, text, 11), count(old, text, 13)) == (1, 0)


# Several patterns at once, and large ones


def test_rules_of_one_program_find_what_each_finds_alone() -> None:
    patterns: list[Any] = [
        square,
        clip,
        softmax,
        leaky,
        scaled,
        nested,
        custom_op,
        mish,
        split,
        siblings,
        either,
        one_of,
        chained,
        concat,
    ]

    def asked(pattern: Any) -> RuleSet:
        @rule(pattern, name=pattern.name)
        def only(m: Match) -> None:
            """Only asked."""

        return only

    together: RuleSet = asked(patterns[0])
    for pattern in patterns[1:]:
        together += asked(pattern)
    nodes = """a = Relu(x)\n b = Neg(a)\n c = Mul(b, b)\n d = Softplus(c)\n e = Tanh(d)
        f = Mul(e, c)\n g = Clip(f)\n h = Softmax(g)\n i = LeakyRelu <alpha = 0.3> (h)
        j = Mul(k, i)\n l = Abs(j)\n m = Relu(l)\n n = Neg(m)
        o = Relu(n)\n y = Concat <axis = 0> (a, o)"""
    text = body(nodes, "float[3] k = {1, 2, 3}")
    alone = [(m.rule.name, m.root.name) for p in patterns for m in find(asked(p), text)]
    both = [(m.rule.name, m.root.name) for m in find(together, text)]
    assert sorted(alone) == sorted(both)
    assert len(alone) > 10


def deep_pattern(nodes: int) -> onnxscript.OnnxFunction[..., Any]:
    """A pattern of so many nodes, written by a program."""
    lines = [f"    v{k + 1} = op.{('Relu', 'Neg', 'Exp')[k % 3]}(v{k})" for k in range(nodes)]
    text = "\n".join(
        [
            "from onnxscript import opset17 as op, script",
            "from rewriter.pattern import Tensor",
            "@script(default_opset=op)",
            "def deep(v0: Tensor) -> Tensor:",
            *lines,
            f"    return v{nodes}",
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"deep_{nodes}.py")
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        pattern: onnxscript.OnnxFunction[..., Any] = module.deep
        return pattern


def test_a_pattern_of_400_nodes() -> None:
    pattern = deep_pattern(400)
    nodes = "\n".join(f"v{k + 1} = {('Relu', 'Neg', 'Exp')[k % 3]}({'x' if k == 0 else f'v{k}'})" for k in range(403))
    found = find(pattern, body(nodes + "\n y = Neg(v403)"))
    assert [m.root.name for m in found] == ["v400", "v403"]
    assert all(len(m.matched) == 400 for m in found)


def test_the_anchor_does_not_change_what_is_found() -> None:
    """Whichever op is rarest, the matches are the same."""
    nodes = "r = Relu(x)\n s = Softplus(r)\n t = Tanh(s)\n m = Mul(r, t)\n"
    for extra in ("Relu", "Softplus", "Tanh", "Neg"):
        more = "\n".join(f"e{k} = {extra}(m)" for k in range(5))
        found = find(mish_of_relu, body(f"{nodes}{more}\n y = Neg(m)"))
        assert [m.root.name for m in found] == ["m"]


def test_find_leaves_a_model_alone() -> None:
    model = parse(body("r = Relu(x)\n y = Relu(r)"))
    before = model.SerializeToString()
    reading = rewriter.read(model)
    assert len(list(rewriter.find(reading, relu_relu))) == 1
    assert len(list(rewriter.find(reading, siblings))) == 0
    assert isinstance(model, onnx.ModelProto)
    assert model.SerializeToString() == before


def test_attributes_of_many_must_agree() -> None:
    @script(default_opset=op)
    def parts(xs: Annotated[Tensor, Many], axis: int) -> Tensor:
        return op.Concat(op.Softmax(xs, axis=axis), axis=0)

    nodes = "a = Softmax <axis = 1> (x)\n b = Softmax {0} (x)\n y = Concat <axis = 0> (a, b)"
    assert [m["axis"] for m in find(parts, body(nodes.replace("{0}", "<axis = 1>")))] == [1]
    assert count(parts, body(nodes.replace("{0}", ""))) == 0


FILL = np.array([0.5], np.float32)


def test_a_tensor_attribute_is_compared_by_its_elements() -> None:
    @script(default_opset=op)
    def filled(shape: Tensor) -> Tensor:
        return op.Neg(op.ConstantOfShape(shape, value=FILL))

    text = body("a = ConstantOfShape <value = float[1] {0.5}> (s)\n y = Neg(a)", "int64[1] s = {2}")
    assert count(filled, text) == 1
    assert count(filled, text.replace("0.5", "0.25")) == 0
    assert count(filled, text.replace("<value = float[1] {0.5}>", "")) == 0
