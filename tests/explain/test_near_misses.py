"""`explain` names what is wrong: in models made from the patterns of rules, with one condition spoilt at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated

import onnx
import pytest
from onnxscript import opset18 as op
from onnxscript import script

import rewriter
import rules
from docs.gallery.conv_batch_norm import fold_batch_norm
from docs.gallery.gelu import erf_gelu
from docs.gallery.gemm import matmul_add_to_gemm
from docs.gallery.layer_norm import layer_normalization
from docs.gallery.q_dq_pair import qdq_pairs
from docs.gallery.qlinear_conv import qlinear_conv_to_qdq
from docs.gallery.reshape import reshape_chain
from docs.gallery.skip_layer_norm import skip_layer_norm
from docs.gallery.transpose import transposes
from rewriter import Rule, RuleSet
from rewriter.compiler.program import Leaf, anchor_of
from rewriter.compiler.questions import COSTS, Question
from rewriter.compiler.variants import Variant
from rewriter.engine.table import Table
from rewriter.explaining import Explanation, Finding, explain
from rewriter.explaining.asking import Asking
from rewriter.pattern import Dims, Maybe, Tensor
from tests.explain.instances import OPSET, Spoiler, instance
from tests.rewriter.small_models import parse

# -- kinds of questions that the shipped rules do not ask -----------------------------------------------


@script(default_opset=op)
def two_softmax(x: Tensor, axis: int = 1) -> Tensor:
    return op.Softmax(op.Abs(op.Softmax(x, axis=axis)), axis=axis)


@script(default_opset=op)
def one_softmax(x: Tensor, axis: int = 1) -> Tensor:
    return op.Softmax(x, axis=axis)


@script(default_opset=op)
def matched_dims(a: Annotated[Tensor, Dims("M", "N")], b: Annotated[Tensor, Dims("M", "N")]) -> Tensor:
    return op.Sub(op.Abs(a), op.Abs(b))


@script(default_opset=op)
def difference(a: Tensor, b: Tensor) -> Tensor:
    return op.Sub(a, b)


@script(default_opset=op)
def clip_without_low(x: Tensor, high: Annotated[Tensor, Maybe]) -> Tensor:
    return op.Clip(x, None, high)


@script(default_opset=op)
def relu(x: Tensor, high: Annotated[Tensor, Maybe]) -> Tensor:
    return op.Min(x, high)


@script(default_opset=op)
def first_of_two(x: Tensor, k: Tensor) -> Tensor:
    values, _ = op.TopK(x, k)
    return op.Abs(values)


@script(default_opset=op)
def largest(x: Tensor, k: Tensor) -> Tensor:
    return op.ReduceMax(x, k)


OTHERS = [
    rewriter.rewrite(two_softmax, one_softmax),
    rewriter.rewrite(matched_dims, difference),
    rewriter.rewrite(clip_without_low, relu),
    rewriter.rewrite(first_of_two, largest),
]
SETS: list[RuleSet] = [
    rules.weight_bias, rules.uint8_activations, fold_batch_norm, erf_gelu, matmul_add_to_gemm, layer_normalization,
    qdq_pairs, qlinear_conv_to_qdq, reshape_chain, skip_layer_norm, transposes, *OTHERS,
]  # fmt: skip
BY_HAND = {"distinct", "lanes"}  # below
ENOUGH = 6  # of one kind for one rule

Case = tuple[Rule, str, Question, onnx.ModelProto, str]  # the name of what is spoilt, and of the node asked about


def variants() -> Iterator[tuple[Rule, Variant, Asking, Leaf]]:
    for rule_set in SETS:
        for rule in rule_set.rules():
            for variant, script_ in rule.definition.variants:
                _, newest = rule.definition.window(variant).get("", (1, None))
                model = instance(variant, min(newest or OPSET, OPSET))
                if model is None:
                    continue
                reading = rewriter.read(model)
                asking = Asking(reading.table, (rule,), model)
                core = variant.core
                anchor = core.node if core is not None and core.node is not None else anchor_of(variant, {})
                yield rule, variant, asking, asking.leaf(0, variant, script_, anchor)


def cases() -> Iterator[Case]:
    counts: Counter[tuple[str, str]] = Counter()
    for rule, variant, asking, leaf in variants():
        table = asking.table
        (kind,) = leaf.lowered.anchor.types[:1]
        for node in (n for n in range(1, len(table.op)) if table.op[n] == kind):
            walked = asking.prober(leaf).probe(leaf.lowered, node)
            if not walked.misses:
                break
        else:
            continue
        spoiler = Spoiler(asking.run.model, table, asking.space, walked.at)
        for question, _ in leaf.lowered.steps:
            if not isinstance(question, Question) or any(p not in walked.at for p in question.positions):
                continue
            if counts[rule.name, question.kind] >= ENOUGH:
                continue
            spoilt = spoiler.spoil(question, variant)
            if spoilt is not None and not list(rewriter.find(spoilt, rule)):  # else another form of the rule fits now
                counts[rule.name, question.kind] += 1
                yield rule, named(asking.table, leaf, question, walked.at), question, spoilt, table.label(node)


def named(table: Table, leaf: Leaf, question: Question, at: Mapping[int, object]) -> str:
    """What a question is about, by its name in the model, or in the pattern where nothing is there."""
    position = question.positions[0]
    held = at[position]
    assert isinstance(held, int)
    if leaf.lowered.labels and question.kind in ("present", "absent"):
        return leaf.lowered.labels[position]
    is_node = position in leaf.lowered.node_positions.values()
    return repr(table.label(held) if is_node else table.name[held])


ALL = list(cases())


def test_there_are_many_of_every_kind() -> None:
    found = Counter(question.kind for _, _, question, _, _ in ALL)
    assert len(ALL) >= 300
    assert len({rule.name for rule, *_ in ALL}) >= 20
    assert set(found) == set(COSTS) - BY_HAND


@pytest.mark.parametrize("kind", sorted(set(COSTS) - BY_HAND))
def test_the_spoilt_condition_is_named_first(kind: str) -> None:
    for rule, name, question, model, node in ALL:
        if question.kind != kind:
            continue
        explained = explain(model, rule, node)
        first = explained.findings[0]
        assert first.verdict == "missed", explained
        assert first.missed[0].question == kind, explained
        assert name in first.missed[0].seen + first.missed[0].expected, explained


# -- what is spoilt by hand -----------------------------------------------------------------------------


def only(explained: Explanation) -> Finding:
    (found,) = explained.findings
    return found


@script(default_opset=op)
def both_abs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = op.Neg(x)
    return op.Add(z, x), op.Add(z, y)


@script(default_opset=op)
def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return op.Sub(x, x), op.Sub(y, x)


def test_one_node_for_two() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 18]>
        one (float[2] x) => (float[2] a) { [n] z = Neg(x) [a] a = Add(z, x) }"""
    )
    found = only(explain(model, rewriter.rewrite(both_abs, both), "n"))
    assert found.verdict == "missed"
    assert "distinct" in {one.question for one in found.missed}


def test_a_repeated_input() -> None:
    from docs.gallery.concat_dequantize import concat_dequantize

    text = """<ir_version: 10, opset_import: ["" : 18]>
        parts (uint8[2] a, uint8[2] b) => (uint8[4] y) <float s = {{0.5}}, uint8 z = {{3}}, float t = {{0.25}}> {{
            [da] fa = DequantizeLinear(a, s, z)
            [db] fb = {second}
            [join] c = Concat <axis = 0> (fa, fb)
            [q] y = QuantizeLinear(c, s, z)
        }}"""
    good = parse(text.format(second="DequantizeLinear(b, s, z)"))
    other_scale = parse(text.format(second="DequantizeLinear(b, t, z)"))
    other_op = parse(text.format(second="Cast <to = 1> (b)"))
    assert explain(good, concat_dequantize, "join").findings[0].verdict == "matches"
    assert explain(other_scale, concat_dequantize, "join").findings[0].missed[0].question in ("same", "lanes")
    missed = explain(other_op, concat_dequantize, "join").findings[0].missed[0]
    assert missed.question == "op"
    assert "a Cast stands where a DequantizeLinear is expected" in missed.reason
    assert "'db'" in missed.seen
