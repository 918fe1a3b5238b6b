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
from rewriter.pattern import P, Tensor
from tests.qdq_models import build
from tests.qdq_unit import Unit
from tests.rewriter.small_models import parse
from tests.rewriter.small_rules import a_tanh, any_relu, everything, one_relu

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_qdq.onnx"
CHAIN = """<ir_version: 10, opset_import: ["" : 20]>
    chain (float[2,3] x) => (float[2,3] y, float[2,3] a) {
        [first] a = Relu(x)
        [second] b = Relu(a)
        [third] y = Tanh(b)
    }"""


@rule(any_relu, a_tanh)
def says_no(m: Match) -> None:
    raise Decline("not this one")


@rule(any_relu, a_tanh)
def silent(m: Match) -> None:
    raise NoMatch


def test_a_match_and_what_declines() -> None:
    model = parse(CHAIN)
    assert rewriter.explain(model, everything.only("relus"), "second").findings[0].verdict == "matches"
    found = rewriter.explain(model, says_no + silent, "first")
    assert [(one.rule, one.verdict) for one in found.findings] == [("says_no", "declined"), ("silent", "nothing")]
    assert "not this one" in str(found)


def test_rules_for_other_opsets() -> None:
    newer = rewriter.rewrite(any_relu, a_tanh, opset=21)
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
        str(found) == "no rule's pattern has a Relu, but for one that a P.Chain passes over or a Many repeats; "
        "ask at 'conv0' before it"
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


@script(default_opset=op)
def behind_a_chain(x: Tensor) -> Tensor:
    return op.Exp(P.Chain(op.Transpose(x), ops=["Relu", "Neg"]))


@pytest.mark.parametrize("node", ["t", "e"])
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("[t] a = Transpose(x) [r] b = Relu(a) [n] c = Neg(b) [e] y = Exp(c) [o] z = Abs(b)", "uses"),
        ("[t] a = Transpose(x) [r] z = Relu(a) [n] c = Neg(z) [e] y = Exp(c)", "inner"),
    ],
)
def test_what_cuts_a_chain_is_named_from_both_ends(body: str, kind: str, node: str) -> None:
    model = parse(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[2,3] x) => (float[3,2] y, float[3,2] z) {{{body}}}'
    )
    rule_set = rewriter.rewrite(behind_a_chain, a_tanh)
    (found,) = rewriter.explain(model, rule_set, node).findings
    assert found.missed[0].question == kind, found
    assert "Relu" in found.missed[0].reason


def test_the_ops_that_a_chain_passes_over_are_told() -> None:
    body = "[t] a = Transpose(x) [s] b = Sin(a) [e] y = Exp(b)"
    model = parse(f'<ir_version: 8, opset_import: ["" : 18]> g (float[2,3] x) => (float[3,2] y) {{{body}}}')
    (found,) = rewriter.explain(model, rewriter.rewrite(behind_a_chain, a_tanh), "e").findings
    assert found.missed[0].expected == "a Transpose, before any Relu, Neg"


BRANCHES = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = then () => (float[2] t) { [n] t0 = Relu(x) [n2] t = Neg(t0) },
            else_branch = other () => (float[2] e) { [n] e0 = Relu(x) [n3] e = Relu(e0) }
        >
    }"""


def test_a_name_in_two_graphs_is_asked_about_in_both() -> None:
    found = rewriter.explain(parse(BRANCHES), everything.only("relus"), "n")
    assert [(one.node.partition(" of ")[0], one.verdict) for one in found.findings] == [
        ("n (in else_branch", "matches"),
        ("n (in then_branch", "missed"),
    ]


def test_later_stages_say_so() -> None:
    found = rewriter.explain(
        parse(CHAIN), everything.only("relus") >> rewriter.rewrite(a_tanh, one_relu, name="relu"), "third"
    )
    assert [(one.rule, one.stage) for one in found.findings] == [("relu", 2)]
    assert "in stage 2" in str(found)


def test_words() -> None:
    """Nothing is said twice over, or says the contrary of what is so."""
    done = rewriter.apply(onnx.load(EXAMPLE), rules.weight_bias)
    text = str(rewriter.explain(done, rules.weight_bias, "conv0"))
    assert "w is produced by DequantizeLinear" in text
    assert "not produced by anything but" not in text
    with pytest.raises(TypeError, match="the name of a node"):
        rewriter.explain(done, rules.weight_bias, done.graph.node[0])
    fits = str(rewriter.explain(EXAMPLE, rules.weight_bias, "conv0"))
    assert fits.splitlines()[1] == "(3 other rules do not fit there)"
