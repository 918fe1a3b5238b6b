"""What `rules.weight_bias` promises of a whole file: sharing, names, declines, and everything else untouched.

Small models in ONNX's textual form, so that a reader sees the graph; the numbers of the results are judged by the
generated models and real files of the neighbouring tests.
"""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, parser

import rewriter
import rules

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
SCALES = "float s = {0.02}, float s2 = {0.04}, uint8 z = {128}"
CONV_WEIGHTS = "float[2,1,1,1] w = {0.5, -1.0}, float[2] b = {0.25, -0.125}"


def parse(body: str, initializers: str = f"{SCALES}, {CONV_WEIGHTS}", head: str = HEAD) -> ModelProto:
    return parser.parse_model(f"{head}\ng (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y) <{initializers}> {{ {body} }}")


UNIT = "d = DequantizeLinear(x, s, z) c = Conv(d, w, b) y = QuantizeLinear(c, s2, z)"
TWO = """
    d = DequantizeLinear(x, s, z)
    c1 = Conv(d, w, b)
    q1 = QuantizeLinear(c1, s2, z)
    d2 = DequantizeLinear(x, {scale}, z)
    c2 = Conv(d2, w, b)
    q2 = QuantizeLinear(c2, s2, z)
    f1 = DequantizeLinear(q1, s2, z)
    f2 = DequantizeLinear(q2, s2, z)
    a = Add(f1, f2)
    y = QuantizeLinear(a, s2, z)
"""


