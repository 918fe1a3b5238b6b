"""The rules of the gallery on models: every form that they promise to find, and near misses that they must
leave alone."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rewriter
from docs.gallery.concat_dequantize import concat_dequantize
from docs.gallery.constant_if import constant_if
from docs.gallery.conv_batch_norm import fold_batch_norm
from docs.gallery.gelu import erf_gelu
from docs.gallery.gemm import matmul_add_to_gemm
from docs.gallery.layer_norm import layer_normalization
from docs.gallery.q_dq_pair import QdqPairs, qdq_pairs
from docs.gallery.qlinear_conv import qlinear_conv_to_qdq
from docs.gallery.reshape import reshape_chain
from docs.gallery.skip_layer_norm import skip_layer_norm
from docs.gallery.transpose import transposes
from rewriter import RuleSet
from tests import rewriting
from tests.docs.gallery_page import DOCS, MODULES, page
from tests.rewriting import ops, parse


def unchanged(model: onnx.ModelProto, rules: RuleSet, reason: str | None = None) -> None:
    """Nothing is done, and (where a reason is given) the report says why."""
    result = rewriting.check(model, rules)
    assert not result.changed, result.report.rewrites
    assert result.model is model
    reasons = [d.reason for d in result.report.declined]
    if reason is None:
        assert reasons == []
    else:
        assert any(re.search(reason, r) for r in reasons), reasons


# erf-GELU

SCALED = ["d = Div(x, sqrt2)", "d = Mul(x, rsqrt2)", "d = Mul(rsqrt2, x)"]
SUM = ["s = Add(e, one)", "s = Add(one, e)"]
ASSOCIATIONS = [(("x", "s"), ("p", "half")), (("x", "half"), ("p", "s")), (("s", "half"), ("p", "x"))]


def gelu_text(scaled: str, total: str, first: tuple[str, str], last: tuple[str, str], more: str = "") -> str:
    constants = ", ".join(
        f"float {name} = {{{value}}}"
        for name, value in [("half", 0.5), ("one", 1), ("sqrt2", 1.4142135), ("rsqrt2", 0.70710677)]
        if re.search(rf"\b{name}\b", scaled + total + "half")
    )
    return f"""g (float[2,3] x) => (float[2,3] y) <{constants}> {{
        {scaled}
        e = Erf(d)
        {total}
        p = Mul({", ".join(first)})
        y = Mul({", ".join(last)})
        {more}
    }}"""


@pytest.mark.parametrize("association", ASSOCIATIONS)
@pytest.mark.parametrize(("scaled", "total"), [*itertools.product(SCALED, SUM)])
def test_gelu(scaled: str, total: str, association: tuple[tuple[str, str], tuple[str, str]]) -> None:
    first, last = association
    for a, b in itertools.product([first, first[::-1]], [last, last[::-1]]):
        result = rewriting.check(parse(gelu_text(scaled, total, a, b), 20), erf_gelu, rtol=1e-5, atol=1e-6)
        assert rewriting.show(result.model) == ["y = Gelu(x)"]
        assert not result.model.graph.initializer


@pytest.mark.parametrize(
    ("change", "opset"),
    [
        (("Gelu", "Gelu"), 19),  # Gelu came with opset 20
        (("e = Erf(d)", "e = Tanh(d)"), 20),
        (("half = {0.5}", "half = {0.51}"), 20),
        (("sqrt2 = {1.4142135}", "sqrt2 = {1.414}"), 20),
        (("float one = {1}", "float[3] one = {1, 1, 1}"), 20),
        (("Mul(x, s)", "Mul(e, s)"), 20),
    ],
)
def test_no_gelu(change: tuple[str, str], opset: int) -> None:
    text = gelu_text(SCALED[0], SUM[0], ("x", "s"), ("p", "half"))
    assert change[0] in text or opset == 19
    unchanged(parse(text.replace(*change), opset), erf_gelu)


def test_gelu_keeps_what_others_read() -> None:
    text = gelu_text(SCALED[0], SUM[0], ("x", "s"), ("p", "half")).replace(
        "=> (float[2,3] y)", "=> (float[2,3] y, float[2,3] s)"
    )
    result = rewriting.check(parse(text, 20), erf_gelu, rtol=1e-5, atol=1e-6)
    assert ops(result.model) == ["Div", "Erf", "Add", "Gelu"]
    assert {t.name for t in result.model.graph.initializer} == {"one", "sqrt2"}


def test_no_gelu_of_another_rank() -> None:
    """A number times a constant of shape [1] is of shape [1]; its Gelu would not be."""
    text = gelu_text(SCALED[0], SUM[0], ("x", "s"), ("p", "half")).replace("float half", "float[1] half")
    text = text.replace("float[2,3] x", "float x").replace("float[2,3] y", "float[1] y")
    unchanged(parse(text, 20), erf_gelu, r"'y' is of shape \[1\], what would replace it of \[\]")


# LayerNorm


def layer_norm_text(opset: int, square: str, bias: str | None, commuted: bool, eps: str = "float eps = {1e-5}") -> str:
    def add(a: str, b: str) -> str:
        return f"{b}, {a}" if commuted else f"{a}, {b}"

    mean = "<axes = [-1]>(x)" if opset < 18 else "(x, axes)"
    return f"""g (float[2,3,4] x) => (float[2,3,4] y)
        <{eps}, float two = {{2}}, int64[1] axes = {{-1}}, float[4] scale = {{1, 2, 0.5, -1}},
         float[4] bias = {{0.5, 0, -0.5, 1}}> {{
        m = ReduceMean {mean}
        c = Sub(x, m)
        q = {square}
        v = ReduceMean {mean.replace("x", "q", 1) if opset >= 18 else "<axes = [-1]>(q)"}
        ve = Add({add("v", "eps")})
        sd = Sqrt(ve)
        n = Div(c, sd)
        {"t" if bias else "y"} = Mul({add("n", "scale")})
        {f"y = Add({add('t', bias)})" if bias else ""}
    }}"""


@pytest.mark.parametrize("opset", [17, 18, 20, 23])
@pytest.mark.parametrize("square", ["Pow(c, two)", "Mul(c, c)"])
@pytest.mark.parametrize("bias", ["bias", None])
@pytest.mark.parametrize("commuted", [False, True])
def test_layer_norm(opset: int, square: str, bias: str | None, commuted: bool) -> None:
    model = parse(layer_norm_text(opset, square, bias, commuted), opset)
    result = rewriting.check(model, layer_normalization, rtol=1e-5, atol=1e-5)
    expected = "y = LayerNormalization(x, scale, bias)" if bias else "y = LayerNormalization(x, scale)"
    assert rewriting.show(result.model) == [expected]
    (epsilon,) = result.model.graph.node[0].attribute
    assert (epsilon.name, epsilon.f) == ("epsilon", np.float32(1e-5))


@pytest.mark.parametrize(
    ("opset", "change"),
    [
        (13, ("", "")),  # LayerNormalization came with opset 17
        (17, ("axes = [-1]", "axes = [-2]")),
        (17, ("Pow(c, two)", "Mul(c, x)")),
        (17, ("float two = {2}", "float two = {3}")),
        (18, ("axes = {-1}", "axes = {-2}")),
        (18, ("ReduceMean (q, axes)", "ReduceMean <keepdims = 0> (q, axes)")),
    ],
)
def test_no_layer_norm(opset: int, change: tuple[str, str]) -> None:
    text = layer_norm_text(opset, "Pow(c, two)", "bias", False).replace(*change)
    if "keepdims" in change[1]:  # then it is the rows that are scaled
        text = text.replace("float[2,3,4] ", "float[2,4,4] ").replace(
            "float eps = {1e-5}", "float[4] eps = {1, 2, 3, 4}"
        )
        text = (
            text.replace("[2,4,4] x", "[4,4] x")
            .replace("[2,4,4] y", "[4,4] y")
            .replace("float[4] eps = {1, 2, 3, 4}", "float eps = {1e-5}")
        )
    unchanged(parse(text, opset), layer_normalization)


def test_layer_norm_needs_scales_of_one_dimension() -> None:
    text = layer_norm_text(18, "Pow(c, two)", None, False).replace(
        "float[4] scale = {1, 2, 0.5, -1}", "float[3,1] scale = {1, 2, 3}"
    )
    result = rewriting.check(parse(text, 18), layer_normalization)
    assert not result.changed


def test_layer_norm_with_an_unfit_bias_keeps_the_add() -> None:
    text = layer_norm_text(18, "Pow(c, two)", "bias", False).replace(
        "float[4] bias = {0.5, 0, -0.5, 1}", "float[3,1] bias = {1, 2, 3}"
    )
    result = rewriting.check(parse(text, 18), layer_normalization, rtol=1e-5, atol=1e-5)
    assert ops(result.model) == ["LayerNormalization", "Add"]


# Transpose

PERMS = [None, *(list(p) for p in itertools.permutations(range(3)))]


@pytest.mark.parametrize("first", PERMS)
@pytest.mark.parametrize("second", PERMS)
def test_transposes(first: list[int] | None, second: list[int] | None) -> None:
    def attribute(perm: list[int] | None) -> str:
        return "" if perm is None else f"<perm = {perm}>"

    shape = np.transpose(np.transpose(np.empty((2, 3, 4)), first), second).shape
    text = f"""g (float[2,3,4] x) => (float{list(shape)} y) {{
        a = Relu(x)
        b = Transpose {attribute(first)} (a)
        c = Transpose {attribute(second)} (b)
        y = Neg(c)
    }}"""
    result = rewriting.check(parse(text), transposes)
    is_identity = shape == (2, 3, 4)
    assert ops(result.model) == (["Relu", "Neg"] if is_identity else ["Relu", "Transpose", "Neg"])


def test_transposes_between_input_and_output() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = Transpose(x)\n y = Transpose(a) }"
    assert rewriting.show(rewriting.check(parse(text), transposes).model) == ["y = Identity(x)"]


def test_many_transposes() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        perms = [rng.permutation(4).tolist() for _ in range(rng.integers(1, 7))]
        nodes = [f"v{k + 1} = Transpose <perm = {p}> (v{k})" for k, p in enumerate(perms)]
        taps = rng.integers(0, len(perms), 2)
        x = np.empty((2, 3, 4, 5))
        shapes = [x.shape]
        for p in perms:
            x = x.transpose(p)
            shapes.append(x.shape)
        outs = [f"float{list(shapes[-1])} y"] + [f"float{list(shapes[t])} z{k}" for k, t in enumerate(taps)]
        text = f"g (float[2,3,4,5] x) => ({', '.join(outs)}) {{ v0 = Relu(x)\n" + "\n".join(nodes)
        text += f"\n y = Neg(v{len(perms)})\n" + "\n".join(f"z{k} = Abs(v{t})" for k, t in enumerate(taps)) + "}"
        result = rewriting.check(parse(text), transposes)
        assert Counter(ops(result.model))["Transpose"] <= 3


def test_a_transpose_that_says_nothing_known_stays() -> None:
    unchanged(parse("g (float[2,3] x) => (float[3,2] y) { y = Transpose(x) }"), transposes)


# Reshape


def reshape_text(first: str, shape: list[int], out: list[int], allowzero: str = "", more: str = "") -> str:
    return f"""g (float[2,3,4] x) => (float{out} y)
        <int64[{len(shape)}] s = {{{", ".join(map(str, shape))}}}{more}> {{
        a = {first}
        y = Reshape {allowzero} (a, s)
    }}"""


AXES = ", int64[2] inner = {6, 4}, int64[2] minus = {-1, 4}, int64[2] zero = {0, -1}, int64[1] one = {0}"


@pytest.mark.parametrize(
    ("first", "shape", "out", "becomes"),
    [
        ("Reshape(x, inner)", [4, 6], [4, 6], [4, 6]),
        ("Reshape(x, inner)", [-1, 2], [12, 2], [-1, 2]),
        ("Reshape(x, inner)", [0, 2, 2], [6, 2, 2], [6, 2, 2]),
        ("Reshape(x, minus)", [0, 2, 2], [6, 2, 2], [-1, 2, 2]),
        ("Reshape(x, zero)", [0, 12], [2, 12], [0, 12]),
        ("Flatten(x)", [4, 6], [4, 6], [4, 6]),
        ("Unsqueeze(x, one)", [24], [24], [24]),
    ],
)
def test_reshapes(first: str, shape: list[int], out: list[int], becomes: list[int]) -> None:
    result = rewriting.check(parse(reshape_text(first, shape, out, more=AXES)), reshape_chain)
    assert ops(result.model) == ["Reshape"]
    assert result.model.graph.node[0].input[0] == "x"
    stored = {t.name: numpy_helper.to_array(t).tolist() for t in result.model.graph.initializer}
    assert stored[result.model.graph.node[0].input[1]] == becomes


@pytest.mark.parametrize(
    ("first", "shape", "out", "reason"),
    [
        ("Reshape(x, minus)", [0, -1], [6, 4], "two unknown dimensions"),
        ("Flatten(x)", [0, 12], [2, 12], "not known at build time"),
    ],
)
def test_no_reshapes(first: str, shape: list[int], out: list[int], reason: str) -> None:
    unchanged(parse(reshape_text(first, shape, out, more=AXES)), reshape_chain, reason)


def test_reshape_with_allowzero_keeps_it() -> None:
    text = """g (float[0,3] x) => (float[3,0] y) <int64[2] s = {3, 0}, int64[2] inner = {1, 0}> {
        a = Reshape <allowzero = 1> (x, inner)
        [outer] y = Reshape <allowzero = 1> (a, s)
    }"""
    result = rewriting.check(parse(text), reshape_chain, feeds=[{"x": np.zeros((0, 3), np.float32)}])
    assert rewriting.show(result.model) == ["y = Reshape(x, s)"]
    assert result.model.graph.node[0].name == "outer"
    assert result.model.graph.node[0].attribute[0].i == 1


def test_a_run_time_shape_is_no_match() -> None:
    text = """g (float[2,3] x, int64[1] s) => (float[n] y) <int64[2] inner = {3, 2}> {
        a = Reshape(x, inner)
        y = Reshape(a, s)
    }"""
    assert not rewriting.run(parse(text), reshape_chain).changed


def test_three_reshapes() -> None:
    text = """g (float[2,3,4] x) => (float[24] y)
        <int64[2] a = {6, 4}, int64[2] b = {3, -1}, int64[1] c = {-1}> {
        p = Reshape(x, a)
        q = Reshape(p, b)
        y = Reshape(q, c)
    }"""
    result = rewriting.check(parse(text), reshape_chain)
    assert rewriting.show(result.model) == ["y = Reshape(x, c)"]
    assert [t.name for t in result.model.graph.initializer] == ["c"]


# MatMul + Add


def gemm_text(bias: str, commuted: bool = False, a: str = "float[2,3] a", more: str = "") -> str:
    out = "float[2,4] y"
    values = ", ".join("1" for _ in range(int(np.prod([int(d) for d in re.findall(r"\d+", bias)] or [1]))))
    return f"""g ({a}, float[3,4] b) => ({out}{more}) <float{bias} c = {{{values}}}> {{
        p = MatMul(a, b)
        y = Add({"c, p" if commuted else "p, c"})
    }}"""


@pytest.mark.parametrize("bias", ["[4]", "[1]", "", "[1,4]", "[2,1]", "[2,4]", "[1,1]"])
@pytest.mark.parametrize("commuted", [False, True])
def test_gemm(bias: str, commuted: bool) -> None:
    result = rewriting.check(parse(gemm_text(bias, commuted)), matmul_add_to_gemm, rtol=1e-6, atol=1e-6)
    assert rewriting.show(result.model) == ["y = Gemm(a, b, c)"]


def test_a_bias_that_widens_the_product_stays() -> None:
    text = gemm_text("[2,4]", a="float[1,3] a")
    unchanged(parse(text), matmul_add_to_gemm, r"bias of shape \[2, 4\] is not known to fit \[1, 4\]")


def test_a_product_that_others_read_stays() -> None:
    unchanged(
        parse(gemm_text("[4]", more=", float[2,4] p")),
        matmul_add_to_gemm,
        "the output of the MatMul is also a graph output",
    )


def test_a_product_of_rank_three_is_no_match() -> None:
    text = gemm_text("[4]", a="float[2,2,3] a").replace("float[2,4] y", "float[2,2,4] y")
    unchanged(parse(text), matmul_add_to_gemm)


def test_a_symbol_must_agree() -> None:
    text = """g (float[N,3] a, float[3,4] b, float[M,4] c) => (float[K,4] y) {
        p = MatMul(a, b)
        y = Add(p, c)
    }"""
    assert not rewriting.run(parse(text), matmul_add_to_gemm).changed
    assert ops(rewriting.run(parse(text.replace("[M,4]", "[N,4]")), matmul_add_to_gemm).model) == ["Gemm"]


# Conv + BatchNormalization


def conv_bn(
    seed: int,
    opset: int,
    bias: bool,
    rank: int,
    group: int = 1,
    training: bool = False,
    dtype: type = np.float32,
) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    channels, out = 4, 6
    arrays: dict[str, np.ndarray] = {"w": rng.normal(size=(out, channels // group, *[3] * rank)).astype(dtype)}
    if bias:
        arrays["b"] = rng.normal(size=out).astype(dtype)
    for name in ("scale", "shift", "mean"):
        arrays[name] = rng.normal(size=out).astype(dtype)
    arrays["var"] = rng.uniform(0.5, 2, size=out).astype(dtype)
    attributes: dict[str, Any] = {"training_mode": 1} if training else {}
    outputs = ["y", "m1", "v1"] if training else ["y"]
    helper = onnx.helper
    nodes = [
        helper.make_node(
            "Conv",
            ["x", "w", *(["b"] if bias else [])],
            ["c"],
            "the_conv",
            "keep me",
            group=group,
            pads=[1] * (2 * rank),
        ),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "shift", "mean", "var"], outputs, epsilon=0.01, **attributes
        ),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    size = [5] * rank
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [2, channels, *size])],
        [helper.make_tensor_value_info("y", kind, [2, out, *size])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("opset", [9, 13, 14, 17, 21])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rank", "group"), [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_batch_norm(opset: int, bias: bool, rank: int, group: int) -> None:
    model = conv_bn(opset, opset, bias, rank, group)
    result = rewriting.check(model, fold_batch_norm, rtol=1e-4, atol=1e-4)
    (conv,) = result.model.graph.node
    assert (conv.name, conv.doc_string, conv.op_type) == ("the_conv", "keep me", "Conv")
    assert list(conv.attribute) == list(model.graph.node[0].attribute)
    assert len(result.model.graph.initializer) == 2


def test_batch_norm_in_training_mode_stays() -> None:
    model = conv_bn(0, 17, True, 2, training=True)
    result = rewriting.run(model, fold_batch_norm)
    assert not result.changed


def test_a_conv_that_others_read_is_declined() -> None:
    model = conv_bn(0, 17, True, 2)
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", 1, [2, 6, 5, 5]))
    unchanged(model, fold_batch_norm, "'c' would change, but is also a graph output")
    del model.graph.output[1]
    model.graph.node.append(onnx.helper.make_node("Relu", ["c"], ["z"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [2, 6, 5, 5]))
    unchanged(model, fold_batch_norm, "'c' would change, but has consumers outside")


def test_a_shared_weight_is_folded_twice() -> None:
    model = conv_bn(0, 17, True, 2)
    second = [onnx.NodeProto(), onnx.NodeProto()]
    for copy, node in zip(second, model.graph.node, strict=True):
        copy.CopyFrom(node)
        copy.name = ""
    second[0].output[0], second[1].input[0], second[1].output[0] = "c2", "c2", "y2"
    second[1].input[1] = "scale2"
    model.graph.node.extend(second)
    model.graph.initializer.append(numpy_helper.from_array(np.full(6, 2, np.float32), "scale2"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("y2", 1, [2, 6, 5, 5]))
    result = rewriting.check(model, fold_batch_norm, rtol=1e-4, atol=1e-4)
    assert ops(result.model) == ["Conv", "Conv"]
    assert len(result.model.graph.initializer) == 4


# QLinearConv


def qlinear_conv(seed: int, opset: int, bias: bool, per_channel: bool, signed: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    helper = onnx.helper
    kind = np.int8 if signed else np.uint8
    scales = rng.uniform(0.01, 0.02, 6 if per_channel else ()).astype(np.float32)
    arrays: dict[str, np.ndarray | np.generic] = {
        "xs": np.float32(0.05),
        "xz": kind(3),
        "w": rng.integers(-63, 63, (6, 4, 3, 3), np.int8),  # 7 bits: no kernel saturates
        "ws": scales,
        "wz": np.zeros(scales.shape, np.int8),
        "ys": np.float32(0.2),
        "yz": kind(5),
    }
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    if bias:
        arrays["b"] = rng.integers(-2000, 2000, 6, np.int32)
        names.append("b")
    node = helper.make_node("QLinearConv", names, ["y"], "q", pads=[1, 1, 1, 1], strides=[2, 1])
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", element, [1, 4, 6, 6])],
        [helper.make_tensor_value_info("y", element, [1, 6, 3, 6])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("opset", [13, 19, 21])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_qlinear_conv(opset: int, bias: bool, per_channel: bool, signed: bool) -> None:
    model = qlinear_conv(opset, opset, bias, per_channel, signed)
    result = rewriting.check(model, qlinear_conv_to_qdq, atol=1)  # one step, where a sum lies between two
    expected = ["DequantizeLinear"] * (3 if bias else 2) + ["Conv", "QuantizeLinear"]
    assert ops(result.model) == expected
    conv = result.model.graph.node[-2]
    assert {a.name: list(a.ints) for a in conv.attribute} == {"pads": [1, 1, 1, 1], "strides": [2, 1]}


@pytest.mark.parametrize("opset", [10, 12])
def test_no_axis_before_opset_13(opset: int) -> None:
    model = qlinear_conv(0, opset, True, True, False)
    result = rewriting.run(model, qlinear_conv_to_qdq)
    assert not result.changed
    assert result.report.skipped == {
        "qlinear_conv_to_qdq": f"the rule is made for ai.onnx opset 13 or later, the model has {opset}"
    }


# Concat of DequantizeLinear


def concat_text(count: int, zero_point: bool, change: tuple[str, str] = ("", "")) -> str:
    inputs = ", ".join(f"uint8[1,{k + 1}] q{k}" for k in range(count))
    z = ", z" if zero_point else ""
    nodes = "\n".join(f"x{k} = DequantizeLinear(q{k}, s{z})" for k in range(count))
    total = sum(k + 1 for k in range(count))
    return f"""g ({inputs}) => (float[1,{total}] y)
        <float s = {{0.1}}, float s2 = {{0.2}}, uint8 z = {{7}}> {{
        {nodes}
        [the_concat] y = Concat <axis = 1> ({", ".join(f"x{k}" for k in range(count))})
    }}""".replace(*change)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("zero_point", [False, True])
def test_concat(count: int, zero_point: bool) -> None:
    result = rewriting.check(parse(concat_text(count, zero_point)), concat_dequantize)
    assert ops(result.model) == ["Concat", "DequantizeLinear"]
    concat = result.model.graph.node[0]
    assert list(concat.input) == [f"q{k}" for k in range(count)]
    assert concat.name == "the_concat"
    assert result.model.graph.node[1].output[0] == "y"


@pytest.mark.parametrize(
    "change",
    [
        ("x1 = DequantizeLinear(q1, s, z)", "x1 = DequantizeLinear(q1, s2, z)"),
        ("x1 = DequantizeLinear(q1, s, z)", "x1 = DequantizeLinear(q1, s)"),
        ("x1 = DequantizeLinear(q1, s, z)", "x1 = Cast <to = 1> (q1)"),
    ],
)
def test_no_concat(change: tuple[str, str]) -> None:
    assert change[0] in concat_text(3, True)
    unchanged(parse(concat_text(3, True, change)), concat_dequantize)


def test_concat_of_equal_constants() -> None:
    change = ("x1 = DequantizeLinear(q1, s, z)", "x1 = DequantizeLinear(q1, s2, z)")
    text = concat_text(3, True, change).replace("float s2 = {0.2}", "float s2 = {0.1}")
    assert ops(rewriting.check(parse(text), concat_dequantize).model) == ["Concat", "DequantizeLinear"]


def test_no_concat_of_two_integer_types() -> None:
    model = parse(concat_text(2, False).replace("uint8[1,2] q1", "int8[1,2] q1"))
    result = rewriting.run(model, concat_dequantize)
    assert not result.changed
    assert [d.reason for d in result.report.declined] == ["its inputs are not known to be of one integer type"]


def test_concat_whose_inputs_others_read() -> None:
    text = concat_text(2, True).replace("=> (", "=> (float[1,1] x0, ")
    result = rewriting.check(parse(text), concat_dequantize)
    assert ops(result.model) == ["DequantizeLinear", "Concat", "DequantizeLinear"]


# Q -> DQ


def pairs_text(between: list[str], second: str = "s, z") -> str:
    lines = [f"v{k + 1} = {op.replace('_', f'v{k}')}" for k, op in enumerate(between)]
    end = f"v{len(between)}"
    return f"""g (uint8[2,3] q0) => (float[a,b] y)
        <float s = {{0.1}}, float s2 = {{0.2}}, uint8 z = {{7}}, int64[2] shape = {{3, 2}}> {{
        v0 = DequantizeLinear(q0, s, z)
        {chr(10).join(lines)}
        q = QuantizeLinear({end}, {second})
        x = DequantizeLinear(q, {second})
        y = Relu(x)
    }}"""


@pytest.mark.parametrize(
    "between",
    [[], ["Transpose(_)"], ["Reshape(_, shape)"], ["Reshape(_, shape)", "Transpose(_)", "Flatten(_)"]],
)
def test_idempotent_pairs(between: list[str]) -> None:
    result = rewriting.check(parse(pairs_text(between)), qdq_pairs)
    assert ops(result.model) == ["DequantizeLinear", *(b.split("(")[0] for b in between), "Relu"]


@pytest.mark.parametrize(
    ("between", "second"),
    [([], "s2, z"), ([], "s"), (["Sqrt(_)"], "s, z"), (["Reshape(_, shape)", "Sqrt(_)"], "s, z")],
)
def test_pairs_that_round(between: list[str], second: str) -> None:
    model = parse(pairs_text(between, second))
    unchanged(model, qdq_pairs)
    result = rewriting.run(model, QdqPairs(lossy=True))
    assert ops(result.model) == ["DequantizeLinear", *(b.split("(")[0] for b in between), "Relu"]


def test_a_pair_of_huge_scale_stays() -> None:
    model = parse(pairs_text([], "s, z").replace("float s = {0.1}", "float s = {1e35}"))
    result = rewriting.check(model, qdq_pairs)
    assert not result.changed


# Skip connections


def skip_text(axis: int = -1, skip: str = "float[2,3,4]", order: str = "x, r", more: str = "") -> str:
    return f"""g (float[2,3,4] x, {skip} r) => (float[2,3,4] y, float[2,3,4] z)
        <float[4] w = {{1, 2, 0.5, -1}}, float[4] b = {{0.5, 0, -0.5, 1}}{more}> {{
        t = Add({order})
        n = LayerNormalization <axis = {axis}, epsilon = 0.001> (t, w, b)
        y = Relu(n)
        z = Add(t, y)
    }}"""


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("order", ["x, r", "r, x"])
def test_skip_connection(axis: int, order: str) -> None:
    result = rewriting.check(parse(skip_text(axis, order=order)), skip_layer_norm, rtol=1e-5, atol=1e-5)
    assert ops(result.model) == ["SkipLayerNormalization", "Relu", "Add"]
    node = result.model.graph.node[0]
    assert node.domain == "com.microsoft"
    assert list(node.output) == ["n", "", "", "t"]
    assert {e.domain: e.version for e in result.model.opset_import} == {"": 17, "com.microsoft": 1}


def test_skip_connection_whose_sum_is_an_output() -> None:
    text = skip_text().replace("float[2,3,4] z)", "float[2,3,4] t)").replace("z = Add(t, y)", "")
    result = rewriting.check(parse(text), skip_layer_norm, rtol=1e-5, atol=1e-5)
    assert list(result.model.graph.node[0].output) == ["n", "", "", "t"]


def test_skip_connection_read_before_the_norm() -> None:
    """The sum has an early reader, which must come after the new node."""
    text = """g (float[2,3,4] x, float[2,3,4] r) => (float[2,3,4] y, float[2,3,4] z)
        <float[4] b = {0.5, 0, -0.5, 1}> {
        t = Add(x, r)
        z = Relu(t)
        w3 = ReduceMax <axes = [0, 1], keepdims = 0> (r)
        y = LayerNormalization (t, w3, b)
    }"""
    result = rewriting.check(parse(text), skip_layer_norm, rtol=1e-5, atol=1e-5)
    assert sorted(ops(result.model)) == ["ReduceMax", "Relu", "SkipLayerNormalization"]


def test_a_scale_made_of_the_sum_is_a_cycle() -> None:
    text = """g (float[2,3,4] x, float[2,3,4] r) => (float[2,3,4] y, float[2,3,4] t)
        <float[4] b = {0.5, 0, -0.5, 1}> {
        t = Add(x, r)
        w3 = ReduceMax <axes = [0, 1], keepdims = 0> (t)
        y = LayerNormalization (t, w3, b)
    }"""
    unchanged(parse(text), skip_layer_norm, "cycle")


@pytest.mark.parametrize(("axis", "skip"), [(1, "float[2,3,4]"), (-1, "float[2,1,4]")])
def test_no_skip_connection(axis: int, skip: str) -> None:
    text = skip_text(axis, skip)
    if axis == 1:
        text = text.replace("float[4] w = {1, 2, 0.5, -1}", "float[3,4] w = {1,1,1,1,1,1,1,1,1,1,1,1}")
        text = text.replace("float[4] b = {0.5, 0, -0.5, 1}", "float[3,4] b = {1,1,1,1,1,1,1,1,1,1,1,1}")
    unchanged(parse(text), skip_layer_norm, "summands" if axis == -1 else None)


# If


def if_model(condition: str, shared: bool = False) -> onnx.ModelProto:
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    g (float[2] x{", bool c" if condition == "c" else ""}) => (float[2] y, float[2] z)
        <bool yes = {{1}}, bool[1] no = {{0}}> {{
        a = Relu(x)
        p, q = If ({condition}) <
            then_branch = t () => (float[2] r1, float[2] s1) <float[2] k = {{1, 2}}> {{
                a1 = Abs(a)
                r1 = Add(a1, k)
                s1 = Neg(r1)
            }},
            else_branch = e () => (float[2] r2, float[2] s2) {{
                r2 = Mul(a, x)
                s2 = Identity(a)
            }}
        >
        y = Add(p, q)
        z = {"Add(p, a)" if shared else "Neg(q)"}
    }}"""
    return parse(text)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("yes", ["Relu", "Abs", "Add", "Neg", "Add", "Neg"]), ("no", ["Relu", "Mul", "Identity", "Add", "Neg"])],
)
def test_constant_if(condition: str, expected: list[str]) -> None:
    result = rewriting.check(if_model(condition), constant_if)
    assert ops(result.model) == expected


