"""`rules.activations` where it counts: generated units and the real files, and what ONNX Runtime then fuses.

Two judges that know nothing of the rules. Outputs at ORT_DISABLE_ALL are the same to the bit. And after the weights are
quantized, as many integer kernels come out as for the same model built with uint8 activations from the start.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

import rewriter
import rules
from rewriter import RuleSet
from rules.activations import Uint8Activations
from tests import real_models, rewriting, sessions
from tests.qdq_models import build
from tests.qdq_unit import OPSETS, OPTIONS, Op, Unit, draw, repair, units

UINT8 = Uint8Activations()
OURS_ALONE = ("WeightBiasQuantization",)
KERNELS = {**sessions.FUSED, **sessions.FLOAT_OUTPUT}
SETS = {"+": UINT8 + rules.weight_bias, ">>": UINT8 >> rules.weight_bias}
OPTIONS_ALONE = [
    (option, value)
    for option, values in OPTIONS.items()
    if option not in ("op", "opset", "x_type")
    for value in values[1:]
]


def check(unit: Unit, seed: int = 0) -> None:
    """Exact, valid, idempotent, the same twice; and no int8 activation but at a border."""
    rng = np.random.default_rng(seed)
    model = build(unit, rng)
    result = rewriter.run(model, UINT8)
    onnx.checker.check_model(result.model, full_check=True)
    feeds = sessions.feeds(model, rng)
    rewriting.compare(sessions.run(model, feeds), sessions.run(result.model, feeds))
    again = rewriter.run(result.model, UINT8)
    assert not again.changed
    assert rewriter.run(model, UINT8).model.SerializeToString() == result.model.SerializeToString()
    if unit.ir >= 4:
        assert list(result.model.graph.input) == list(model.graph.input)
    assert list(result.model.graph.output) == list(model.graph.output)
    assert int8_units(result.model) <= declined_units(unit)


def int8_units(model: onnx.ModelProto) -> int:
    """How many Q nodes with int8 codes quantize something other than what a DQ gives."""
    found = 0
    for nodes, types in scopes(model):
        makers = {name: node for node in nodes for name in node.output}
        for node in nodes:
            if node.op_type == "QuantizeLinear" and types.get(node.input[2]) == onnx.TensorProto.INT8:
                maker = makers.get(node.input[0])
                found += maker is None or maker.op_type != "DequantizeLinear"
    return found


def scopes(model: onnx.ModelProto) -> list[tuple[list[onnx.NodeProto], dict[str, int]]]:
    """The nodes of each graph and function, with the types of the constants that they can see."""
    graphs, types = [model.graph], dict[str, int]()
    for graph in graphs:
        types |= {t.name: t.data_type for t in graph.initializer}
        graphs += [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    bodies = [list(g.node) for g in graphs] + [list(f.node) for f in model.functions]
    for nodes in bodies:
        types |= {n.output[0]: n.attribute[0].t.data_type for n in nodes if n.op_type == "Constant"}
    return [(nodes, types) for nodes in bodies]


def declined_units(unit: Unit) -> int:
    """A chain's last unit that is none stays as it is where its codes leave the graph."""
    return int(unit.output == "quantized" and unit.op == "MatMulAdd" and unit.bias_form == "input")


