"""`explain`: what it says of matches, declines and opsets, where it looks, and that it changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxscript import opset17 as op
from onnxscript import script

import rewriter
import rules
from rewriter import Decline, Match, NoMatch, RewriterError, rule
from rewriter.pattern import Tensor
from tests.qdq_models import build
from tests.qdq_unit import Unit
from tests.rewriter.small_models import parse
from tests.rewriter.small_rules import everything

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_qdq.onnx"
CHAIN = """<ir_version: 10, opset_import: ["" : 20]>
    chain (float[2,3] x) => (float[2,3] y, float[2,3] a) {
        [first] a = Relu(x)
        [second] b = Relu(a)
        [third] y = Tanh(b)
    }"""


@script(default_opset=op)
def tanh(x: Tensor) -> Tensor:
    return op.Tanh(x)


@script(default_opset=op)
def relu(x: Tensor) -> Tensor:
    return op.Relu(x)


@rule(relu, tanh)
def says_no(m: Match) -> None:
    raise Decline("not this one")


@rule(relu, tanh)
def silent(m: Match) -> None:
    raise NoMatch


def test_a_match_and_what_declines() -> None:
    model = parse(CHAIN)
    assert rewriter.explain(model, everything.only("relus"), "second").findings[0].verdict == "matches"
    found = rewriter.explain(model, says_no + silent, "first")
    assert [(one.rule, one.verdict) for one in found.findings] == [("says_no", "declined"), ("silent", "nothing")]
    assert "not this one" in str(found)


def test_rules_for_other_opsets() -> None:
    newer = rewriter.rewrite(relu, tanh, opset=21)
    (found,) = rewriter.explain(parse(CHAIN), newer, "first").findings
    assert (found.verdict, found.reason) == (
        "opset",
        "the rule is made for ai.onnx opset 21 or later, the model has 20",
    )


@pytest.mark.parametrize("name", ["second", "b"])
def test_a_node_by_its_name_or_output(name: str) -> None:
    assert rewriter.explain(parse(CHAIN), everything, name).findings


def test_no_such_node() -> None:
    with pytest.raises(RewriterError, match="no node 'secnd'; did you mean 'second'"):
        rewriter.explain(parse(CHAIN), everything, "secnd")


def test_a_node_that_patterns_pass_over() -> None:
    found = rewriter.explain(EXAMPLE, rules.weight_bias, "relu0")
    assert not found.findings
    assert (
        str(found) == "no rule's pattern has a Relu, but for one that a P.Chain passes over; ask at 'conv0' before it"
    )


def test_the_whole_model_by_reason() -> None:
    """Units of two kinds of trouble: an Elu that no chain passes over, and a weight that is a graph input."""
    model = build(Unit(chain=2), np.random.default_rng(0))
    good = rewriter.explain(model, rules.weight_bias)
    assert not good.findings, good
    (first, _) = (node for node in model.graph.node if node.op_type == "Conv")
    first.op_type = "LRN"
    found = rewriter.explain(model, rules.weight_bias)
    assert {one.node for one in found.findings} <= {node.name or node.output[0] for node in model.graph.node}


@pytest.mark.parametrize("form", ["proto", "ir", "path", "reading"])
def test_every_form_of_model_is_left_alone(form: str, tmp_path: Path) -> None:
    proto = onnx.load(EXAMPLE)
    forms = {"proto": proto, "ir": ir.from_proto(proto), "path": EXAMPLE, "reading": rewriter.read(proto)}
    model = forms[form]
    both = rules.uint8_activations >> rules.weight_bias
    texts = {str(rewriter.explain(model, both, "conv1")) for _ in range(2)}
    assert len(texts) == 1
    assert "conv (" in texts.pop()
    assert proto.SerializeToString() == EXAMPLE.read_bytes() == onnx.load(EXAMPLE).SerializeToString()


def test_as_data() -> None:
    lone = parse(CHAIN.replace("b = Relu(a)", "b = Abs(a)"))
    found = rewriter.explain(lone, everything.only("relus"), "first")
    data = found.as_dict()
    assert (data["schema"], data["version"], data["node"]) == ("qdq-rewriter/explanation", 1, "first")
    (one,) = data["findings"]
    assert one["verdict"] == "missed"
    assert one["missed"][0]["question"] in ("op", "inner")
    assert all(set(miss) == {"question", "reason", "expected", "seen", "remedy", "place"} for miss in one["missed"])