def test_a_run_time_if_stays() -> None:
    unchanged(if_model("c"), constant_if)


def test_an_if_whose_branch_returns_outer_values() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float[2] x) => (float[2] y) <bool yes = {1}> {
        y = If (yes) <
            then_branch = t () => (float[2] r) { r = If (yes) <
                then_branch = tt () => (float[2] r3) { r3 = Identity(x) },
                else_branch = ee () => (float[2] r4) { r4 = Neg(x) }> },
            else_branch = e () => (float[2] r2) { r2 = Neg(x) }
        >
    }"""
    result = rewriting.check(parse(text), constant_if)
    assert ops(result.model) == ["Identity"]


def test_names_of_a_branch_that_exist_outside() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float[2] x) => (float[2] y) <bool yes = {1}, bool no = {0}> {
        p = If (yes) <
            then_branch = t () => (float[2] r) { v = Relu(x)
                r = Neg(v) },
            else_branch = e () => (float[2] r) { r = Neg(x) }>
        q = If (no) <
            then_branch = t () => (float[2] r) { r = Neg(x) },
            else_branch = e () => (float[2] r) { v = Abs(x)
                r = Neg(v) }>
        y = Add(p, q)
    }"""
    result = rewriting.check(parse(text), constant_if)
    assert ops(result.model) == ["Relu", "Neg", "Abs", "Neg", "Add"]


