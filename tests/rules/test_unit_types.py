"""Units of every float type: float32, float16, bfloat16, mixed ones of opset 23, and constants that were float64.

`typed_unit` judges the numbers. What a result must look like is written here, from the standard: all floats of a unit
have one type, and a DequantizeLinear gives the type of its scale, or from opset 23 on that of its `output_dtype`.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import rewriter
import rules
from tests import sessions
from tests.backend_units import Linear, units
from tests.rules.one_unit import Coded, One, model, steps
from tests.rules.typed_unit import (
    SHAPES,
    TYPES,
    Array,
    array,
    check,
    completed,
    declined,
    one_unit,
    operands,
    run,
    scales,
)

CONVOLVE = {"Conv": 22, "ConvTranspose": 22}  # bfloat16


# -- one type throughout ---------------------------------------------------------------------------


def since(kind: str, op: str) -> int:
    """The first opset that has such a unit."""
    return 13 if kind == "float32" else CONVOLVE.get(op, 19) if kind == "bfloat16" else 19


STANDARD = [(k, op, v) for k in TYPES for op in SHAPES for v in (13, 19, 21, 23, 24) if v >= since(k, op)]


@pytest.mark.parametrize(("kind", "op", "opset"), STANDARD)
def test_every_type_op_and_opset(kind: str, op: str, opset: int) -> None:
    """New scales have the type of the unit."""
    after = check(one_unit(op, kind, opset, np.random.default_rng(opset)))
    assert scales(after) == {kind}
    assert [verdict.integer for verdict in rules.legal(after, "generic")] == [True]
    assert not any(a.name == "output_dtype" for node in after.graph.node for a in node.attribute)


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("opset", [13, 21])
def test_com_microsoft_takes_float16_too(op: str, opset: int) -> None:
    after = check(one_unit(op, "float16", opset, np.random.default_rng(1), domain="com.microsoft"))
    assert scales(after) == {"float16"}


OPTIONS: tuple[rules.WeightBias, ...] = (
    rules.WeightBias(rounding="nearest"),
    rules.WeightBias(weight_type="uint8", symmetric=False),
    rules.WeightBias(weight_type="int4"),
    rules.WeightBias(weight_type="int16", granularity="tensor"),
    rules.WeightBias(reduce_range=True, scale_search="minmax"),
    rules.WeightBias(bias=False),
    rules.WeightBias(granularity="block", block_size=2),
)


@pytest.mark.parametrize("seed", range(6))
def test_generated_units(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        kind, op = str(rng.choice(TYPES)), str(rng.choice(list(SHAPES)))
        opset = int(rng.choice([21, 23, 24])) if kind != "bfloat16" or op not in CONVOLVE else 23
        x_type = str(rng.choice(["uint8", "int8", "uint16", "int16"]))
        options = OPTIONS[rng.integers(len(OPTIONS))] if rng.random() < 0.5 else rules.weight_bias
        if options.granularity == "block" and op.startswith("Conv"):
            options = rules.weight_bias
        more: dict[str, Any] = {"x_type": x_type, "y_type": x_type, "x_scale": 0.02 if "8" in x_type else 1e-4}
        if op == "Gemm":
            more["attributes"] = {"alpha": 0.75, "beta": 1.5, "transB": int(rng.integers(2))}
            more["b"] = array(rng.normal(size=[(4,), (1, 4), (16, 1), ()][rng.integers(4)]) * 0.3, kind)
        if op.startswith("Gemm") and options.granularity == "block":
            more["attributes"] = {"transB": 1}
        if opset >= 23 and rng.random() < 0.4:
            more["scale_type"] = str(rng.choice(TYPES))
        check(one_unit(op, kind, opset, rng, **more), options)


# -- opset 23: a scale of one type, an output of another -------------------------------------------


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("scale_type", TYPES)
def test_mixed_types(op: str, kind: str, scale_type: str) -> None:
    """New DequantizeLinear nodes have the scale type and the output type of that of x."""
    after = check(one_unit(op, kind, 23, np.random.default_rng(2), scale_type=scale_type))
    assert scales(after) == {scale_type}
    wanted = set() if kind == scale_type else {helper.np_dtype_to_tensor_dtype(np.dtype(kind))}
    new = [n for n in after.graph.node if n.op_type == "DequantizeLinear" and n.name != "a"]
    assert len(new) == (1 if op == "MatMul" else 2)
    for node in new:
        assert {a.i for a in node.attribute if a.name == "output_dtype"} == wanted


@pytest.mark.parametrize("precision", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
def test_a_quantize_linear_with_attributes_of_its_own_stays(precision: int) -> None:
    one = one_unit("Conv", "float16", 23, np.random.default_rng(3))
    before = model(one)
    last = before.graph.node[-1]
    last.attribute.append(helper.make_attribute("precision", precision))
    last.attribute.append(helper.make_attribute("output_dtype", onnx.TensorProto.UINT8))
    after = rewriter.apply(before, rules.weight_bias)
    onnx.checker.check_model(after, full_check=True)
    assert after.graph.node[-1] == last
    assert steps([run(before, one)["y"]], [run(after, one)["y"]]).max() <= 3


# -- weights that are quantized already ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMulAdd"])
@pytest.mark.parametrize("form", ["float", "at another scale"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_bias_of_a_quantized_weight(kind: str, op: str, form: str, per_channel: bool) -> None:
    rng = np.random.default_rng(4)
    b: Array | Coded = array(rng.normal(size=4), kind)
    if form != "float":
        b = Coded(np.array([500, -300, 200, 1000], np.int32), array(1e-3, kind))
    one = one_unit(op, kind, 23, rng, w=coded(op, kind, per_channel, rng), b=b)
    after = check(one)
    (unit,) = units(after)
    assert isinstance(unit.weight, Linear)
    assert isinstance(unit.bias, Linear)
    assert unit.weight.scale is not None
    product = np.float64(array(one.x_scale, kind)) * unit.weight.scale.astype(np.float64)
    assert unit.bias.scale is not None
    assert np.array_equal(unit.bias.scale, array(product, kind))


def coded(op: str, kind: str, per_channel: bool, rng: np.random.Generator, scale: float = 0.003) -> Coded:
    codes = rng.integers(-127, 127, SHAPES[op], np.int8, endpoint=True)
    size = (4,) if per_channel else ()
    zero = np.zeros(size, np.int8)
    return Coded(codes, array(np.full(size, scale), kind), zero, 0 if op == "Conv" else 1)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("alpha", [0.7, 3.0, 1e-4])
def test_alpha_of_a_quantized_weight(kind: str, alpha: float) -> None:
    """It is folded where the scale stays a normal number of its type."""
    rng = np.random.default_rng(5)
    attributes = {"alpha": alpha, "beta": 0.5}
    one = one_unit("Gemm", kind, 21, rng, w=coded("Gemm", kind, True, rng), attributes=attributes)
    if kind == "float16" and alpha < 0.01:
        assert re_said(declined(one), "alpha", "float16")
        return
    (unit,) = units(check(one))
    assert (unit.alpha, unit.beta) == (1, 1)


def re_said(reason: str, *words: str) -> bool:
    return all(word in reason for word in words)


def test_a_quantized_weight_of_another_scale_type() -> None:
    """opset 23: the weight's scale is float32 beside float16 ones, and so is the bias'."""
    rng = np.random.default_rng(6)
    w = coded("Conv", "float32", True, rng)
    assert scales(check(one_unit("Conv", "float16", 23, rng, w=w))) == {"float32"}


# -- float16 is narrow -----------------------------------------------------------------------------


def one_small_channel(op: str, growth: float, opset: int, y_scale: float) -> One:
    """A float16 unit, of which one channel needs a scale that is so many times larger than that of its weights."""
    rng = np.random.default_rng(7)
    w = np.clip(rng.normal(size=SHAPES[op]) / 2, -1, 1)
    axis = 0 if op == "Conv" else 1
    channels = np.moveaxis(w, axis, 0)
    channels[1].flat[0] = 1.0
    channels[1] *= 2.0**-24 / 1e-3 * 127 / growth
    return one_unit(op, "float16", opset, rng, w=array(w, "float16"), x_scale=1e-3, y_scale=y_scale)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMulAdd"])
@pytest.mark.parametrize("opset", [21, 23])
@pytest.mark.parametrize("growth", [0.9, 1.5, 4.0, 50.0])
def test_scales_that_float16_makes_grow(op: str, opset: int, growth: float) -> None:
    """x_scale * w_scale is to be 2^-24 at least: where the output's steps are small, what that costs decides."""
    one = one_small_channel(op, growth, opset, 1e-4)
    if growth > 2 and opset == 21:
        assert re_said(declined(one), "float16", "opset 23")
        return
    assert scales(check(one)) == ({"float32"} if growth > 2 else {"float16"})


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMulAdd"])
@pytest.mark.parametrize("opset", [21, 23])
def test_scales_may_grow_where_nobody_sees_it(op: str, opset: int) -> None:
    """The channel's weights come back as zeros, and no output moves by half a step for that."""
    one = one_small_channel(op, 1000.0, opset, 2e-3)
    after = check(one)
    assert scales(after) == {"float16"}
    before = replace(one, b=array(np.zeros(4), "float16"))  # its own bias would hide it
    y, y_new = run(model(before), before)["y"], run(check(before), before)["y"]
    assert np.abs(y[:, 1].astype(int) - y_new[:, 1].astype(int)).max() <= 1


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_com_microsoft_has_no_other_scales(op: str) -> None:
    rng = np.random.default_rng(16)
    one = one_unit(op, "float16", 23, rng, 1e-4, x_scale=1e-3, domain="com.microsoft")
    assert re_said(declined(one), "float16", "ai.onnx")
    w = coded(op, "float16", True, rng, 1e-4)
    one = one_unit(op, "float16", 23, rng, w=w, x_scale=2e-4, domain="com.microsoft")
    assert re_said(declined(one), "float16", "ai.onnx")