@pytest.mark.parametrize("seed", range(8))
def test_random_units(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        check(draw(rng, x_type="int8"), seed)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(units(x_type="int8"))
def test_any_unit(unit: Unit) -> None:
    check(unit)


@pytest.mark.parametrize("op", OPTIONS["op"])
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("domain", OPTIONS["domain"], ids=["ai.onnx", "com.microsoft"])
def test_every_opset(op: Op, opset: int, domain: str) -> None:
    check(repair(Unit(op=op, opset=opset, domain=domain, x_type="int8", chain=2)))


@pytest.mark.parametrize("op", OPTIONS["op"])
@pytest.mark.parametrize(("option", "value"), OPTIONS_ALONE)
def test_every_option_alone(op: Op, option: str, value: Any) -> None:
    change: dict[str, Any] = {"op": op, "opset": 21, "x_type": "int8", option: value}
    check(repair(Unit(**change)))


def kernels(model: onnx.ModelProto) -> int:
    return sessions.integer_kernels(sessions.optimized(model, disabled=OURS_ALONE), KERNELS)


@pytest.mark.parametrize("seed", range(8))
def test_as_many_kernels_as_with_uint8_from_the_start(seed: int) -> None:
    rng = np.random.default_rng(3000 + seed)
    wrong = []
    for _ in range(25):
        unit = draw(rng, x_type="int8", y_type=str(rng.choice(["", "int8", "uint8"])))
        if unit.place == "then, constants outside":
            continue  # ONNX Runtime does not load it optimized: it looks for a MatMul's weight in its graph only
        model = build(unit, np.random.default_rng(seed))
        twin = replace(unit, x_type="uint8", y_type=unit.y_type and "uint8")
        expected = kernels(rewriter.apply(build(twin, np.random.default_rng(seed)), rules.weight_bias))
        found = {name: kernels(rewriter.apply(model, both)) for name, both in SETS.items()}
        if set(found.values()) != {expected}:
            wrong.append(f"{found}, {expected} with uint8: {unit}")
    assert not wrong, "\n".join(wrong)


# -- real files -----------------------------------------------------------------------------------------


def left(model: onnx.ModelProto) -> dict[str, int]:
    """The weighted ops that stay float in an optimizing session, and the kernels that it makes."""
    counts = sessions.op_counts(sessions.optimized(model, disabled=OURS_ALONE))
    return {op: n for op, n in counts.items() if op in (*sessions.LEFT, *KERNELS)}


@real_models.needs_shared
@pytest.mark.parametrize("row", real_models.table(), ids=lambda row: row.name)
def test_outputs_of_real_files_are_the_same_to_the_bit(row: real_models.Row) -> None:
    model = onnx.load(row.path)
    result = rewriting.run(model, UINT8)
    assert result.changed == (not row.name.endswith(".u8"))
    assert not result.report.declined
    before, after = sessions.session(model), sessions.session(result.model)
    for feeds in real_models.inputs(row):
        for a, b in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert a.tobytes() == b.tobytes()


@real_models.needs_shared
@pytest.mark.parametrize("both", SETS.values(), ids=SETS)
@pytest.mark.parametrize("row", real_models.table(), ids=lambda row: row.name)
def test_no_weighted_op_of_real_files_stays_float(row: real_models.Row, both: RuleSet) -> None:
    result = rewriter.run(onnx.load(row.path), both)
    onnx.checker.check_model(result.model, full_check=True)
    counts = left(result.model)
    transposed = row.left[1]  # ConvTranspose never fuses
    assert {op for op in counts if op in sessions.LEFT} == ({"ConvTranspose"} if transposed else set())
    assert sum(n for op, n in counts.items() if op in KERNELS) >= row.fused + row.left[0] + row.left[2]
    assert not rewriter.run(result.model, both).changed


@real_models.needs_shared
def test_yunet() -> None:
    row = next(row for row in real_models.table() if row.name == "yunet_n_320.real")
    model = onnx.load(row.path)
    assert left(rewriter.apply(model, rules.weight_bias)) == {"QLinearConv": 38, "Conv": 21}
    assert left(rewriter.apply(model, SETS["+"])) == {"QLinearConv": 59}


@real_models.needs_shared
@pytest.mark.parametrize("name", ["tiny_ad_int8", "tiny_kws_int8", "tiny_ww_int8", "kws_qdq", "ort_conv_qdq_s8s8_pc"])
def test_complete_int8_files(name: str) -> None:
    """Their graphs' inputs and outputs are int8, their weights stay so, and more of them fuses than before."""
    model = onnx.load(real_models.model(f"{name}.onnx"))
    result = rewriting.check(model, UINT8)
    before, after = left(model), left(result.model)
    assert not set(after) & set(sessions.LEFT)
    assert sum(after.values()) == sum(before.values())
    weights = {t.name: t for t in model.graph.initializer if len(t.dims) > 1 and t.data_type == onnx.TensorProto.INT8}
    kept = {t.name: t for t in result.model.graph.initializer}
    assert all(
        kept[n.input[1]].data_type == onnx.TensorProto.INT8
        for n in model.graph.node
        if n.input[1:] and n.input[1] in weights
    )
    assert set(weights) <= set(kept)


@real_models.needs_shared
def test_integer_operators_are_left_alone() -> None:
    result = rewriting.run(onnx.load(real_models.model("kws_qoperator.onnx")), UINT8)
    assert not result.changed
    assert len(result.report.declined) == 4
