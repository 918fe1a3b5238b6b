"""The options of `WeightBias` on whole models: valid files that ONNX Runtime runs, near the numbers of the input
file."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rewriter
import rules
from tests import oracle, sessions
from tests.rules.one_unit import Coded, One
from tests.rules.one_unit import model as one_model

F = np.float32
OPTIONS: list[tuple[dict[str, Any], float]] = [
    ({}, 25),
    ({"rounding": "nearest"}, 25),
    ({"scale_search": "mse"}, 25),
    ({"scale_search": "minmax"}, 25),
    ({"weight_type": "uint8"}, 25),
    ({"symmetric": False}, 25),
    ({"weight_type": "uint8", "symmetric": False, "granularity": "tensor"}, 20),
    ({"granularity": "tensor"}, 20),
    ({"reduce_range": True}, 20),
    ({"weight_type": "int16"}, 60),
    ({"weight_type": "int4"}, 8),
    ({"weight_type": "uint4", "symmetric": False}, 8),
    ({"granularity": "block", "block_size": 4}, 25),
    ({"weight_type": "int4", "granularity": "block", "block_size": 4}, 8),
    ({"bias": False}, 25),
]


def model() -> onnx.ModelProto:
    """x -> Conv -> Relu -> Conv(grouped) -> Flatten -> Gemm(transB 0, alpha 0.5) -> MatMul + Add, Q/DQ between all."""
    rng = np.random.default_rng(0)
    constants: dict[str, Any] = {
        "w0": rng.normal(size=(8, 3, 3, 3)) / 5, "b0": rng.normal(size=8),
        "w1": rng.normal(size=(8, 4, 1, 1)) / 2, "b1": rng.normal(size=8),
        "w2": rng.normal(size=(8, 10)) / 3, "b2": rng.normal(size=10),
        "w3": rng.normal(size=(10, 6)) / 3, "b3": rng.normal(size=6),
    }  # fmt: skip
    nodes: list[onnx.NodeProto] = []
    tensors = [numpy_helper.from_array(v.astype(F), k) for k, v in constants.items()]

    def pair(name: str, scale: float, zero: int) -> str:
        tensors.append(numpy_helper.from_array(np.array(scale, F), f"{name}_s"))
        tensors.append(numpy_helper.from_array(np.array(zero, np.uint8), f"{name}_z"))
        nodes.append(helper.make_node("QuantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [f"{name}_dq"]))
        return f"{name}_dq"

    x = pair("x", 0.03, 128)
    nodes.append(helper.make_node("Conv", [x, "w0", "b0"], ["c0"], name="conv0"))
    nodes.append(helper.make_node("Relu", ["c0"], ["r0"]))
    nodes.append(helper.make_node("Conv", [pair("r0", 0.02, 0), "w1", "b1"], ["c1"], name="conv1", group=2))
    nodes.append(helper.make_node("GlobalAveragePool", [pair("c1", 0.04, 120)], ["p"]))
    nodes.append(helper.make_node("Flatten", ["p"], ["f"]))
    nodes.append(helper.make_node("Gemm", [pair("f", 0.03, 120), "w2", "b2"], ["g"], name="gemm", alpha=0.5))
    nodes.append(helper.make_node("MatMul", [pair("g", 0.04, 128), "w3"], ["m"], name="matmul"))
    nodes.append(helper.make_node("Add", ["m", "b3"], ["a"]))
    out = pair("a", 0.0005, 128)
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, [1, 6])],
        tensors,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def watched(one: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(one)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("r0", "c1", "g", "a"))
    return copy


@pytest.mark.parametrize(("options", "least"), OPTIONS, ids=lambda v: str(v))
def test_options(options: dict[str, Any], least: float) -> None:
    before = model()
    done = rewriter.run(before, rules.WeightBias(**options))
    after = done.model
    onnx.checker.check_model(after, full_check=True)
    units = oracle.units(after)
    assert len(units) == 4
    blocks = options.get("granularity") == "block"
    for unit in units.values():
        assert isinstance(unit.weight, oracle.Dequantized)
        assert unit.weight.block_size == options.get("block_size", 0)
        assert unit.weight.codes.dtype == options.get("weight_type", "int8")
        biases = [unit.bias] if unit.op != "MatMul" else []
        kept = blocks or not options.get("bias", True)
        assert all(isinstance(bias, oracle.Stored if kept else oracle.Dequantized) for bias in biases)
    feeds = {"x": np.random.default_rng(1).normal(size=(1, 3, 6, 6)).astype(F)}
    for reference, other in list(
        zip(sessions.run(watched(before), feeds), sessions.run(watched(after), feeds), strict=True)
    )[1:]:
        noise = float(np.square(reference.astype(float) - other).sum())
        assert noise == 0 or 10 * np.log10(float(np.square(reference.astype(float)).sum()) / noise) > least
    again = rewriter.run(after, rules.WeightBias(**options))
    assert not again.report.rewrites


@pytest.mark.parametrize(("aside", "taken"), [(0, True), (1, False)])
@pytest.mark.parametrize("zero", [None, 100])
def test_a_bias_without_room_beside_a_quantized_weight_is_declined(aside: int, taken: bool, zero: int | None) -> None:
    """Two products of 255 and 127, and the largest float32 that fits beside them, or the next one."""
    kind = np.int8 if zero is None else np.uint8
    codes = np.full((3, 2, 1, 1), 127 if zero is None else 227, kind)
    codes[0] = zero or 0
    middle = None if zero is None else np.full(3, zero, kind)
    steps = ((2**31 - 1 - 2 * 255 * 127) // 128 + aside) * 128.0
    unit = One(
        "Conv",
        Coded(codes, np.ones(3, F), middle),
        np.array([2.0**31 - 128, steps, -steps], F),
        x_scale=1.0,
        y_scale=1e7,
    )
    done = rewriter.run(one_model(unit), rules.WeightBias())
    assert bool(done.report.rewrites) == taken
    assert taken or any("2 products can exceed an int32 accumulator" in d.reason for d in done.report.declined)


@pytest.mark.parametrize("options", [{"weight_type": "int4"}, {"granularity": "block", "block_size": 4}])
def test_what_needs_opset_21_is_declined_below(options: dict[str, Any]) -> None:
    before = model()
    before.opset_import[0].version = 17
    done = rewriter.run(before, rules.WeightBias(**options))
    assert not done.report.rewrites
    assert all("opset 21" in decline.reason for decline in done.report.declined)