@pytest.mark.parametrize("options", [rules.weight_bias, rules.WeightBias(granularity="block", block_size=2)])
def test_float32_weights_that_are_too_small_for_the_scales_of_x(options: rules.WeightBias) -> None:
    """Steps of 2^-24, the smallest float16 scale, would leave nothing of them."""
    one = one_unit("MatMul", "float32", 23, np.random.default_rng(17), 1e-8, scale_type="float16", y_scale=1e-6)
    assert scales(check(one, options)) == {"float32"}


@pytest.mark.parametrize("options", [rules.weight_bias, rules.WeightBias(granularity="block", block_size=2)])
def test_the_largest_float16(options: rules.WeightBias) -> None:
    """127 steps of a float16 scale are more than it holds; those of a float32 scale are rounded to it."""
    w = array(np.linspace(-65504, 65504, 24).reshape(6, 4), "float16")
    one = one_unit("MatMul", "float16", 21, np.random.default_rng(18), w=w, y_scale=1.0, x_scale=1e-3)
    assert re_said(declined(one, options), "overflow", "float16")
    if options.granularity != "block":
        assert scales(check(replace(one, opset=23), options)) == {"float32"}
    assert scales(check(replace(one, opset=23, scale_type="float32"), options)) == {"float32"}


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_what_would_come_back_as_infinity(granularity: str) -> None:
    """With a zero point the largest weight has 155 steps in place of 154.6: float32 holds them, float16 does not."""
    w = np.random.default_rng(19).normal(size=(6, 4)) * 1000
    w[:2, 0] = 65504, -65504 * 100.4 / 154.6
    one = one_unit(
        "MatMul", "float16", 23, np.random.default_rng(19),
        w=array(w, "float16"), y_scale=1.0, x_scale=1e-3, scale_type="float32",
    )  # fmt: skip
    options = rules.WeightBias(symmetric=False, scale_search="minmax", granularity=granularity)
    assert re_said(declined(one, options), "infinity", "float16")
    check(replace(one, w=array(w / 2, "float16")), options)


