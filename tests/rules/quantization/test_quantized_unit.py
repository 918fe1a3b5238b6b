"""Units of each operator in ONNX Runtime: the float one against the one with DequantizeLinear.

A linear operator bounds its own error: |y - y'| <= op(|x|, E) + B, where E and B are the bounds of the
weight's and the bias' elements. So the operator itself, run on those, says whether axis, groups, shapes and
factors are right; a scale on the wrong axis or a bias of the wrong group breaks it by orders of magnitude.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import rules.quantization as qu
from rules.quantization.accumulator import bias_limit
from rules.quantization.tensor import along

Array = NDArray[Any]
Part = Array | qu.QuantizedTensor
X_SCALE = np.float32(0.02)


def run(op: str, x: Array, w: Part, b: Part | None, **attributes: Any) -> Array:
    """op(x, w, b) as ONNX Runtime computes it, w and b behind a DequantizeLinear where they are quantized."""
    nodes, initializers, names = [], [], ["x"]
    for name, value in (("w", w), ("b", b)):
        if isinstance(value, qu.QuantizedTensor):
            parts = {"q": value.codes, "scale": value.scale, "zero": value.zero_point}
            initializers += [numpy_helper.from_array(np.array(v), f"{name}_{k}") for k, v in parts.items()]
            axis: dict[str, Any] = {} if value.axis is None else {"axis": value.axis}
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_{k}" for k in parts], [name], **axis))
        elif value is not None:
            initializers.append(numpy_helper.from_array(np.array(value), name))
        names += [name] if value is not None else []
    if op == "MatMul" and b is not None:
        nodes += [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["y"])]
    else:
        nodes.append(helper.make_node(op, names, ["y"], **attributes))
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    graph = helper.make_graph(nodes, "unit", ports[:1], ports[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (y,) = session(model, "ORT_DISABLE_ALL").run(None, {"x": x})
    return np.asarray(y)


def session(model: onnx.ModelProto, level: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def check(
    op: str,
    x: Array,
    w: Array,
    b: Array | None,
    unit: qu.QuantizedUnit,
    alpha: float = 1,
    beta: float = 1,
    **attributes: Any,
) -> None:
    factors = {"alpha": alpha, "beta": beta} if (alpha, beta) != (1, 1) else {}
    wanted = run(op, x, w, b, **attributes, **factors)
    got = run(op, x, unit.weight, unit.bias, **attributes)
    element = qu.element_bound(w.astype(float) * alpha, unit.weight).astype(np.float32)
    bias = None if unit.bias is None else qu.bias_bound(unit.bias).astype(np.float32)
    bound = run(op, np.abs(x), element, bias, **attributes)
    b_size = None if b is None else np.abs(b * np.float32(beta))
    size = run(op, np.abs(x), np.abs(w * np.float32(alpha)), b_size, **attributes)
    assert got.shape == wanted.shape
    assert np.all(np.abs(got - wanted) <= bound * 1.0001 + size * 1e-5)


def spread_channels(rng: np.random.Generator, shape: tuple[int, ...], axis: int) -> Array:
    """Weights whose channels differ by 2^12 in range, so that a scale of the wrong channel shows."""
    factors = np.ldexp(1.0, rng.integers(-6, 7, size=shape[axis]))
    return np.asarray(rng.normal(size=shape) * along(factors, len(shape), axis), np.float32)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize("bias", [True, False])
def test_conv(rng: np.random.Generator, group: int, bias: bool) -> None:
    w = spread_channels(rng, (12, 6 // group, 3, 2), 0)
    b = np.ldexp(rng.normal(size=12), rng.integers(-6, 7, size=12)).astype(np.float32) if bias else None
    unit = qu.quantize_unit(w, b, X_SCALE, axis=0)
    assert unit.weight.scale.shape == (12,)
    check("Conv", rng.normal(size=(2, 6, 5, 5)).astype(np.float32), w, b, unit, group=group)


@pytest.mark.parametrize("group", [1, 2, 3])
def test_conv_transpose(rng: np.random.Generator, group: int) -> None:
    w = spread_channels(rng, (6, 4, 3, 3), 1)
    b = np.ldexp(rng.normal(size=4 * group), rng.integers(-6, 7, size=4 * group)).astype(np.float32)
    unit = qu.quantize_unit(w, b, X_SCALE, axis=1, repeat=group)
    assert unit.bias is not None
    assert unit.weight.scale.shape == (4,)
    assert unit.bias.scale.shape == (4 * group,)
    check("ConvTranspose", rng.normal(size=(1, 6, 4, 4)).astype(np.float32), w, b, unit, group=group)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (), (1,), (1, 1), (3, 1), (3, 5)])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (-0.5, 3.0), (0.1, 0.0)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_gemm(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    trans: int,
    factors: tuple[float, float],
    per_channel: bool,
) -> None:
    axis = 0 if trans else 1
    w = spread_channels(rng, (5, 7) if trans else (7, 5), axis)
    b = np.asarray(rng.normal(size=shape), np.float32)
    alpha, beta = (float(np.float32(f)) for f in factors)
    unit = qu.quantize_unit(w, b, X_SCALE, axis=axis if per_channel else None, alpha=alpha, beta=beta)
    check("Gemm", rng.normal(size=(3, 7)).astype(np.float32), w, b, unit, alpha, beta, transB=trans)


@pytest.mark.parametrize(
    ("w_shape", "axis", "b_shapes"),
    [
        ((7, 5), 1, [(5,), (), (1,), (1, 5), (3, 1), (2, 1, 1), (2, 3, 5), (4, 1, 1, 5)]),
        ((7, 5), -1, [(5,)]),
        ((7, 1), 1, [(5,), (), (1,), (3, 1), (4, 1, 1, 5)]),
        ((2, 7, 5), None, [(5,), (), (2, 1, 1), (4, 1, 1, 5)]),
        ((7,), None, [(), (1,), (3,), (2, 1), (4, 2, 3)]),
    ],
)
def test_matmul(
    rng: np.random.Generator, w_shape: tuple[int, ...], axis: int | None, b_shapes: list[tuple[int, ...]]
) -> None:
    x, w = rng.normal(size=(2, 3, 7)).astype(np.float32), rng.normal(size=w_shape).astype(np.float32)
    for shape in b_shapes:
        b = np.asarray(rng.normal(size=shape), np.float32)
        check("MatMul", x, w, b, qu.quantize_unit(w, b, X_SCALE, axis=axis))


def test_bias_that_overflows_in_one_group_raises_the_shared_scale() -> None:
    w = np.full((4, 2, 1, 1), 1e-9, np.float32)
    b = np.array([1.0, 1.0, 5e3, 1.0], np.float32)
    unit = qu.quantize_unit(w, b, X_SCALE, axis=1, repeat=2)
    alone = qu.quantize_unit(w, None, X_SCALE, axis=1, repeat=2)
    assert unit.bias is not None
    assert unit.raised == 2  # 1.0 does not fit either: 1 / (0.02 * 1e-9 / 127) is 6e12
    assert unit.weight.scale[0] > unit.weight.scale[1] > alone.weight.scale[1]
    assert abs(int(unit.bias.codes[2])) <= bias_limit(2)
    np.testing.assert_allclose(qu.dequantize(unit.bias), b, rtol=1e-5)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_a_full_accumulator_does_not_wrap(level: str) -> None:
    """The bias leaves room for the products: added to 2^31 - 1, they would change the sign of the sum.

    Codes of 64, because kernels without VNNI saturate the sum of two larger products.
    """
    depth = 300
    w = np.full((1, depth, 1, 1), 1e-9, np.float32)
    unit = qu.quantize_unit(w, np.array([1e3], np.float32), X_SCALE, axis=0)
    assert unit.bias is not None
    assert int(unit.bias.codes[0]) > 2**30
    largest = replace(unit.weight, codes=np.full(w.shape, 64, np.int8))
    assert qu.accumulator_fits(largest.codes.reshape(1, depth), unit.bias.codes, 255).all()
    x = np.full((1, depth, 1, 1), 255, np.uint8)
    (y,) = session(qdq_conv(largest, unit.bias), level).run(None, {"x": x})
    assert y.item() == 200


def qdq_conv(weight: qu.QuantizedTensor, bias: qu.QuantizedTensor) -> onnx.ModelProto:
    """A full QDQ Conv of uint8, which ONNX Runtime fuses; the output's scale is 5."""
    constants = {
        "xs": X_SCALE, "xz": np.uint8(0), "ys": np.float32(5), "yz": np.uint8(0),
        "wq": weight.codes, "ws": weight.scale, "wz": weight.zero_point, "bq": bias.codes, "bs": bias.scale,
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["w"], axis=0),
        helper.make_node("DequantizeLinear", ["bq", "bs"], ["b"], axis=0),
        helper.make_node("Conv", ["xd", "w", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.UINT8, [1, None, 1, 1]) for n in "xy"]
    tensors = [numpy_helper.from_array(np.array(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "conv", ports[:1], ports[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_zero_channel_shared_by_groups_keeps_its_smaller_bias() -> None:
    b = np.array([1.0, 1e-3, -0.3], np.float32)
    unit = qu.quantize_unit(np.zeros((3, 1, 2, 2), np.float32), b, X_SCALE, axis=1, repeat=3)
    assert unit.bias is not None
    assert np.all(np.abs(qu.dequantize(unit.bias).astype(float) - b) <= 2.0**-22)


def test_channels_that_fit_keep_their_scale() -> None:
    w = np.array([[1e-9], [0.5]], np.float32)
    unit = qu.quantize_unit(w, np.array([1.0, 1.0], np.float32), X_SCALE, axis=0)
    assert unit.raised == 1
    assert unit.weight.scale[1] == qu.symmetric_scale(np.float32(0.5))


@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((3, 0), 0), ((0,), None), ((2, 0, 3), 1)])
def test_empty_weights(shape: tuple[int, ...], axis: int | None) -> None:
    channels = () if axis is None else (shape[axis],)
    unit = qu.quantize_unit(np.zeros(shape, np.float32), np.ones(channels, np.float32), X_SCALE, axis=axis)
    assert unit.weight.codes.shape == shape
    assert unit.weight.scale.shape == channels
    assert unit.bias is not None
    np.testing.assert_allclose(qu.dequantize(unit.bias), np.ones(channels), rtol=1e-6)


def test_one_element_and_no_bias_and_all_zero() -> None:
    unit = qu.quantize_unit(np.array([[0.3]], np.float32), None, X_SCALE, axis=None)
    assert unit.weight.codes.tolist() == [[127]]
    assert unit.bias is None
    zero = qu.quantize_unit(np.zeros((2, 2), np.float32), None, X_SCALE, axis=0)
    assert zero.weight.scale.tolist() == [1, 1]
    idle = qu.quantize_unit(np.array([[0.0], [127.0], [12.7]], np.float32), None, X_SCALE, axis=0)
    assert idle.weight.scale[0] == 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_other_float_types(rng: np.random.Generator, dtype: type) -> None:
    w: Array = rng.normal(size=(4, 9)).astype(dtype)
    b: Array = rng.normal(size=4).astype(dtype)
    unit = qu.quantize_unit(w, b, X_SCALE, axis=0)
    assert np.all(np.abs(qu.dequantize(unit.weight) - w) <= qu.element_bound(w, unit.weight))


MAX = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("w", "b", "x_scale", "reason"),
    [
        ([[1, np.nan], [np.inf, 1]], [0, 0], 0.1, r"weight\[0, 1\] is nan"),
        ([[1, 1], [-np.inf, 1]], [0, 0], 0.1, r"weight\[1, 0\] is -inf"),
        ([[1, 1], [1, 1]], [0, np.nan], 0.1, r"bias\[1\] is nan"),
        ([[1, MAX], [1, 1]], [0, 0], 0.1, "overflow float32 on the way back"),
        ([[1, 1], [1, 1]], [0, 0, 0], 0.1, r"shape \[3\] does not fit 2 output channels"),
        ([[1, 1], [1, 1]], [0, 0], 0.0, "not one positive finite number"),
        ([[1, 1], [1, 1]], [0, 0], np.nan, "not one positive finite number"),
        ([[1, 1], [1, 1]], [0, 0], [0.1, 0.1], "not one positive finite number"),
        ([[1, 1], [1, 1]], [0, 1e38], 1e-20, "no weight scale makes a bias of magnitude 1e[+]38 fit"),
        ([[1e30, 1], [1, 1]], [0, 0], 1e20, "no weight scale"),
        ([[1, 1], [1, 1]], [0, 3e38], 1e-8, "no weight scale"),
    ],
)
def test_not_quantizable(w: Any, b: Any, x_scale: Any, reason: str) -> None:
    with pytest.raises(qu.NotQuantizable, match=reason):
        qu.quantize_unit(np.array(w, np.float32), np.array(b, np.float32), x_scale, axis=0)


def test_factors_must_be_finite() -> None:
    ones = np.ones((2, 2), np.float32)
    with pytest.raises(qu.NotQuantizable, match="alpha is nan"):
        qu.quantize_unit(ones, ones[0], X_SCALE, axis=0, alpha=float("nan"))
    with pytest.raises(qu.NotQuantizable, match="beta is inf"):
        qu.quantize_unit(ones, ones[0], X_SCALE, axis=0, beta=float("inf"))


def test_first_bad_in_any_block_and_layout() -> None:
    w = np.zeros((3, 1 << 20), np.float32)
    assert qu.first_bad(w) is None
    assert qu.first_bad(np.zeros((0, 3), np.float32)) is None
    w[2, 7] = np.inf
    assert qu.first_bad(w) == (2, 7)
    assert qu.first_bad(w.T) == (7, 2)
    w[1, 9] = np.nan
    assert qu.first_bad(w) == (1, 9)


def test_bias_for_a_weight_that_is_quantized() -> None:
    w_scale = np.array([0.1, 0.2], np.float32)
    q = qu.quantize_bias_for(np.array([1, 2, 3, 4], np.float32), X_SCALE, w_scale, beta=2.0, repeat=2)
    np.testing.assert_array_equal(q.scale, np.tile(w_scale * X_SCALE, 2))
    assert q.codes.tolist() == [1000, 1000, 3000, 2000]
    scalar = qu.quantize_bias_for(np.array([1, 2], np.float32), X_SCALE, np.float32(0.1))
    assert (scalar.axis, scalar.scale.shape) == (None, ())
    with pytest.raises(qu.BiasOverflow, match=r"bias\[1\] is 5e[+]10 steps, beyond int32") as caught:
        qu.quantize_bias_for(np.array([1, 1e8], np.float32), X_SCALE, np.float32(0.1))
    assert caught.value.index == (1,)
    with pytest.raises(qu.NotQuantizable, match="not a normal float32"):
        qu.quantize_bias_for(np.array([0], np.float32), np.float32(1e-30), np.float32(1e-20))


def test_requantized_bias_per_channel() -> None:
    """Zero point and old scale along an axis; the judge is the value itself, which both grids hold."""
    codes = np.array([[10, -20], [30, 40]], np.int8)
    old, zero = np.array([0.5, 0.25], np.float32), np.array([2, -4], np.int8)
    q = qu.requantize_bias(codes, old, zero, 0.25, np.array([0.5, 1], np.float32), old_axis=1, axis=1)
    np.testing.assert_array_equal(qu.dequantize(q), (codes.astype(float) - zero) * old)


@pytest.mark.parametrize(
    ("scale", "w_scale", "right"),
    [
        ([0.002], 0.1, True),
        (0.002, [0.1, 0.1], True),
        ([0.002, 0.004], [0.1, 0.2], True),
        ([0.002, 0.002], [0.1, 0.2], False),
        ([1, 2, 3], [0.1, 0.2], False),
        (np.nan, 0.1, False),
        (0, 0, False),
    ],
)
def test_shapes_of_a_right_bias_scale(scale: Any, w_scale: Any, right: bool) -> None:
    assert qu.bias_is_right(np.asarray(scale, np.float32), X_SCALE, np.asarray(w_scale, np.float32)) is right


def test_tensor_refuses_parts_that_do_not_agree() -> None:
    codes, scale = np.zeros((2, 3), np.int8), np.ones(3, np.float32)
    for parts in [
        (codes, scale, np.zeros(3, np.int8), 0),
        (codes, scale, np.zeros(3, np.int32), 1),
        (codes, scale, np.zeros((), np.int8), 1),
        (codes, scale.astype(float), np.zeros(3, np.int8), 1),
        (codes.astype(np.float32), scale, np.zeros(3, np.float32), 1),
    ]:
        with pytest.raises(ValueError, match="must"):
            qu.QuantizedTensor(*parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [0, -1, np.nan, np.inf])
def test_given_scale_must_be_positive(scale: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        qu.quantize_with_scale(np.ones(3, np.float32), scale, None)


def test_weights_for_a_given_scale_must_be_finite() -> None:
    with pytest.raises(qu.NotQuantizable, match=r"weight\[1\] is nan"):
        qu.quantize_with_scale(np.array([1, np.nan], np.float32), np.float32(1), None)


def test_no_big_temporaries() -> None:
    w = np.zeros((64, 1 << 18), np.float32)  # 64 MiB
    w[:, 0] = 1
    for axis, alpha in [(0, 1.0), (None, 2.0), (1, 1.0)]:
        scale = np.ones(() if axis is None else w.shape[axis], np.float32)
        tracemalloc.start()
        qu.quantize_with_scale(w, scale, axis, alpha=alpha)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak - w.size < 8 << 20


@pytest.mark.parametrize("w", [np.array([[0.5], [-1.3], [2.1]]), np.array([[0.2, 0, -0.2], [0.7, 0.7, 0], [0, -1, 1]])])
def test_a_coarse_grid_does_not_cost_the_bias(w: NDArray[Any]) -> None:
    """One weight a channel, and ternary weights: exact, and the bias' step at most twice that of the range's scale."""
    w = w.astype(np.float32)
    x_scale = np.float32(0.05)
    b = np.array([0.011, -0.02, 0.004], np.float32)
    unit = qu.quantize_unit(w, b, x_scale, axis=0, scheme=qu.Scheme())
    assert unit.bias is not None
    assert np.array_equal(qu.dequantize(unit.weight), w)
    of_range = x_scale * np.abs(w).max(axis=1).astype(np.float64) / 127
    assert (unit.bias.scale <= 2 * of_range).all()
    assert (np.abs(qu.dequantize(unit.bias) - b) <= of_range * (1 + 2.0**-20)).all()