def tensors(model: ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def of_type(model: ModelProto, dtype: type) -> list[str]:
    return [name for name, array in tensors(model).items() if array.dtype == dtype]


def reasons(model: ModelProto, options: rules.WeightBias = rules.weight_bias) -> list[str]:
    """The reasons for which a model comes back as it was."""
    result = rewriter.run(model, options)
    assert result.model is model
    return [declined.reason for declined in result.report.declined]


def test_the_form_of_a_unit() -> None:
    result = rewriter.apply(parse(UNIT), rules.weight_bias)
    onnx.checker.check_model(result, full_check=True)
    conv = next(n for n in result.graph.node if n.op_type == "Conv")
    producers = {o: n for n in result.graph.node for o in n.output}
    weight, bias = producers[conv.input[1]], producers[conv.input[2]]
    assert [weight.op_type, bias.op_type] == ["DequantizeLinear", "DequantizeLinear"]
    held = tensors(result)
    codes, scale, zero_point = (held[name] for name in weight.input)
    assert codes.dtype == np.int8
    assert zero_point.dtype == np.int8
    assert scale.shape == zero_point.shape == (2,)
    assert not zero_point.any()
    assert [a.i for a in weight.attribute if a.name == "axis"] == [0]
    assert [a.i for a in bias.attribute if a.name == "axis"] == [0]
    assert len(bias.input) == 2
    assert held[bias.input[0]].dtype == np.int32
    assert held[bias.input[1]].tobytes() == (np.float32(0.02) * scale).tobytes()
    assert not {"w", "b"} & set(held)


def test_names_derive_from_what_they_replace() -> None:
    held = tensors(rewriter.apply(parse(UNIT), rules.weight_bias))
    assert {"w_quantized", "w_scale", "w_zero_point", "b_quantized", "b_scale"} <= set(held)


def test_names_never_collide() -> None:
    taken = f"{SCALES}, {CONV_WEIGHTS}, float w_scale = {{7}}, float b_quantized = {{8}}"
    body = UNIT.replace("c = Conv", "t = Mul(w_scale, b_quantized) c = Conv").replace("d, w, b", "d, w, b")
    model = parse(body.replace("y = Quant", "w_dq = Add(c, t) y = Quant").replace("(c, s2", "(c, s2"), taken)
    result = rewriter.apply(model, rules.weight_bias)
    onnx.checker.check_model(result, full_check=True)
    names = [t.name for t in result.graph.initializer] + [o for n in result.graph.node for o in n.output]
    assert len(names) == len(set(names))
    assert tensors(result)["w_scale"] == 7


def test_a_shared_weight_is_quantized_once_where_it_ends_up_equal() -> None:
    result = rewriter.apply(parse(TWO.format(scale="s")), rules.weight_bias)
    assert len(of_type(result, np.int8)) == 2  # codes and zero points
    assert len(of_type(result, np.int32)) == 1


def test_a_bias_of_units_with_different_input_scales_gets_a_copy_for_each() -> None:
    result = rewriter.apply(parse(TWO.format(scale="s2")), rules.weight_bias)
    assert len(of_type(result, np.int8)) == 2
    assert len(of_type(result, np.int32)) == 2
    assert not {"w", "b"} & set(tensors(result))


def test_a_float_weight_that_something_else_reads_stays() -> None:
    model = parse(UNIT.replace("y = Quant", "r = ReduceSum(w) y = Quant"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("r", 1, None))
    held = tensors(rewriter.apply(model, rules.weight_bias))
    assert "w" in held
    assert "b" not in held


@pytest.mark.parametrize("ir_version", [3, 4, 13])
def test_ir_versions(ir_version: int) -> None:
    model = parse(UNIT)
    model.ir_version = ir_version
    if ir_version == 3:  # below 4 every initializer is a graph input as well
        for tensor in model.graph.initializer:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(info)
    result = rewriter.apply(model, rules.weight_bias)
    onnx.checker.check_model(result, full_check=True)
    names = {t.name for t in result.graph.initializer}
    inputs = {i.name for i in result.graph.input}
    assert inputs == ({"x"} | names if ir_version == 3 else {"x"})
    assert "w" not in names


DECLINED = {
    "no Q": ("d = DequantizeLinear(x, s, z) c = Conv(d, w, b) r = Abs(c) y = QuantizeLinear(r, s2, z)", "Abs"),
    "second consumer": (f"{UNIT} e = Abs(c) f = Abs(e)", "2 consumers"),
    "run-time scale of x": (
        "k = ReduceMax<keepdims = 0>(w) d = DequantizeLinear(x, k, z) c = Conv(d, w, b) y = QuantizeLinear(c, s2, z)",
        "run time",
    ),
    "no consumer": (
        "d = DequantizeLinear(x, s, z) c = Conv(d, w, b) u = Conv(d, w, b) y = QuantizeLinear(c, s2, z)",
        "no consumer",
    ),
}


@pytest.mark.parametrize(("body", "words"), DECLINED.values(), ids=DECLINED)
def test_what_is_no_unit_is_declined_with_its_reason(body: str, words: str) -> None:
    report = rewriter.run(parse(body), rules.weight_bias).report
    assert any(words in declined.reason for declined in report.declined), report.declined


BAD_VALUES: dict[str, tuple[str, Sequence[float], str]] = {
    "NaN in the weight": ("w", [np.nan, 1], "'w' holds nan at [0, 0, 0, 0]"),
    "infinity in the weight": ("w", [1, -np.inf], "'w' holds -inf at [1, 0, 0, 0]"),
    "NaN in the bias": ("b", [1, np.nan], "'b' holds nan at [1]"),
    "scale of x is zero": ("s", [0], "'s' is 0.0"),
    "scale of x is negative": ("s", [-1], "'s' is -1.0"),
    "scale of x is infinite": ("s", [np.inf], "'s' is inf"),
    "scale of x is NaN": ("s", [np.nan], "'s' is nan"),
}


@pytest.mark.parametrize(("name", "values", "words"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_bad_values_are_declined_by_name(name: str, values: Sequence[float], words: str) -> None:
    model = parse(UNIT)
    tensor = next(t for t in model.graph.initializer if t.name == name)
    array = np.array(values, np.float32).reshape(tuple(tensor.dims))
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    (reason,) = reasons(model)
    assert words in reason


@pytest.mark.parametrize("name", ["w", "b", "s"])
def test_what_the_caller_can_override_is_no_constant(name: str) -> None:
    model = parse(UNIT)
    tensor = next(t for t in model.graph.initializer if t.name == name)
    model.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
    result = rewriter.run(model, rules.weight_bias)
    assert name in tensors(result.model)
    if name == "b":  # a run-time bias stays, and the weight is quantized all the same
        assert "w" not in tensors(result.model)
    else:
        assert result.model is model
        assert "override" in result.report.declined[0].reason


def complete(scale_factor: float) -> ModelProto:
    """A complete unit whose bias has a scale off by a factor."""
    product = float(np.float32(0.02) * np.float32(0.5) * np.float32(scale_factor))
    body = """
        d = DequantizeLinear(x, s, z) wd = DequantizeLinear(wq, ws, wz) bd = DequantizeLinear(bq, bs)
        c = Conv(d, wd, bd) y = QuantizeLinear(c, s2, z)
    """
    stored = "int8[2,1,1,1] wq = {3, -4}, float ws = {0.5}, int8 wz = {0}, int32[2] bq = {100, -200}"
    model = parse(body, f"{SCALES}, {stored}")
    model.graph.initializer.append(numpy_helper.from_array(np.array(product, np.float32), "bs"))
    return model


@pytest.mark.parametrize("factor", [1.0, 1 + 2.0**-23, 1 - 2.0**-23])
def test_a_bias_at_the_product_of_the_scales_is_right(factor: float) -> None:
    model = complete(factor)
    assert rewriter.apply(model, rules.weight_bias) is model


@pytest.mark.parametrize("factor", [1 + 2.0**-20, 1.5, 0.01])
def test_a_bias_at_another_scale_is_requantized_from_its_integers(factor: float) -> None:
    model = complete(factor)
    held, had = tensors(rewriter.apply(model, rules.weight_bias)), tensors(model)
    (bias,) = (array for array in held.values() if array.dtype == np.int32)
    real = had["bq"].astype(np.float64) * float(had["bs"])
    assert bias.tolist() == np.rint(real / float(np.float32(0.02) * np.float32(0.5))).tolist()


def test_alpha_and_beta_become_1() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,2] x) => (uint8[2,2] y)
        <float s = {0.02}, float s2 = {0.04}, uint8 z = {128}, float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> {
            d = DequantizeLinear(x, s, z) c = Gemm<alpha = 0.5, beta = 3.0>(d, w, b) y = QuantizeLinear(c, s2, z)
        }"""
    result = rewriter.apply(parser.parse_model(text), rules.weight_bias)
    gemm = next(n for n in result.graph.node if n.op_type == "Gemm")
    assert {a.name: a.f for a in gemm.attribute} == {"alpha": 1.0, "beta": 1.0}
    held = tensors(result)
    weight = held["w_quantized"].astype(np.float64) * held["w_scale"]
    assert np.abs(weight - 0.5 * np.array([[1, 2], [3, 4]])).max() <= held["w_scale"].max()
    bias = held["b_quantized"].astype(np.float64) * held["b_scale"]
    assert np.abs(bias - 3.0 * np.array([1, 2])).max() <= held["b_scale"].max()


def test_below_opset_13_a_weight_has_one_scale() -> None:
    head = '<ir_version: 8, opset_import: ["" : 12]>'
    held = tensors(rewriter.apply(parse(UNIT, head=head), rules.weight_bias))
    assert held["w_scale"].shape == ()


def test_com_microsoft_units_get_com_microsoft_nodes() -> None:
    head = '<ir_version: 8, opset_import: ["" : 12, "com.microsoft" : 1]>'
    body = UNIT.replace("DequantizeLinear", "com.microsoft.DequantizeLinear")
    body = body.replace("= QuantizeLinear", "= com.microsoft.QuantizeLinear")
    result = rewriter.apply(parse(body, head=head), rules.weight_bias)
    assert {n.domain for n in result.graph.node if n.op_type == "DequantizeLinear"} == {"com.microsoft"}
    assert tensors(result)["w_scale"].shape == (2,)


def test_opset_9_is_said_to_be_too_old() -> None:
    head = '<ir_version: 8, opset_import: ["" : 9, "com.microsoft" : 1]>'
    body = UNIT.replace("DequantizeLinear", "com.microsoft.DequantizeLinear")
    body = body.replace("= QuantizeLinear", "= com.microsoft.QuantizeLinear")
    model = parse(body, head=head)
    result = rewriter.run(model, rules.weight_bias)
    assert result.model is model
    assert "opset 10 or later, the model has 9" in result.report.skipped["conv"]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown backend 'npu'"):
        rules.WeightBias(backend="npu")
    with pytest.raises(ValueError, match="unknown scheme 'fp8'"):
        rules.WeightBias(scheme="fp8")


def test_two_runs_give_the_same_bytes() -> None:
    model = parse(TWO.format(scale="s2"))
    first = rewriter.apply(model, rules.weight_bias).SerializeToString(deterministic=True)
    assert first == rewriter.apply(model, rules.weight_bias).SerializeToString(deterministic=True)


@pytest.mark.parametrize("operands", ["m, b", "b, m"])
def test_the_constant_of_an_add_may_stand_on_either_side(operands: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,2] x) => (uint8[2,2] y)
        <float s = {{0.02}}, float s2 = {{0.04}}, uint8 z = {{128}}, float[2,2] w = {{1, 2, 3, 4}},
         float[2] b = {{1, 2}}> {{
            d = DequantizeLinear(x, s, z) m = MatMul(d, w) a = Add({operands}) y = QuantizeLinear(a, s2, z)
        }}"""
    result = rewriter.apply(parser.parse_model(text), rules.weight_bias)
    onnx.checker.check_model(result, full_check=True)
    add = next(n for n in result.graph.node if n.op_type == "Add")
    assert add.input[operands.split(", ").index("m")] == "m"
    assert "b" not in add.input


def test_the_axis_of_a_bias_is_that_of_its_own_node() -> None:
    """Two nodes may read one bias' codes along different axes."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,2] x) => (uint8[2,2] y, float[2,2] other)
        <float s = {0.02}, float s2 = {0.04}, uint8 z = {128}, float[2,2] w = {1, 2, 3, 4},
         int32[2,2] bq = {1000, 2000, 3000, 4000}, float[2] bs = {0.001, 0.002}> {
            other = DequantizeLinear<axis = 0>(bq, bs)
            d = DequantizeLinear(x, s, z) bd = DequantizeLinear<axis = 1>(bq, bs) m = Gemm(d, w, bd)
            y = QuantizeLinear(m, s2, z)
        }"""
    result = rewriter.apply(parser.parse_model(text), rules.weight_bias)
    gemm = next(n for n in result.graph.node if n.op_type == "Gemm")
    codes, scale = (tensors(result)[v] for n in result.graph.node if gemm.input[2] in n.output for v in n.input)
    real = codes.astype(np.float64) * scale
    assert np.abs(real - np.array([[1.0, 4.0], [3.0, 8.0]])).max() <= scale.max()


def test_a_bias_in_blocks_is_declined() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (uint8[2,2] x) => (uint8[2,2] y)
        <float s = {0.02}, float s2 = {0.04}, uint8 z = {128}, float[2,2] w = {1, 2, 3, 4},
         int32[2] bq = {1000, 2000}, float[1] bs = {0.001}> {
            d = DequantizeLinear(x, s, z) bd = DequantizeLinear<axis = 0, block_size = 2>(bq, bs) m = Gemm(d, w, bd)
            y = QuantizeLinear(m, s2, z)
        }"""
    (reason,) = reasons(parser.parse_model(text))
    assert "blocks" in reason
