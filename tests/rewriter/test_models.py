"""The kinds of model: the same kind comes back, the input is untouched, and nothing but the edits changes.

What is kept is asked bit for bit: the expected file is the input with the edit made by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import rewriter
import rules
from rewriter.models.proto import graphs_of
from tests import qdq_models, qdq_unit
from tests.rewriter.small_models import (
    CHAIN,
    FUNCTION,
    INLINED,
    NESTED,
    OLD,
    TEXTS,
    UNSORTED,
    all_uses,
    as_file,
    check_uses,
    decorated,
    parse,
    tensor_names,
)
from tests.rewriter.small_rules import constant_if, everything, leak, mul_to_div, relus, threshold
from tests.sessions import run


def count(model: onnx.ModelProto, op_type: str) -> int:
    """How often an op type occurs, in bodies and functions too."""
    holders: list[Any] = [*graphs_of(model), *model.functions]
    return [node.op_type for holder in holders for node in holder.node].count(op_type)


# -- the three kinds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_proto_comes_back_and_the_input_is_untouched(name: str) -> None:
    model = parse(TEXTS[name])
    before = model.SerializeToString()
    result = rewriter.run(model, everything)
    assert isinstance(result.model, onnx.ModelProto)
    assert result.changed
    assert result.model is not model
    assert model.SerializeToString() == before
    onnx.checker.check_model(result.model, full_check=True)
    assert rewriter.apply(result.model, everything) is result.model


@pytest.mark.parametrize("name", TEXTS)
def test_ir_comes_back_and_the_input_is_untouched(name: str) -> None:
    model = ir.from_proto(parse(TEXTS[name]))
    before, uses = ir.to_proto(model).SerializeToString(), all_uses(model)
    result = rewriter.run(model, everything)
    assert isinstance(result.model, ir.Model)
    assert result.changed
    assert result.model is not model
    assert ir.to_proto(model).SerializeToString() == before
    assert all_uses(model) == uses
    assert rewriter.apply(result.model, everything) is result.model
    check_uses(result.model)


@pytest.mark.parametrize("name", TEXTS)
def test_the_three_kinds_give_the_same(name: str, tmp_path: Path) -> None:
    model = parse(TEXTS[name])
    from_proto = rewriter.apply(model, everything)
    from_ir = rewriter.apply(ir.from_proto(model), everything)
    written = rewriter.apply(str(as_file(model, tmp_path)), everything)
    assert Path(written).read_bytes() == from_proto.SerializeToString()
    assert ir.to_proto(from_ir) == ir.to_proto(ir.from_proto(from_proto))


@pytest.mark.parametrize("name", TEXTS)
def test_reports_are_the_same(name: str) -> None:
    model = parse(TEXTS[name])
    assert rewriter.run(model, everything).report == rewriter.run(ir.from_proto(model), everything).report


def test_results_compute_the_same() -> None:
    x = np.array([-1.5, 2], np.float32)
    feeds = {
        "x": x,
        "c": np.array(True),
        "n": np.array(3),
        "xs": np.arange(8, dtype=np.float32).reshape(4, 2),
    }
    model = parse(NESTED)
    result = rewriter.apply(model, everything)
    for condition in (True, False):
        feeds["c"] = np.array(condition)
        for want, have in zip(run(model, feeds), run(result, feeds), strict=True):
            np.testing.assert_array_equal(want, have)


def test_bodies_and_functions_are_rewritten() -> None:
    result = rewriter.apply(parse(NESTED), everything)
    assert count(result, "Relu") == 5  # then, deep, Loop, Scan, twice: one each
    assert count(result, "Neg") == 0  # two became an Identity
    assert count(result, "Mul") == 0
    assert [node.op_type for node in result.functions[0].node].count("Constant") == 1


def test_constants_of_outer_scopes_count() -> None:
    result = rewriter.apply(parse(NESTED), mul_to_div)
    branch = result.graph.node[1].attribute[0].g
    assert [node.op_type for node in branch.node] == ["Relu", "Relu", "Div"]
    assert [t.name for t in result.graph.initializer] == ["two"]  # the Loop still reads it


def test_unsorted_nodes_come_back_sorted() -> None:
    for result in (
        rewriter.apply(parse(UNSORTED), relus),
        ir.to_proto(rewriter.apply(ir.from_proto(parse(UNSORTED)), relus)),
    ):
        assert [node.op_type for node in result.graph.node] == ["Neg", "Relu"]
        onnx.checker.check_model(result, full_check=True)


def test_below_ir_version_4_initializers_are_inputs_too() -> None:
    proto = rewriter.apply(parse(OLD), everything)
    model = rewriter.apply(ir.from_proto(parse(OLD)), everything)
    for result in (proto, ir.to_proto(model)):
        assert [node.op_type for node in result.graph.node] == ["Div"]
        names = [tensor.name for tensor in result.graph.initializer]
        assert len(names) == 1
        assert [info.name for info in result.graph.input] == ["x", *names]
        onnx.checker.check_model(result, full_check=True)
        np.testing.assert_array_equal(run(result, {"x": np.ones(2, np.float32)})[0], [2, 2])


def test_from_ir_version_4_an_initializer_that_is_an_input_is_no_constant() -> None:
    for model in (parse(OLD), ir.from_proto(parse(OLD))):
        model.ir_version = 4
        assert rewriter.apply(model, everything) is model


# -- nothing else changes --------------------------------------------------------------------------------


def test_everything_else_is_kept_bit_for_bit(tmp_path: Path) -> None:
    model = decorated()
    wanted = onnx.ModelProto()
    wanted.CopyFrom(model)
    del wanted.graph.node[0]
    wanted.graph.node[0].input[0] = "x"
    gone = [info.name for info in wanted.graph.value_info].index("a")
    del wanted.graph.value_info[gone]
    assert rewriter.apply(model, relus).SerializeToString() == wanted.SerializeToString()
    written = rewriter.apply(as_file(model, tmp_path), relus)
    assert Path(written).read_bytes() == wanted.SerializeToString()


def test_a_kept_ir_model_keeps_its_objects_sayings() -> None:
    model = ir.from_proto(parse(CHAIN))
    third = model.graph.node("third")
    model.meta["mine"] = third.meta["mine"] = 1
    model.metadata_props["k"] = third.metadata_props["k"] = "v"
    third.outputs[0].meta["mine"] = 2
    third.outputs[0].doc_string = "result"
    result = rewriter.apply(model, everything)
    twin = result.graph.outputs[0]
    assert (result.meta["mine"], result.metadata_props["k"]) == (1, "v")
    assert (twin.name, twin.meta["mine"], twin.doc_string) == ("y", 2, "result")
    assert twin.shape == third.outputs[0].shape
    producer = twin.producer()
    assert producer is not None
    assert producer.op_type == "Div"
    assert (third.op_type, third.outputs[0].is_graph_output()) == ("Mul", True)


def test_initializers_of_an_ir_model_are_shared_and_not_renamed() -> None:
    model = ir.from_proto(parse(CHAIN))
    tensor = model.graph.initializers["given"].const_value
    result = rewriter.apply(model, everything)
    assert result.graph.initializers["given"].const_value is tensor
    assert tensor is not None
    assert tensor.name == "given"


@pytest.mark.parametrize("wrap", [lambda m: m, ir.from_proto], ids=["proto", "ir"])
def test_without_a_change_the_very_object_comes_back(wrap: Callable[[Any], Any]) -> None:
    model = wrap(rewriter.apply(parse(CHAIN), everything))
    result = rewriter.run(model, everything)
    assert result.model is model
    assert not result.changed


def test_a_body_moves_into_its_owners_graph(tmp_path: Path) -> None:
    model, other = parse(INLINED), ir.from_proto(parse(INLINED))
    before, names = ir.to_proto(other), tensor_names(other)
    chosen = constant_if >> relus
    result, twin = rewriter.run(model, chosen), rewriter.run(other, chosen)
    assert [node.op_type for node in result.model.graph.node] == ["Neg", "Add", "Mul", "If", "Abs", "Mul"]
    assert sorted(t.name for t in result.model.graph.initializer) == ["k", "k_1", "u"]
    assert result.report.counts == {"constant_if": 1, "relus": 1}  # nothing is done in the branch that went
    assert ir.to_proto(twin.model) == ir.to_proto(ir.from_proto(result.model))
    assert twin.report == result.report
    assert ir.to_proto(other) == before
    assert tensor_names(other) == names
    check_uses(twin.model)
    written = rewriter.apply(as_file(model, tmp_path), chosen)
    assert written.read_bytes() == result.model.SerializeToString()
    for d in (True, False):
        feeds = {"x": np.array([-5, 2], np.float32), "d": np.array(d)}
        for want, have in zip(run(model, feeds), run(result.model, feeds), strict=True):
            np.testing.assert_array_equal(want, have)


def test_a_changed_attribute_keeps_its_place_and_doc() -> None:
    model = parse(CHAIN)
    node = model.graph.node[3]
    del node.input[1]
    node.op_type, node.domain = "LeakyRelu", ""
    node.attribute.append(helper.make_attribute("alpha", 0.01, doc_string="why"))
    node.attribute.append(helper.make_attribute("zeta", 1))
    (alpha, zeta) = rewriter.apply(model, leak).graph.node[3].attribute
    assert (alpha.name, alpha.f, alpha.doc_string, zeta.name) == ("alpha", 0.25, "why", "zeta")
    twin = rewriter.apply(ir.from_proto(model), leak)
    assert ir.to_proto(twin).graph.node[3].attribute[0] == alpha


def test_a_new_node_takes_over_a_reference_to_the_callers_attribute() -> None:
    result = rewriter.apply(parse(FUNCTION), threshold)
    (node,) = result.functions[0].node
    assert (node.op_type, node.attribute[0].ref_attr_name) == ("ThresholdedRelu", "slope")
    assert node.attribute[0].type == onnx.AttributeProto.FLOAT
    twin = rewriter.apply(ir.from_proto(parse(FUNCTION)), threshold)
    assert ir.to_proto(twin).functions[0].node[0].attribute == node.attribute


@pytest.mark.parametrize("seed", range(24))
def test_generated_units_come_out_the_same_in_every_kind(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    model = qdq_models.build(qdq_unit.draw(rng), rng)
    other = ir.from_proto(model)
    before = ir.to_proto(other)
    result, twin = rewriter.run(model, rules.weight_bias), rewriter.run(other, rules.weight_bias)
    assert ir.to_proto(twin.model) == ir.to_proto(ir.from_proto(result.model))
    assert twin.report == result.report
    assert ir.to_proto(other) == before
    check_uses(twin.model)
    written = rewriter.apply(as_file(model, tmp_path), rules.weight_bias)
    assert written.read_bytes() == result.model.SerializeToString()


def test_output_is_for_paths_only() -> None:
    for model in (parse(CHAIN), ir.from_proto(parse(CHAIN))):
        with pytest.raises(TypeError, match="path"):
            rewriter.apply(model, everything, "out.onnx")
    with pytest.raises(TypeError, match="dict"):
        rewriter.apply({}, everything)
