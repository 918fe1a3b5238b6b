"""`scheme="onnxruntime"` against ONNX Runtime's own optimizer, bit for bit, on hostile and broken values
too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import rules.quantization as qu
from tests.ort_optimizer import optimize_with_only, optimizer_names, weight_bias_quantization

Array = NDArray[Any]
KINDS = ["normal", "positive", "zero", "nan", "infinite", "largest", "subnormal"]


def gemm(w: Array, b: Array, x_scale: np.float32, w_scale: Array | None = None) -> onnx.ModelProto:
    """x -> DQ -> Gemm(w, b) -> Q; w is float, or int8 with a scale per column."""
    constants = {"xs": x_scale, "xz": np.uint8(3), "w": w, "b": b, "ys": np.float32(1), "yz": np.uint8(0)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xd"])]
    if w_scale is not None:
        constants |= {"w_q": w, "w_scale": w_scale, "w_zero": np.zeros(w_scale.shape, np.int8)}
        del constants["w"]
        nodes.append(helper.make_node("DequantizeLinear", ["w_q", "w_scale", "w_zero"], ["w"], axis=1))
    nodes += [
        helper.make_node("Gemm", ["xd", "w", "b"], ["g"], name="unit"),
        helper.make_node("QuantizeLinear", ["g", "ys", "yz"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [1, w.shape[0]])
    y = helper.make_tensor_value_info("y", TensorProto.UINT8, [1, w.shape[1]])
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def parts(model: onnx.ModelProto, position: int) -> list[Array]:
    """codes, scale (and zero point) of the DequantizeLinear at an input of the Gemm."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    producer = {name: node for node in model.graph.node for name in node.output}
    (unit,) = (node for node in model.graph.node if node.op_type == "Gemm")
    return [constants[name] for name in producer[unit.input[position]].input]


def weight(kind: str, rng: np.random.Generator) -> Array:
    w = rng.normal(size=rng.integers(1, 40, size=2)) * 10.0 ** rng.integers(-30, 30)
    at = rng.integers(w.size, size=3)
    if kind == "positive":
        w = np.abs(w)
    elif kind == "zero":
        w[:] = 0
    elif kind == "nan":
        w.flat[at] = np.nan
    elif kind == "infinite":
        w.flat[at[0]] = rng.choice([np.inf, -np.inf])
    elif kind == "largest":
        w.flat[at[:2]] = 3.4e38, -3.4e38
    elif kind == "subnormal":
        w *= 1e-44 / np.abs(w).max() * 10.0 ** rng.integers(0, 6)
    return w.astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(25))
def test_weight_and_bias(kind: str, seed: int) -> None:
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    w, x_scale = weight(kind, rng), np.float32(10.0 ** rng.integers(-6, 6))
    b: Array = np.array(rng.normal(size=w.shape[1]) * 10.0 ** rng.integers(-30, 30), np.float32)
    b[0] = rng.choice([b[0], np.nan, np.inf, -np.inf, 3e38])
    saved = weight_bias_quantization(gemm(w, b, x_scale))
    mine = qu.ort_weight(w)
    codes, scale, zero = parts(saved, 1)
    np.testing.assert_array_equal(mine.codes, codes)
    np.testing.assert_array_equal(mine.scale, scale.reshape(()))
    np.testing.assert_array_equal(mine.zero_point, zero.reshape(()))
    bias = qu.ort_bias(b, x_scale, mine.scale)
    codes, scale = parts(saved, 2)
    np.testing.assert_array_equal(bias.codes, codes)
    np.testing.assert_array_equal(bias.scale, scale.reshape(()))


@pytest.mark.parametrize("seed", range(10))
def test_bias_of_a_weight_that_is_quantized_per_channel(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w, w_scale = (
        rng.integers(-128, 128, size=(4, 9)).astype(np.int8),
        rng.lognormal(-5, size=9).astype(np.float32),
    )
    b, x_scale = (rng.normal(size=9) * 10.0 ** rng.integers(0, 7)).astype(np.float32), np.float32(0.003)
    codes, scale = parts(weight_bias_quantization(gemm(w, b, x_scale, w_scale)), 2)
    mine = qu.ort_bias(b, x_scale, w_scale)
    np.testing.assert_array_equal(mine.codes, codes)
    np.testing.assert_array_equal(mine.scale, scale)
    assert mine.axis == 0


def test_large_and_empty_weights() -> None:
    """More than one block, a tail of each length that the vector kernel leaves; nothing at all."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(331, 401)).astype(np.float32)
    codes, scale, zero = parts(weight_bias_quantization(gemm(w, np.zeros(401, np.float32), np.float32(1))), 1)
    mine = qu.ort_weight(w)
    np.testing.assert_array_equal(mine.codes, codes)
    assert (mine.scale, mine.zero_point) == (scale, zero)
    assert qu.ort_weight(np.zeros((0, 3), np.float32)).codes.shape == (0, 3)


def test_bias_never_raises() -> None:
    q = qu.ort_bias(np.array([1.0, 0.0, -1.0], np.float32), np.float32(0), np.float32(1))
    assert q.codes.tolist() == [-(2**31)] * 3


def test_the_optimizer_runs_alone() -> None:
    """Nothing else touches the model: no fusion, and with no optimizer at all, no change."""
    model = gemm(np.ones((2, 2), np.float32), np.ones(2, np.float32), np.float32(1))
    types = [n.op_type for n in weight_bias_quantization(model).graph.node]
    assert sorted(types) == ["DequantizeLinear"] * 3 + ["Gemm", "QuantizeLinear"]
    assert [n.op_type for n in optimize_with_only(model).graph.node] == [n.op_type for n in model.graph.node]
    assert len(optimizer_names()) > 20
    with pytest.raises(ValueError, match="no such optimizer"):
        optimize_with_only(model, "Wishful")