def test_scales_of_zeros_may_grow() -> None:
    """The channel's own scale serves the bias alone, and float32 would have a far smaller one."""
    rng = np.random.default_rng(20)
    w = rng.normal(size=SHAPES["Conv"]) * np.array([0.1, 0, 0.1, 0.1]).reshape(4, 1, 1, 1)
    b = array([0.5, 1e-3, 0.2, 0.1], "float16")
    one = one_unit("Conv", "float16", 21, rng, w=array(w, "float16"), b=b, y_scale=1e-4)
    assert scales(check(one)) == {"float16"}


@pytest.mark.parametrize("opset", [21, 23])
@pytest.mark.parametrize("search", ["auto", "minmax"])
def test_no_bias_needs_no_product(opset: int, search: str) -> None:
    """A weight that float16 holds exactly, far below what the product of the scales could."""
    w = array(np.arange(-12, 12).reshape(6, 4) * 2.0**-24, "float16")
    one = one_unit("MatMul", "float16", opset, np.random.default_rng(8), w=w, y_scale=1e-6)
    before, after, _ = completed(one, rules.WeightBias(scale_search=search))
    assert scales(after) == {"float16"}
    assert np.array_equal(operands(before, run(before, one))[0], operands(after, run(after, one))[0])


def test_a_quantized_weight_whose_bias_is_too_fine_for_float16() -> None:
    rng = np.random.default_rng(9)
    w = coded("Conv", "float16", True, rng, 1e-4)
    b = array(rng.normal(size=4) * 1e-3, "float16")
    one = one_unit("Conv", "float16", 21, rng, w=w, b=b, x_scale=2e-4)
    assert re_said(declined(one), "float16", "opset 23")
    (unit,) = units(check(replace(one, opset=23)))
    assert isinstance(unit.bias, Linear)
    assert unit.bias.scale is not None
    assert unit.bias.scale.dtype == np.float32