# The gallery as a whole

ALL = (
    erf_gelu + layer_normalization + transposes + reshape_chain + matmul_add_to_gemm + fold_batch_norm
    + qlinear_conv_to_qdq + concat_dequantize + qdq_pairs + skip_layer_norm + constant_if
)  # fmt: skip


def test_every_rule_compiles_with_all_the_others() -> None:
    assert "def bind(" in ALL.source()
    model = parse(gelu_text(SCALED[0], SUM[0], ("x", "s"), ("p", "half")), 20)
    assert ops(rewriter.apply(model, ALL)) == ["Gelu"]


def test_a_transformer_block_with_all_rules() -> None:
    """Rules that feed each other: a decomposed LayerNorm becomes whole, then takes in the skip connection."""
    text = layer_norm_text(18, "Pow(c, two)", "bias", False)
    text = text.replace("(float[2,3,4] x)", "(float[2,3,4] x0, float[2,3,4] r)")
    text = text.replace("m = ReduceMean", "x = Add(x0, r)\n m = ReduceMean")
    text = text.replace("=> (float[2,3,4] y)", "=> (float[2,3,4] y, float[2,3,4] x)")
    result = rewriting.check(parse(text, 18), ALL, rtol=1e-5, atol=1e-5)
    assert ops(result.model) == ["SkipLayerNormalization"]


