"""The judge of backends is judged: conforming units pass, and each spoilt condition is reported.

One unit is written by hand, as a value whose every field can be spoilt; each backend's conforming form of it
differs by what its row of the table says. Where a backend can be asked, it is: on generated units the checker
finds nothing wrong for onnxruntime exactly where ONNX Runtime makes an integer kernel of them.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

import rewriter
import rules
from tests import sessions
from tests.backend_checker import ROWS, units_left_float, violations
from tests.backend_units import units
from tests.qdq_models import build
from tests.qdq_unit import Op, draw

Array = npt.NDArray[np.generic]
X, Y = 2.0**-5, 2.0**-3
CHANNELS = (2.0**-6, 2.0**-7, 2.0**-5, 2.0**-6)
ONE = 2.0**-6


@dataclass(frozen=True)
class Hand:
    """DQ -> op(weight [4, 4] or [4, 4, 1, 1], bias [4]) -> post -> Q."""

    op: Op = "Conv"
    attributes: tuple[tuple[str, Any], ...] = ()
    x_type: str = "uint8"
    y_type: str = "uint8"
    x_scale: float = X
    y_scale: float = Y
    x_zero: int = 0
    y_zero: int = 0
    weight_type: str = "int8"
    weight_scale: float | tuple[float, ...] = CHANNELS
    axis: int = 0
    weight_zero: int | None = 0  # None: absent
    lowest: int = -127
    block: int = 0
    bias: str = "int32"  # int32, int8, float, "input" or none
    bias_factor: float = 1.0  # of its scale against the product
    bias_scale: float = 0.0  # in place of the product
    bias_code: int = 100
    bias_shape: tuple[int, ...] = (4,)
    bias_zero: bool = False
    shared: bool = False
    post: tuple[tuple[str, tuple[float, ...]], ...] = ()
    opset: int = 21
    after: bool = True  # the Q is followed by a DQ
    quantized_weight: bool = True


def model(hand: Hand) -> onnx.ModelProto:
    constants: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)]

    def node(op: str, args: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, args, [output], name=output + "_node", **attributes))
        return output

    def constant(name: str, value: Array) -> str:
        constants[name] = value
        return name

    def parameters(name: str, scale: float, zero: int, dtype: str) -> list[str]:
        return [
            constant(f"{name}_scale", np.array(scale, np.float32)),
            constant(f"{name}_zero", np.array(zero, dtype)),
        ]

    x, y = (
        parameters("x", hand.x_scale, hand.x_zero, hand.x_type),
        parameters("y", hand.y_scale, hand.y_zero, hand.y_type),
    )
    a = node("DequantizeLinear", [node("QuantizeLinear", ["x", *x], "x_q"), *x], "x_dq")
    shape = (4, 4, 1, 1) if hand.op.startswith("Conv") else (4, 4)
    weight_scale = np.array(hand.weight_scale, np.float32)
    if hand.block:
        weight_scale = np.full((shape[0] // hand.block, *shape[1:]), weight_scale)
    codes = np.linspace(hand.lowest, 127, 16).astype(hand.weight_type).reshape(shape)
    if hand.quantized_weight:
        w = [constant("w_q", codes), constant("w_scale", weight_scale)]
        if hand.weight_zero is not None:
            w.append(constant("w_zero", np.full(weight_scale.shape, hand.weight_zero, hand.weight_type)))
        blocks = {"block_size": hand.block} if hand.block else {}
        args = [a, node("DequantizeLinear", w, "w", axis=hand.axis, **blocks)]
    else:
        args = [a, constant("w", codes.astype(np.float32))]
    if hand.bias == "input":
        inputs.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [4]))
        args.append("b")
    elif hand.bias == "float":
        args.append(constant("b", np.ones(hand.bias_shape, np.float32)))
    elif hand.bias != "none":
        scale = np.asarray(np.float32(hand.x_scale) * weight_scale * np.float32(hand.bias_factor))
        if hand.bias_scale:
            scale = np.array(hand.bias_scale, np.float32)
        b = [
            constant("b_q", np.full(hand.bias_shape, hand.bias_code, hand.bias)),
            constant("b_scale", scale),
        ]
        if hand.bias_zero:
            b.append(constant("b_zero", np.zeros(scale.shape, hand.bias)))
        args.append(node("DequantizeLinear", b, "b", axis=max(len(hand.bias_shape) - 1, 0)))
    core = node(hand.op, args, "core", **dict(hand.attributes))
    for i, (op, bounds) in enumerate(hand.post):
        extra = [constant(f"post{i}_{k}", np.array(v, np.float32)) for k, v in enumerate(bounds)]
        core = node(op, [core, *extra], f"post{i}")
    last = node("QuantizeLinear", [core, *y], "y_q")
    if hand.after:
        last = node("DequantizeLinear", [last, *y], "y")
    outputs = [last]
    if hand.shared:
        outputs.append(node("Identity", ["b"], "b_again"))
    graph = helper.make_graph(
        nodes,
        "unit",
        inputs,
        [helper.make_tensor_value_info(o, onnx.TensorProto.UNDEFINED, None) for o in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", hand.opset)], ir_version=10)


S8 = Hand(x_type="int8", y_type="int8")
CONFORMING = {
    "generic": Hand(),
    "onnxruntime": Hand(),
    "qnn": Hand(y_zero=3),
    "tensorrt": replace(S8, bias="float"),
    "openvino": Hand(),
    "vitis-ai": replace(S8, weight_scale=ONE, bias="int8", bias_scale=2.0**-5),
    "nnapi": Hand(),
    "xnnpack": S8,
    "tflite": S8,
}


def gemm(hand: Hand, trans_b: int = 1, **attributes: float) -> Hand:
    return replace(hand, op="Gemm", attributes=(("transB", trans_b), *attributes.items()))


def transposed(hand: Hand, axis: int = 1) -> Hand:
    return replace(hand, op="ConvTranspose", axis=axis)


ALSO_CONFORMING = [
    *((backend, replace(hand, weight_scale=ONE)) for backend, hand in CONFORMING.items()),
    *((backend, replace(hand, bias="none")) for backend, hand in CONFORMING.items()),
    ("generic", replace(Hand(), weight_type="int16", bias="none")),
    ("generic", replace(Hand(), bias="input")),
    ("generic", gemm(Hand(bias_factor=2.0), alpha=4.0, beta=2.0)),
    ("onnxruntime", gemm(Hand())),
    ("onnxruntime", gemm(Hand(axis=1), trans_b=0)),
    ("onnxruntime", replace(Hand(), op="MatMul", axis=1, bias="none")),
    ("onnxruntime", gemm(Hand(bias="none"), alpha=0.5)),
    ("onnxruntime", S8),
    ("onnxruntime", Hand(weight_type="uint8", weight_zero=128, lowest=0)),
    ("onnxruntime", Hand(post=(("Relu", ()),))),
    ("onnxruntime", Hand(post=(("Clip", (-1.0, 255 * Y)),))),
    ("qnn", transposed(Hand())),
    ("qnn", gemm(Hand(weight_scale=ONE))),
    ("qnn", gemm(Hand(weight_scale=ONE, bias_shape=(1, 4)))),
    ("qnn", Hand(x_type="uint16", y_type="uint16")),
    ("tensorrt", transposed(CONFORMING["tensorrt"], 1)),
    ("tensorrt", transposed(CONFORMING["tensorrt"], 0)),
    ("tensorrt", replace(S8, bias="input")),
    ("openvino", replace(S8, weight_zero=3)),
    ("openvino", transposed(Hand(bias="float"))),
    ("xnnpack", Hand(weight_type="uint8", weight_zero=128, lowest=0, weight_scale=ONE)),
    ("tflite", gemm(S8)),
]

TINY = (2.0**-27,) * 4
SPOILT = [
    ("generic", Hand(bias_zero=True), "has a zero point"),
    ("generic", Hand(bias_factor=1.01), "not x_scale * w_scale"),
    ("generic", Hand(bias="float"), "bias is float"),
    ("generic", Hand(opset=12), "below opset 13"),
    ("generic", Hand(weight_scale=(1, 0, 1, 1)), "not all positive"),
    ("generic", Hand(weight_scale=(1, 1, 1)), "do not fit axis 0"),
    ("generic", Hand(bias_scale=1e-3), "its channels differ"),
    ("onnxruntime", Hand(x_type="uint16"), "input is uint16"),
    ("onnxruntime", Hand(y_type="int16"), "output is int16"),
    ("onnxruntime", Hand(y_type="int8", after=False), "output is int8"),
    ("onnxruntime", Hand(weight_type="int16"), "weight is int16"),
    ("onnxruntime", Hand(axis=1), "axis is 1, not 0"),
    ("onnxruntime", gemm(Hand(), trans_b=0), "axis is 0, not 1"),
    ("onnxruntime", Hand(weight_zero=None), "weight has no zero point"),
    ("onnxruntime", Hand(bias="float"), "bias is float"),
    ("onnxruntime", Hand(bias="input"), "bias is not constant"),
    ("onnxruntime", Hand(bias_factor=1.005), "not x_scale * w_scale"),
    ("onnxruntime", Hand(bias_zero=True), "has a zero point"),
    ("onnxruntime", gemm(Hand(bias_factor=0.5), alpha=0.5), "alpha = 0.5"),
    ("onnxruntime", gemm(Hand(bias_factor=2), beta=0.5), "beta = 0.5"),
    ("onnxruntime", Hand(post=(("Relu", ()),), y_zero=9), "Relu does more"),
    ("onnxruntime", Hand(post=(("Clip", (0.0, 6.0)),)), "Clip does more"),
    ("onnxruntime", transposed(Hand(weight_scale=ONE)), "no integer kernel"),
    ("onnxruntime", Hand(block=2, weight_scale=ONE), "in blocks"),
    ("qnn", Hand(x_type="int8"), "input is int8"),
    ("qnn", Hand(y_type="int16"), "output is int16"),
    ("qnn", Hand(weight_type="uint8", lowest=0), "weight is uint8"),
    ("qnn", transposed(Hand(), axis=0), "axis is 0, not 1"),
    ("qnn", Hand(op="MatMul", axis=1, bias="none"), "not per tensor"),
    ("qnn", Hand(weight_zero=3), "zero points are not all 0"),
    ("qnn", Hand(bias="float"), "bias is float"),
    ("qnn", Hand(bias="int8"), "bias is int8"),
    ("qnn", Hand(shared=True), "other consumers"),
    ("qnn", Hand(bias_factor=1.01), "not x_scale * w_scale"),
    ("qnn", gemm(Hand(weight_scale=ONE, bias_factor=2.0), alpha=2.0), "alpha = 2"),
    ("qnn", gemm(Hand(weight_scale=ONE, bias_shape=(4, 1))), "has shape [4, 1]"),
    ("qnn", Hand(weight_scale=TINY), "not above 2^-24"),
    ("qnn", Hand(x_scale=2.0**-70, weight_scale=(2.0**-60,) * 4), "smallest normal"),
    ("qnn", Hand(bias_code=-(2**31) + 9, y_zero=200, x_type="uint16", y_type="uint16"), "y_zp * y_scale"),
    ("tensorrt", replace(CONFORMING["tensorrt"], x_type="uint8"), "input is uint8"),
    ("tensorrt", replace(CONFORMING["tensorrt"], y_type="uint8"), "output is uint8"),
    ("tensorrt", replace(CONFORMING["tensorrt"], x_zero=1), "input's zero point"),
    ("tensorrt", replace(CONFORMING["tensorrt"], y_zero=1), "output's zero point"),
    ("tensorrt", replace(CONFORMING["tensorrt"], x_scale=-1.0), "input's scale is not positive"),
    ("tensorrt", replace(CONFORMING["tensorrt"], axis=1), "axis is 1, not 0"),
    ("tensorrt", replace(CONFORMING["tensorrt"], weight_zero=1), "zero points are not all 0"),
    ("tensorrt", replace(CONFORMING["tensorrt"], weight_type="uint8", lowest=0), "weight is uint8"),
    ("tensorrt", replace(CONFORMING["tensorrt"], bias="int32"), "not float"),
    ("openvino", Hand(x_type="uint16"), "input is uint16"),
    ("openvino", Hand(weight_type="uint8", lowest=0), "weight is uint8"),
    ("openvino", Hand(axis=1), "axis is 1, not 0"),
    ("openvino", Hand(bias="int8", bias_scale=1.0), "neither float nor int32"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], x_scale=0.03), "input's scale is not a power of two"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], y_scale=0.03), "output's scale is not a power of two"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], weight_scale=ONE * 3), "weight's scale is not a power"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], bias_scale=0.03), "bias's scale is not a power of two"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], weight_scale=CHANNELS), "not per tensor"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], weight_zero=1), "zero points are not all 0"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], bias="int32"), "bias is int32"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], bias="float"), "bias is float"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], shared=True), "other consumers"),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], y_scale=2.0**-12), "shift_cut = -1 "),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], y_scale=2.0**6), "shift_cut = 17 "),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], bias_scale=2.0**5), "shift_bias = 16 "),
    ("vitis-ai", replace(CONFORMING["vitis-ai"], bias_scale=2.0**-20), "shift_bias = -9 "),
    ("nnapi", Hand(x_type="int8"), "input is int8"),
    ("nnapi", Hand(weight_zero=1), "zero points are not all 0"),
    ("nnapi", Hand(axis=1), "axis is 1, not 0"),
    ("nnapi", Hand(op="MatMul", axis=1, bias="none"), "axis is 1, not 0"),
    ("nnapi", Hand(op="MatMul", axis=0, bias="none"), "its output channels are 1"),
    ("nnapi", Hand(bias="float"), "bias is float"),
    ("xnnpack", Hand(), "input is uint8 and the weight int8"),
    ("xnnpack", replace(S8, weight_type="uint8", lowest=0), "input is int8 and the weight uint8"),
    ("xnnpack", replace(S8, x_type="int16"), "input is int16"),
    ("xnnpack", replace(S8, weight_zero=1), "zero points are not all 0"),
    ("xnnpack", replace(S8, axis=1), "axis is 1, not 0"),
    ("xnnpack", replace(S8, bias="input"), "bias is not constant"),
    ("tflite", Hand(), "input is uint8"),
    ("tflite", replace(S8, lowest=-128), "code -128"),
    ("tflite", replace(S8, weight_zero=1), "zero points are not all 0"),
    ("tflite", replace(S8, axis=1), "axis is 1, not 0"),
    ("tflite", replace(S8, bias="float"), "bias is float"),
    ("tflite", replace(S8, bias_factor=1.01), "not x_scale * w_scale"),
]


@pytest.mark.parametrize(("backend", "hand"), [*CONFORMING.items(), *ALSO_CONFORMING])
def test_a_conforming_unit_has_no_violation(backend: str, hand: Hand) -> None:
    (unit,) = units(model(hand))
    assert unit.quantized
    assert violations(model(hand), backend) == []


@pytest.mark.parametrize(("backend", "hand", "said"), SPOILT)
def test_a_spoilt_condition_is_reported(backend: str, hand: Hand, said: str) -> None:
    found = violations(model(hand), backend)
    assert any(said in line for line in found), found
    assert all(ROWS[backend].words in line for line in found)


def test_every_backend_has_its_conforming_unit() -> None:
    assert CONFORMING.keys() == ROWS.keys()


@pytest.mark.parametrize("backend", ROWS)
def test_a_float_unit_is_left_float_and_breaks_nothing(backend: str) -> None:
    floating = model(Hand(quantized_weight=False))
    assert violations(floating, backend) == []
    assert [unit.name for unit in units_left_float(floating)] == ["core"]
    assert units_left_float(model(CONFORMING[backend])) == []


@pytest.mark.parametrize("seed", range(8))
def test_onnxruntime_agrees(seed: int) -> None:
    """Nothing is wrong exactly where a session has an integer kernel.

    Left out is what only its other optimizers tell: constants outside of the MatMul's graph ("Missing required
    weight"), a Relu or Clip before a Q whose scale has shape [1] or that has no zero point (dropped in some models and
    not in others), and the Reshape around a MatMul of rank 3.
    """
    rng = np.random.default_rng(3000 + seed)
    asked = 0
    for _ in range(50):
        drawn = draw(rng, 0.2, weight_form="float", chain=1, scale_shape=(), rank=2, batched=False, beside="")
        if drawn.implicit_zero and drawn.post:
            continue
        completed = rewriter.apply(build(drawn, rng), rules.weight_bias)
        if drawn.place == "then, constants outside" or not units(completed):
            continue
        asked += 1
        optimized = sessions.optimized(completed, disabled=("WeightBiasQuantization",))
        fuses = sessions.integer_kernels(optimized, {**sessions.FUSED, **sessions.FLOAT_OUTPUT}) > 0
        found = violations(completed, "onnxruntime")
        assert fuses == (not found), (drawn, found)
    assert asked > 25
