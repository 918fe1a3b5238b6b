"""The main job on the real files: they come out valid, complete, as accurate as they can be, and fuse.

What a session shows is counted without ONNX Runtime's own WeightBiasQuantization, which would else do at
load what we had left undone. What "would have been quantized" means is asked of that optimizer, and what
the files are is in MODELS.md.
"""

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest

import rewriter
import rules
from benchmarks import accuracy
from tests import oracle, real_models, sessions
from tests.ort_optimizer import optimize_with_only
from tests.real_models import Row

pytestmark = real_models.needs_shared

BACKENDS = ("generic", "onnxruntime")
ROWS = {row.name: row for row in real_models.table()}

every_file = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
every_backend = pytest.mark.parametrize("backend", BACKENDS)
OURS_ALONE = ("WeightBiasQuantization",)


def option(backend: str) -> rules.WeightBias:
    return rules.WeightBias(backend=backend)


@functools.cache
def result(row: Row, backend: str) -> rewriter.Result[onnx.ModelProto]:
    return rewriter.run(onnx.load(row.path), option(backend))


def units(model: onnx.ModelProto, *optimizers: str) -> dict[str, oracle.Described]:
    """With MatMul and Add as the one Gemm that ONNX Runtime makes of them before it looks at weights."""
    return oracle.units(optimize_with_only(model, "ConstantFolding", "MatMulAddFusion", *optimizers))


def fused(model: onnx.ModelProto, disabled: tuple[str, ...] = OURS_ALONE) -> int:
    return sessions.integer_kernels(sessions.optimized(model, disabled=disabled))


@every_file
@every_backend
def test_it_is_valid_and_runs(row: Row, backend: str) -> None:
    model = result(row, backend).model
    onnx.checker.check_model(model, full_check=True)
    feeds = real_models.inputs(row)[0]
    for level in (sessions.DISABLE_ALL, sessions.EXTENDED):
        assert all(np.isfinite(output).all() for output in sessions.run(model, feeds, level))


@every_file
@every_backend
def test_the_interface_stays(row: Row, backend: str) -> None:
    before, after = onnx.load(row.path), result(row, backend).model
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert after.opset_import == before.opset_import
    assert after.ir_version == before.ir_version


@every_file
@every_backend
def test_at_least_as_many_integer_kernels(row: Row, backend: str) -> None:
    model = result(row, backend).model
    assert fused(model, disabled=()) >= row.fused
    assert fused(model) >= row.fused


@every_backend
@pytest.mark.parametrize("row", [row for name, row in ROWS.items() if ".u8" in name], ids=lambda row: row.name)
def test_uint8_files_run_in_integers_throughout(row: Row, backend: str) -> None:
    counts = sessions.op_counts(sessions.optimized(result(row, backend).model, disabled=OURS_ALONE))
    assert [counts[op] for op in ("Conv", "Gemm", "MatMul")] == [0, 0, 0]


@every_file
def test_generic_leaves_nothing_that_ort_would_quantize(row: Row) -> None:
    model = onnx.load(row.path)
    before, theirs = units(model), units(model, "WeightBiasQuantization")
    ours = units(result(row, "generic").model)
    assert ours.keys() == theirs.keys()
    for name, unit in before.items():
        taken = set(oracle.left_float(unit)) - set(oracle.left_float(theirs[name]))
        assert not taken & set(oracle.left_float(ours[name])), name


@every_file
@every_backend
def test_every_unit_left_in_float_has_its_reason(row: Row, backend: str) -> None:
    done = result(row, backend)
    reasons = {decline.node: decline.reason for decline in done.report.declined}
    left = {name for name, unit in oracle.units(done.model).items() if oracle.left_float(unit)}
    for node in sessions.nodes(done.model.graph):
        if node.op_type in oracle.OPS and node.output[0] in left:
            assert reasons.get(node.name), node.name


@every_file
def test_as_accurate_as_a_calibrated_quantizer(row: Row) -> None:
    nearest = rules.WeightBias(rounding="nearest")
    line = accuracy.measure(row, lambda model: rewriter.apply(model, nearest))
    assert line.good, accuracy.text(line)


@every_file
@every_backend
def test_twice_is_once(row: Row, backend: str) -> None:
    once = result(row, backend).model
    again = rewriter.run(once, option(backend))
    assert again.model.SerializeToString() == once.SerializeToString()
    assert not again.report.rewrites


@every_file
def test_the_input_stays_as_it_was(row: Row) -> None:
    model = onnx.load(row.path)
    before = model.SerializeToString()
    rewriter.apply(model, rules.weight_bias)
    assert model.SerializeToString() == before


def test_deeploy_matmuls() -> None:
    """Seven MatMul with float weights, which int8 activations behind a shared DQ keep from fusing on x86."""
    row = ROWS["deeploy_cct_op20"]
    before = oracle.units(onnx.load(row.path))
    matmuls = [name for name, unit in before.items() if unit.op == "MatMul" and oracle.left_float(unit)]
    assert len(matmuls) == 7
    generic = oracle.units(result(row, "generic").model)
    assert all(isinstance(generic[name].weight, oracle.Dequantized) for name in matmuls)
    done = result(row, "onnxruntime")
    nodes = {node.output[0]: node.name for node in done.model.graph.node}
    reasons = {decline.node: decline.reason for decline in done.report.declined}
    for name in matmuls:
        assert oracle.units(done.model)[name] == before[name]
        assert "int8" in reasons[nodes[name]]
        assert "consumer" in reasons[nodes[name]]


def test_mnist_cntk_bias_of_shape_1_n() -> None:
    (gemm,) = (u for u in oracle.units(result(ROWS["mnist_cntk.real"], "generic").model).values() if u.op == "Gemm")
    assert isinstance(gemm.bias, oracle.Dequantized)
    assert (gemm.bias.codes.dtype, gemm.bias.codes.shape) == ("int32", (1, 10))


def test_gtcrn_grouped_conv_transposes() -> None:
    """Groups share the scales along axis 1, of which there are as many as channels in one group."""
    row = ROWS["gtcrn_simple"]
    model = onnx.load(row.path)
    transposed = [node for node in model.graph.node if node.op_type == "ConvTranspose"]
    groups = {
        node.output[0]: attribute.i for node in transposed for attribute in node.attribute if attribute.name == "group"
    }
    assert any(group > 1 for group in groups.values())
    done = oracle.units(result(row, "generic").model)
    for name in (node.output[0] for node in transposed):
        weight, bias = done[name].weight, done[name].bias
        assert isinstance(weight, oracle.Dequantized)
        assert isinstance(bias, oracle.Dequantized)
        assert isinstance(weight.scale, oracle.Stored)
        assert weight.scale.shape in ((), (1,), (weight.codes.shape[1],)), name
    reasons = {decline.node: decline.reason for decline in result(row, "onnxruntime").report.declined}
    assert all("ConvTranspose" in reasons[node.name] for node in transposed)


def nothing_to_do() -> list[Path]:
    """The originals, complete or with float activations, and ONNX Runtime's own full quantizations."""
    folders = [real_models.SHARED / name for name in ("models", "ortfull")]
    return [path for folder in folders for path in sorted(folder.glob("*.onnx"))]


@every_backend
@pytest.mark.parametrize("path", nothing_to_do(), ids=lambda path: path.stem)
def test_where_nothing_is_to_do_nothing_is_done(path: Path, backend: str) -> None:
    model = onnx.load(path)
    done = rewriter.run(model, option(backend))
    assert done.model.SerializeToString() == model.SerializeToString()
    assert not done.report.rewrites
