"""`rules.activations` on small models: what stays int8 beside the activations, and where codes cross a graph's border.

Constants, graph inputs and outputs, bodies, functions. As in `test_uint8_activations`, every model runs before and
after in ONNX Runtime at ORT_DISABLE_ALL with the same outputs to the bit.
"""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from rules.activations import Uint8Activations
from tests import rewriting, sessions
from tests.rules.test_uint8_activations import FLOAT, INT8, RULES, UINT8, check, made_types, reasons, with_constants

# -- constants ------------------------------------------------------------------------------------------


def test_weights_stay_int8() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,3,4,4] y) {
        q = QuantizeLinear(x, s, zp)
        d = DequantizeLinear(q, s, zp)
        w = DequantizeLinear(wq, s, zp)
        c = Conv(d, w)
        r = QuantizeLinear(c, s, zp)
        y = DequantizeLinear(r, s, zp) }"""
    arrays = {"s": np.float32(0.1), "zp": np.array(0, np.int8), "wq": np.ones((3, 2, 1, 1), np.int8)}
    result = check(with_constants(text, arrays))
    assert made_types(result.model) == {"q": "uint8", "r": "uint8"}
    assert {t.name: t.data_type for t in result.model.graph.initializer} == {
        "s": FLOAT, "zp": INT8, "wq": INT8, "zp_uint8": UINT8,
    }  # fmt: skip


def test_a_weight_of_run_time_stays_int8() -> None:
    text = """g (float[1,2,4,4] x, float[3,2,1,1] w) => (float[1,3,4,4] y) {
        q = QuantizeLinear(w, s, zp)
        d = DequantizeLinear(q, s, zp)
        y = Conv(x, d) }"""
    result = check(with_constants(text, {"s": np.float32(0.1), "zp": np.array(0, np.int8)}))
    assert not result.changed
    assert reasons(result) == ["its codes are a weight of Conv 'y'"]


@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("absent", [False, True])
def test_a_constant_operand_takes_the_type_of_the_others(op: str, absent: bool) -> None:
    text = f"""g (float[2,3] x) => (float[2,3] y) {{
        k = DequantizeLinear(kq, s{"" if absent else ", zp"})
        q = QuantizeLinear(x, s, zp)
        d = DequantizeLinear(q, s, zp)
        a = {op}(d, k)
        r = QuantizeLinear(a, s, zp)
        y = DequantizeLinear(r, s, zp) }}"""
    arrays = {"s": np.float32(0.1), "zp": np.array(3, np.int8), "kq": np.array([-128, 0, 127], np.int8)}
    result = check(with_constants(text, arrays))
    assert result.report.counts == {"quantizer": 2, "constant": 1}
    assert sessions.op_counts(sessions.optimized(result.model))[f"QLinear{op}"] == 1


def test_constant_codes_that_a_float_op_reads_stay() -> None:
    text = "g (float[3] x) => (float[3] y) { k = DequantizeLinear(kq, s)\n y = Add(x, k) }"
    result = check(with_constants(text, {"s": np.float32(0.1), "kq": np.array([-128, 0, 127], np.int8)}))
    assert not result.changed


# -- borders --------------------------------------------------------------------------------------------

UNIT = """g (int8[1,2,4,4] x) => (int8[1,3,4,4] y) {
    d = DequantizeLinear(x, s, zp)
    c = Conv(d, w)
    r = Relu(c)
    y = QuantizeLinear(r, t, tp) }"""
ARRAYS = {
    "s": np.float32(0.1), "zp": np.array(-3, np.int8), "t": np.float32(0.2), "tp": np.array(-128, np.int8),
    "w": np.random.default_rng(0).normal(size=(3, 2, 1, 1)).astype(np.float32),
}  # fmt: skip


def test_graph_inputs_and_outputs_keep_their_type() -> None:
    result = check(with_constants(UNIT, ARRAYS))
    q, dq = "QuantizeLinear", "DequantizeLinear"
    assert rewriting.ops(result.model) == [dq, q, dq, "Conv", "Relu", q, dq, q]
    assert sorted(made_types(result.model).values()) == ["int8", "uint8", "uint8"]
    assert not reasons(result)


def test_borders_can_be_left_alone() -> None:
    result = check(with_constants(UNIT, ARRAYS), Uint8Activations(convert_at_borders=False))
    assert not result.changed
    assert reasons(result) == [
        f"{name!r} enters or leaves the graph as int8; convert_at_borders=True would convert it there" for name in "xy"
    ]


def test_no_conversion_where_nothing_computes() -> None:
    text = """g (int8[4] x) => (float[4] y, int8[4] z) {
        y = DequantizeLinear(x, s, zp)
        e = Exp(y)
        f = Exp(e)
        z = QuantizeLinear(f, t, tp) }"""
    result = check(with_constants(text, ARRAYS))
    assert not result.changed
    assert reasons(result) == [
        f"{name!r} enters or leaves the graph as int8, and no unit would gain from a conversion" for name in "xz"
    ]


def test_codes_that_leave_and_go_on_inside() -> None:
    """q is an output, r a passed-on output, and both are read inside: those read the uint8 codes."""
    text = """g (float[1,2,4,4] x) => (int8[1,2,4,4] q, int8[1,4,4,2] r, float[1,3,4,4] y, float[1,4,4,2] v) {
        q = QuantizeLinear(x, s, zp)
        d = DequantizeLinear(q, s, zp)
        y = Conv(d, w)
        r = Transpose <perm = [0, 2, 3, 1]> (q)
        v = DequantizeLinear(r, s, zp) }"""
    result = check(with_constants(text, ARRAYS))
    readers = [n for n in result.model.graph.node if n.output[0] in ("d", "v") or n.op_type == "Transpose"]
    types = made_types(result.model)
    assert {types[n.input[0]] for n in readers} == {"uint8"}
    assert result.report.rewrites[0].notes == {"tensors": 2, "conversions": 2}


def test_one_input_of_many_readers_is_converted_once() -> None:
    text = """g (int8[1,2,4,4] x) => (float[1,3,4,4] y, float[1,4,4,2] v, int8[1,2,4,4] z) {
        d = DequantizeLinear(x, s, zp)
        y = Conv(d, w)
        r = Transpose <perm = [0, 2, 3, 1]> (x)
        v = DequantizeLinear(r, s, zp)
        z = Identity(x) }"""
    result = check(with_constants(text, ARRAYS))
    assert result.report.rewrites[0].notes == {"tensors": 2, "conversions": 2}
    assert sorted(made_types(result.model).values()) == ["int8", "uint8", "uint8", "uint8"]


@pytest.mark.parametrize(
    ("scale", "why"),
    [(np.float32(1e-38), "so small or large"), (np.float32(1e35), "so small or large"),
     (np.full(2, 0.1, np.float32), "per axis"), (None, "no constant")],
)  # fmt: skip
def test_scales_that_do_not_convert_exactly(scale: Any, why: str) -> None:
    text = UNIT.replace("x)", "x, float s)") if scale is None else UNIT
    zero_point = np.full(np.shape(scale) if scale is not None else (), -3, np.int8)
    model = with_constants(text, ARRAYS | {"s": np.float32(1) if scale is None else scale, "zp": zero_point})
    result = rewriting.run(model, RULES)
    assert result.report.counts == {"quantizer": 1}
    assert len(reasons(result)) == 1
    assert why in reasons(result)[0]


@pytest.mark.parametrize("exponent", [-100, -60, 0, 60, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_conversions_are_exact_for_every_code_and_scale(exponent: int, dtype: type) -> None:
    """error_bounds 7, by way of ONNX Runtime: all codes, mantissas from 1 to 2, at both ends of what is taken."""
    if dtype == np.float16:
        exponent = int(np.clip(exponent, -14, 6))
    rng = np.random.default_rng(0)
    codes = np.arange(-128, 128).astype(np.int8)
    for mantissa in [1.0, *(1 + rng.random(20))]:
        s: Any = np.array(mantissa * 2.0**exponent, dtype)
        for zp in (-128, -1, 0, 127):
            text = """g (int8[256] x) => (uint8[256] y) {
                d = DequantizeLinear(x, s, zp)
                y = QuantizeLinear(d, s, up) }"""
            arrays = {"s": s, "zp": np.array(zp, np.int8), "up": np.array(zp + 128, np.uint8)}
            (y,) = sessions.run(with_constants(text, arrays, 19), {"x": codes})
            np.testing.assert_array_equal(y.astype(int), codes.astype(int) + 128)


# -- bodies and functions -------------------------------------------------------------------------------


def graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    bodies = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [graph, *(inner for body in bodies for inner in graphs(body))]


def types_of_q(model: onnx.ModelProto) -> list[int]:
    """The type of every zero point of every Q, wherever it lies."""
    found = []
    for node in sessions.nodes(model.graph):
        if node.op_type == "QuantizeLinear":
            kinds = {t.name: t.data_type for graph in graphs(model.graph) for t in graph.initializer}
            found.append(kinds[node.input[2]])
    return found


def if_model(before: str, then: str, outputs: str = "float[2,3] y") -> onnx.ModelProto:
    text = f"""g (float[2,3] x, bool c) => ({outputs}) {{
        {before}
        y = If (c) <then_branch = t () => (float[2,3] a) {{ {then} }},
                    else_branch = e () => (float[2,3] o) {{ o = Identity(x) }}> }}"""
    return with_constants(text, {"s": np.float32(0.02), "zp": np.array(9, np.int8)})


def test_in_a_body() -> None:
    result = check(if_model("", "q = QuantizeLinear(x, s, zp)\n r = Identity(q)\n a = DequantizeLinear(r, s, zp)"))
    assert types_of_q(result.model) == [UINT8]


def test_codes_of_the_outer_graph_read_in_a_body() -> None:
    """They keep their type on the way in; a unit inside converts for itself."""
    then = "d = DequantizeLinear(q, s, zp)\n a = Add(d, d)"
    outside = "q = QuantizeLinear(x, s, zp)\n f = DequantizeLinear(q, s, zp)\n g = MatMul(f, w)"
    model = if_model(outside, then, "float[2,3] y, float[2,2] g")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    result = check(model)
    assert sorted(types_of_q(result.model)) == [UINT8, INT8]
    assert len(reasons(result)) == 1


def test_a_unit_in_a_body_on_codes_of_the_outer_graph() -> None:
    then = """d = DequantizeLinear(q, s, zp)
        m = MatMul(d, w)
        r = QuantizeLinear(m, s, zp)
        a = DequantizeLinear(r, s, zp)"""
    model = if_model("q = QuantizeLinear(x, s, zp)", then)
    model.graph.initializer.append(numpy_helper.from_array(np.eye(3, dtype=np.float32), "w"))
    result = check(model)
    assert result.report.counts == {"dequantizer": 1, "quantizer": 1}
    assert sorted(types_of_q(result.model)) == [UINT8, UINT8, INT8]


def test_codes_that_a_body_returns_keep_their_type() -> None:
    text = """g (float[2,3] x, bool c) => (float[2,3] y) {
        q = If (c) <then_branch = t () => (int8[2,3] a) { m = MatMul(x, w)\n a = QuantizeLinear(m, s, zp) },
                    else_branch = e () => (int8[2,3] o) { o = QuantizeLinear(x, s, zp) }>
        y = DequantizeLinear(q, s, zp) }"""
    arrays = {"s": np.float32(0.02), "zp": np.array(9, np.int8), "w": np.eye(3, dtype=np.float32)}
    result = check(with_constants(text, arrays))
    assert result.report.counts == {"quantizer": 1}
    assert sorted(types_of_q(result.model)) == [UINT8, INT8, INT8]


def test_in_a_function() -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "local": 1]>
        g (float[2,3] x, float[4] z) => (float[2,3] y, float[4] w) { y = local.F(x)\n w = local.F(z) }
        <domain: "local", opset_import: ["": 17]>
        F (x) => (y) {
            s = Constant <value = float {0.02}> ()
            zp = Constant <value = int8 {9}> ()
            q = QuantizeLinear(x, s, zp)
            r = Identity(q)
            y = DequantizeLinear(r, s, zp) }"""
    result = check(rewriting.parse(text))
    (function,) = result.model.functions
    constants = [n.attribute[0].t for n in function.node if n.op_type == "Constant"]
    assert sorted(t.data_type for t in constants) == [FLOAT, UINT8]


def test_codes_in_a_function_from_its_caller() -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "local": 1]>
        g (int8[2,3] x) => (float[2,3] y) <float s = {0.02}, int8 zp = {9}> { y = local.F(x, s, zp) }
        <domain: "local", opset_import: ["": 17]>
        F (x, s, zp) => (y) { d = DequantizeLinear(x, s, zp)\n y = Add(d, d) }"""
    assert not check(rewriting.parse(text)).changed  # nothing is known of what the caller passes


def test_one_zero_point_of_many_tensors_is_made_once() -> None:
    text = """g (float[2] x) => (float[2] y) {
        a = QuantizeLinear(x, s, zp)\n b = DequantizeLinear(a, s, zp)\n e = Exp(b)
        c = QuantizeLinear(e, s, zp)\n y = DequantizeLinear(c, s, zp) }"""
    result = check(with_constants(text, {"s": np.float32(0.02), "zp": np.array(9, np.int8)}))
    assert [t.name for t in result.model.graph.initializer] == ["s", "zp_uint8"]
