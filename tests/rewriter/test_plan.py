"""Plans and provenance: what would be done is what is done, what is left out stays, and new nodes say where they come
from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import rewriter
import rules
from rewriter.origins import RULE, RULES, SOURCES
from tests.rewriter.small_models import CHAIN, NESTED, as_file, decorated, parse
from tests.rewriter.small_rules import constant_if, everything
from tests.rewriter.test_in_place import bytes_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_qdq.onnx"
ALL = everything + constant_if


@pytest.mark.parametrize("text", [CHAIN, NESTED])
@pytest.mark.parametrize("form", ["proto", "ir"])
def test_a_plan_is_what_is_done(text: str, form: str) -> None:
    model = parse(text) if form == "proto" else ir.from_proto(parse(text))
    before = bytes_of(model)
    made = rewriter.plan(model, ALL)
    done = rewriter.run(model, ALL)
    assert made.changed
    assert made.rewrites == done.report.rewrites
    assert made.declined == done.report.declined
    assert bytes_of(model) == before
    for _ in range(2):  # it can be applied again
        assert bytes_of(made.apply().model) == bytes_of(done.model)
    assert bytes_of(model) == before


def test_a_file(tmp_path: Path) -> None:
    path = as_file(decorated(), tmp_path)
    made = rewriter.plan(path, ALL)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert made.apply(tmp_path / "a.onnx").model == tmp_path / "a.onnx"
    assert made.apply(tmp_path / "b.onnx").model.read_bytes() == (tmp_path / "a.onnx").read_bytes()
    assert (tmp_path / "a.onnx").read_bytes() == rewriter.apply(path, ALL, tmp_path / "c.onnx").read_bytes()
    with pytest.raises(TypeError, match="give one of them"):
        made.apply(tmp_path / "d.onnx", in_place=True)
    assert made.apply(in_place=True).model == path
    assert path.read_bytes() == (tmp_path / "a.onnx").read_bytes()


def test_rewrites_left_out_one_by_one() -> None:
    model = onnx.load(EXAMPLE)
    made = rewriter.plan(model, rules.weight_bias)
    for number, left in enumerate(made.rewrites):
        rest = made.without(number)
        assert [r.node for r in rest.rewrites] == [r.node for r in made.rewrites if r is not left]
        assert [(d.node, d.reason) for d in rest.declined] == [(left.node, "left out of the plan")]
        written = rest.apply().model
        (kept,) = (node for node in written.graph.node if node.name == left.node)
        assert list(kept.input) == list(next(n for n in model.graph.node if n.name == left.node).input)
    nothing = made.without(*made.rewrites)
    assert not nothing.changed
    assert nothing.apply().model is model
    with pytest.raises(ValueError, match="has no rewrite of 'conv0'"):
        made.without(0).without(made.rewrites[0])


def test_the_diff_of_a_chain() -> None:
    """Written by hand: two Relu become one, a Mul a Div by a new constant."""
    made = rewriter.plan(parse(CHAIN), everything)
    changed = [line for line in made.diff(0).splitlines() if not line.startswith("@@")]
    assert (
        changed
        == [
            "--- before",
            "+++ after",
            "-  a = Relu(x)",
            "-  b = Relu(a)",
            "-  two: float[1]",
            "-  y = Mul(b, two)",
            "+  b = Relu(x)",
            "+  b_half: float[1]",
            "+  y = Div(b, b_half)",
        ]
        or made.initializers
    ), made.diff(0)
    assert made._repr_html_().count("<span") == len(made.diff().splitlines())


def test_nothing_to_do() -> None:
    made = rewriter.plan(parse(CHAIN), everything.only("negs"))
    assert (made.changed, made.rewrites, made.diff(), str(made)) == (False, [], "", "nothing to do")


# -- provenance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["proto", "ir", "path"])
def test_new_nodes_say_where_they_come_from(form: str, tmp_path: Path) -> None:
    proto = onnx.load(EXAMPLE)
    proto.ir_version = 10
    forms: dict[str, Any] = {"proto": proto, "ir": ir.from_proto(proto), "path": as_file(proto, tmp_path)}
    model = forms[form]
    result = rewriter.run(model, rules.weight_bias)
    found = rewriter.provenance(result.model)
    added = [name for one in result.report.rewrites for name in one.added]
    assert sorted(one.node for one in found) == sorted(added)
    assert {one.rule for one in found} == {"conv", "gemm"}
    assert {one.rules for one in found} == {f"rules {rewriter.__version__}"}
    first = next(one for one in found if one.node.startswith("conv0"))
    assert (first.op_type, set(first.sources)) == ("DequantizeLinear", {"image.dq", "conv0", "relu0", "relu0.q"})
    written = onnx.load(result.model) if form == "path" else ir.to_proto(result.model) if form == "ir" else result.model
    props = next(
        {p.key: p.value for p in node.metadata_props} for node in written.graph.node if node.name == first.node
    )
    assert (props[RULE], props[RULES], tuple(json.loads(props[SOURCES]))) == (first.rule, first.rules, first.sources)
    onnx.checker.check_model(written)


def test_older_models_have_no_place_for_it() -> None:
    proto = onnx.load(EXAMPLE)
    assert proto.ir_version < 10
    written = rewriter.apply(proto, rules.weight_bias)
    assert not any(node.metadata_props for node in written.graph.node)
    assert rewriter.provenance(written) == []


def test_one_of_several_with_one_name() -> None:
    """Nodes of one name, in one graph or in two, and a rule that fits four times in a row."""
    twins = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x, float[2] w) => (float[2] y, float[2] z)
        { [n] a = Relu(x) [n] y = Relu(a) [n] b = Relu(w) [n] z = Relu(b) }"""
    made = rewriter.plan(parse(twins), everything.only("relus"))
    assert len(made.rewrites) == 2
    assert len(made.without(0).rewrites) == len(made.without(made.rewrites[1]).rewrites) == 1
    nested = rewriter.plan(parse(NESTED), everything.only("relus"))
    for number in range(len(nested.rewrites)):
        assert len(nested.without(number).rewrites) == len(nested.rewrites) - 1


def test_a_model_that_was_changed_since(tmp_path: Path) -> None:
    model = parse(CHAIN)
    made = rewriter.plan(model, everything)
    del model.graph.node[0]
    with pytest.raises(rewriter.ModelError, match="changed since"):
        made.apply()
    path = as_file(parse(CHAIN), tmp_path)
    made = rewriter.plan(path, everything)
    before = made.diff()
    made.apply(in_place=True)
    assert made.diff() == before


@pytest.mark.parametrize("wrong", [99, -1, "conv0", None])
def test_what_is_no_rewrite_of_the_plan(wrong: Any) -> None:
    with pytest.raises(ValueError, match="has no rewrite"):
        rewriter.plan(parse(CHAIN), everything).without(wrong)
