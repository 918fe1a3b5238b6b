"""Units that no model should hold: each is declined with its reason, and the rest of the model is completed."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import rewriter
import rules
import rules.quantization as qm
from rewriter import ModelError, cli
from tests import fusion
from tests.qdq_models import build
from tests.qdq_unit import Unit

BACKENDS = ("generic", "onnxruntime", "qnn", "tensorrt", "openvino")


def with_input(model: onnx.ModelProto, op: str, slot: int, value: np.ndarray) -> onnx.ModelProto:
    """The model with another constant as this input of its last node of this op."""
    node = [node for node in model.graph.node if node.op_type == op][-1]
    model.graph.initializer.append(numpy_helper.from_array(value, "bad"))
    node.input[slot] = "bad"
    return model


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_an_output_scale_that_is_no_positive_number(backend: str, scale: float) -> None:
    model = with_input(build(Unit(), np.random.default_rng(0)), "QuantizeLinear", 1, np.array(scale, np.float32))
    result = rewriter.run(model, rules.WeightBias(backend=backend))
    assert not result.report.rewrites
    assert [d.reason.split(";")[0].split(" is ")[0] for d in result.report.declined] == ["the output's scale 'bad'"]


@pytest.mark.parametrize("op", ["DequantizeLinear", "QuantizeLinear"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_zero_point(op: str, backend: str) -> None:
    model = with_input(build(Unit(), np.random.default_rng(0)), op, 2, np.zeros(0, np.uint8))
    rewriter.run(model, rules.WeightBias(backend=backend))  # no RuleError


@pytest.mark.parametrize("slot", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_bound_of_a_clip(slot: int, backend: str) -> None:
    unit = Unit(post=("Clip",))
    model = with_input(build(unit, np.random.default_rng(0)), "Clip", slot, np.zeros(0, np.float32))
    rewriter.run(model, rules.WeightBias(backend=backend))  # no RuleError


def test_groups_that_do_not_divide_the_channels() -> None:
    model = build(Unit(op="ConvTranspose", bias="none"), np.random.default_rng(0))
    (node,) = (node for node in model.graph.node if node.op_type == "ConvTranspose")
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    channels = held[node.input[1]].dims[0]
    del node.attribute[:]
    node.attribute.add(name="group", i=channels + 1, type=onnx.AttributeProto.INT)
    result = rewriter.run(model, rules.weight_bias)
    assert not result.report.rewrites
    assert [d for d in result.report.declined if f"{channels + 1} groups do not divide" in d.reason]


@pytest.mark.parametrize(
    "options",
    [{"bias": "false"}, {"reduce_range": 0}, {"symmetric": 0}, {"symmetric": "no"},
     {"granularity": "block", "block_size": 2.5}],
    ids=str,
)  # fmt: skip
def test_options_of_another_type(options: dict[str, Any]) -> None:
    (name, *_) = [name for name in options if name != "granularity"]
    with pytest.raises(ValueError, match=f"^{name} must be"):
        rules.WeightBias(**options)


def test_legal_without_the_external_data(tmp_path: Path) -> None:
    model = build(Unit(), np.random.default_rng(0))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    (tmp_path / "data.bin").unlink()
    with pytest.raises(ModelError, match=r"data\.bin"):
        rules.legal(path, "qnn")
    cli.add_commands()
    told = CliRunner().invoke(cli.app, ["legal", str(path), "--backend", "qnn"])
    assert told.exit_code == 1
    assert told.stderr.startswith("error: ")


@pytest.mark.parametrize("op", ["Gemm", "MatMulAdd", "MatMul", "Conv"])
@pytest.mark.parametrize("weight_type", ["int8", "uint8"])
@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("stays", [False, True])
def test_int8_inputs_with_either_weight_on_onnxruntime(op: Any, weight_type: str, opset: int, stays: bool) -> None:
    """ONNX Runtime fuses a Gemm that stays int8 with int8 weights only; one that it makes uint8 with either."""
    unit = Unit(op=op, bias="N", x_type="int8", opset=opset, output="quantized" if stays else "float")
    model = build(dataclasses.replace(unit, quantized_input=stays), np.random.default_rng(0))
    completer = rules.WeightBias(backend="onnxruntime", weight_type=weight_type)
    everything = rewriter.apply(model, dataclasses.replace(completer, non_fusing="quantize"))
    fuses = bool(fusion.kernels(everything))
    assert bool(rewriter.run(model, completer).report.rewrites) == fuses
    assert [one.integer for one in rules.legal(everything, "onnxruntime")] == [fuses]
    if op in ("Gemm", "MatMulAdd"):
        assert fuses == (weight_type == "int8" or not stays)


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_the_input_range_of_wide_codes_is_finite(kind: str) -> None:
    scale = np.array(0.25, kind)
    assert qm.input_range(scale, 0, 0, 65535) == (0.0, float((np.float32(65535) * np.float32(0.25)).astype(kind)))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_grids_of_narrow_scales_are_recovered(kind: str) -> None:
    codes = np.random.default_rng(0).integers(-100, 101, (4, 3, 3, 3))
    w = (codes * 2.0**-7).astype(np.float32)  # exact in every type, and the largest code is not 127
    unit = qm.quantize_unit(w, None, 0.01, axis=0, scheme=qm.Scheme(scale_type=kind))
    back = unit.weight.codes * unit.weight.spread(unit.weight.scale).astype(np.float64)
    assert np.array_equal(back, w)


def test_mse_beats_the_range_in_short_channels() -> None:
    w = np.random.default_rng(0).normal(size=(200, 9)).astype(np.float32)

    def error(search: str) -> np.ndarray:
        q = qm.quantize_weight(w, 0, qm.Scheme(search=search, rounding="nearest"))
        held: np.ndarray = np.square(w - q.codes * q.scale[:, None].astype(np.float64)).sum(axis=1)
        return held

    least, ranged = error("mse"), error("minmax")
    assert (least <= ranged * (1 + 1e-6)).all()
    assert (least < 0.8 * ranged).mean() > 0.5


def test_an_add_that_stays_float_is_no_activation() -> None:
    model = build(Unit(op="MatMulAdd", bias="N"), np.random.default_rng(0))
    (declined,) = rewriter.run(model, rules.WeightBias(backend="onnxruntime", bias=False)).report.declined
    assert declined.reason == "onnxruntime takes int32 biases, and bias=False leaves the Add in float"