# -- float64 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("op", ["Conv", "MatMulAdd"])
def test_constants_that_were_float64(kind: str, op: str) -> None:
    """DequantizeLinear gives no float64; a weight and a bias of that type come through a Cast."""
    after = check(one_unit(op, kind, 23, np.random.default_rng(10), cast="float64"))
    assert not any(node.op_type == "Cast" for node in after.graph.node)


def test_float64_is_declined() -> None:
    rng = np.random.default_rng(11)
    one = one_unit("Conv", "float32", 21, rng, y_scale=0.05)
    assert re_said(declined(replace(one, w=array(one.w, "float64"))), "'w'", "double", "float32")
    assert re_said(declined(replace(one, scale_type="float64")), "'x_scale'", "double", "float32")
    assert re_said(declined(replace(one, w=array(one.w, "float16"))), "'w'", "float16", "float")


# -- backends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul", "MatMulAdd"])
def test_onnxruntime_fuses_float32_alone(op: str) -> None:
    """Of all types of the unit and of its scales, in both directions. One form is left out of the claim: a MatMul with
    float16 scales throughout becomes a QLinearMatMul, with Casts of its scales."""
    rng = np.random.default_rng(12)
    for kind in ("float32", "float16"):
        for scale_type in ("float32", "float16"):
            one = one_unit(op, kind, 23, rng, scale_type=scale_type)
            after = rewriter.apply(model(one), rules.weight_bias)
            fuses = sessions.integer_kernels(sessions.optimized(after, disabled=("WeightBiasQuantization",)))
            result = rewriter.run(model(one), rules.WeightBias(backend="onnxruntime"))
            if (kind, scale_type) == ("float32", "float32"):
                assert fuses
                assert result.changed
                continue
            assert re_said(result.report.declined[0].reason, "float32", "float16")
            assert not fuses or (op, kind) == ("MatMul", "float32")


@pytest.mark.parametrize("backend", ["qnn", "nnapi", "xnnpack"])
def test_backends_that_read_float32_scales(backend: str) -> None:
    kind = "int8" if backend == "xnnpack" else "uint8"
    one = one_unit("Conv", "float16", 21, np.random.default_rng(13), x_type=kind, y_type=kind)
    assert re_said(declined(one, rules.WeightBias(backend=backend)), backend, "float32", "float16")


@pytest.mark.parametrize("backend", ["tensorrt", "openvino", "vitis-ai"])
def test_backends_that_do_not(backend: str) -> None:
    one = one_unit(
        "Conv", "float16", 21, np.random.default_rng(14), x_type="int8", y_type="int8",
        x_zero=0, x_scale=2.0**-5, y_scale=2.0**-4,
    )  # fmt: skip
    result = rewriter.run(model(one), rules.WeightBias(backend=backend))
    onnx.checker.check_model(result.model, full_check=True)
    assert result.changed, result.report.declined
    assert scales(result.model) == {"float16"}


def test_com_microsoft_takes_no_blocks() -> None:
    one = one_unit("MatMul", "float16", 21, np.random.default_rng(15), domain="com.microsoft")
    assert "blocks" in declined(one, rules.WeightBias(granularity="block", block_size=2))