def test_the_page_shows_every_module_as_it_is() -> None:
    assert sorted(MODULES) == sorted(p.stem for p in (DOCS / "gallery").glob("*.py"))
    assert (DOCS / "gallery.md").read_text() == page(), "write it anew: python -m tests.docs.gallery_page"


OPS = ["Relu", "Neg", "Transpose", "Reshape", "Add", "Mul", "Flatten", "Concat", "MatMul", "Unsqueeze", "QDQ"]


def random_model(seed: int) -> onnx.ModelProto:
    """A random graph of the ops that the gallery's rules are about, all of 12 elements a value."""
    rng = np.random.default_rng(seed)
    helper = onnx.helper
    shapes: dict[str, tuple[int, ...]] = {"x": (3, 4)}
    arrays: dict[str, np.ndarray] = {"s": np.array(0.25, np.float32), "z": np.array(128, np.uint8)}
    nodes: list[onnx.NodeProto] = []

    def node(kind: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        shapes[name] = shape
        return name

    def constant(array: np.ndarray) -> str:
        arrays[name := f"k{len(arrays)}"] = array
        return name

    while len(nodes) < 30:
        value = str(rng.choice([n for n in shapes if n in ([*shapes][-6:])]))
        shape = shapes[value]
        match rng.choice(OPS):
            case "Transpose":
                perm = rng.permutation(len(shape)).tolist()
                node("Transpose", [value], tuple(shape[p] for p in perm), perm=perm)
            case "Reshape":
                shape = [(3, 4), (12,), (2, 6), (2, 3, 2), (1, 12)][rng.integers(5)]
                wish = [-1 if k == 0 and rng.random() < 0.4 else d for k, d in enumerate(shape)]
                node("Reshape", [value, constant(np.array(wish, np.int64))], shape)
            case "Flatten":
                node("Flatten", [value], (shape[0], int(np.prod(shape[1:]))))
            case "Unsqueeze" if len(shape) < 4:
                node("Unsqueeze", [value, constant(np.array([0], np.int64))], (1, *shape))
            case "Add" | "Mul" as kind:
                bias = rng.normal(size=shape[-1:]).astype(np.float32)
                node(str(kind), [value, constant(bias)][:: rng.choice([1, -1])], shape)
            case "MatMul" if len(shape) == 2:
                weight = rng.normal(size=(shape[1], shape[1])).astype(np.float32)
                node("MatMul", [value, constant(weight)], shape)
            case "QDQ":
                node("QuantizeLinear", [value, "s", "z"], shape)
                node("DequantizeLinear", [f"v{len(nodes) - 1}", "s", "z"], shape)
                del shapes[f"v{len(nodes) - 2}"]
            case "Relu" | "Neg" as kind:
                node(str(kind), [value], shape)
    outputs = [*shapes][-3:]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [3, 4])],
        [helper.make_tensor_value_info(name, 1, shapes[name]) for name in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("seed", range(40))
def test_all_rules_on_random_graphs(seed: int) -> None:
    """Gemm may round a sum differently, which a QuantizeLinear makes a step of 0.25; all else is exact."""
    model = random_model(seed)
    rewriting.check(model, ALL.without("matmul_add_to_gemm"))
    rewriting.run(model, ALL)
