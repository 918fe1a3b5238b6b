"""What a rewrite does to the graph: small rules, and the nodes of a model before and after.

`rewriting.check` runs both models and compares them to the bit; so the rules here are exact, or checked
with `run` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import onnx
import onnxscript
import pytest
from onnx import numpy_helper
from onnxscript import script
from onnxscript.values import Opset

import rewriter
from rewriter import Decline, Match, NoMatch, RuleError, rewrite, rule
from rewriter.pattern import Const, Many, Maybe, P, Tensor
from tests import rewriting
from tests.rewriting import ops, parse, show

op: Any = onnxscript.opset17
custom: Any = Opset("custom", 1)


@script(default_opset=op)
def nothing(x: Tensor) -> Tensor:
    return x


# Names of graph inputs and outputs


@script(default_opset=op)
def two_negs(x: Tensor) -> Tensor:
    return op.Neg(op.Neg(x))


no_negs = rewrite(two_negs, nothing, name="no_negs")


@pytest.mark.parametrize(
    ("nodes", "outputs", "expected"),
    [
        ("a = Relu(x)\n b = Neg(a)\n c = Neg(b)\n y = Abs(c)", "float[2] y", ["a = Relu(x)", "y = Abs(a)"]),
        (
            "a = Neg(x)\n y = Neg(a)",
            "float[2] y",
            ["y = Identity(x)"],
        ),  # an input and an output keep their names
        ("a = Relu(x)\n b = Neg(a)\n y = Neg(b)", "float[2] y", ["y = Relu(x)"]),
        (
            "a = Relu(x)\n b = Neg(a)\n y = Neg(b)\n z = Abs(a)",
            "float[2] y, float[2] z",
            ["y = Relu(x)", "z = Abs(y)"],
        ),
        (
            "a = Relu(x)\n b = Neg(a)\n y = Neg(b)",
            "float[2] y, float[2] a",
            ["a = Relu(x)", "y = Identity(a)"],  # two outputs that are one value
        ),
        (
            "a = Relu(x)\n b = Neg(a)\n y = Neg(b)\n z = Abs(y)",
            "float[2] y, float[2] z, float[2] b",
            ["y = Relu(x)", "b = Neg(y)", "z = Abs(y)"],
        ),
        ("a = Neg(x)\n y = Neg(a)\n z = Neg(y)\n w = Neg(z)", "float[2] w", ["w = Identity(x)"]),
        ("a = Neg(x)\n b = Neg(a)\n c = Neg(b)\n y = Neg(c)\n z = Relu(b)", "float[2] y, float[2] z", None),
    ],
)
def test_inputs_and_outputs_keep_their_names(nodes: str, outputs: str, expected: list[str] | None) -> None:
    result = rewriting.check(parse(f"g (float[2] x) => ({outputs}) {{ {nodes} }}"), no_negs)
    if expected is not None:
        assert show(result.model) == expected


def test_an_output_of_a_body_keeps_its_name() -> None:
    text = """g (float[2] x, bool k) => (float[2] y) {
        a = Relu(x)
        y = If (k) <then_branch = t () => (float[2] r) { p = Neg(a)
                        r = Neg(p) },
                    else_branch = e () => (float[2] r2) { r2 = Neg(x) }>
    }"""
    result = rewriting.check(parse(text), no_negs)
    (body,) = [a.g for a in result.model.graph.node[1].attribute if a.name == "then_branch"]
    assert [(n.op_type, list(n.input), list(n.output)) for n in body.node] == [("Identity", ["a"], ["r"])]


def test_a_function_is_rewritten_in_its_own_text() -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "custom": 1]>
    g (float[2] x) => (float[2] y) { y = custom.f(x) }
    <domain: "custom", opset_import: ["": 17]>
    f (p) => (q) { a = Abs(p)
        b = Neg(a)
        c = Neg(b)
        q = Exp(c) }"""
    result = rewriting.check(parse(text), no_negs)
    assert [n.op_type for n in result.model.functions[0].node] == ["Abs", "Exp"]


# Tied nodes


@script(default_opset=op)
def conv_relu(x: Tensor, w: Annotated[Tensor, Const], b: Annotated[Tensor, Const, Maybe]) -> Tensor:
    conv = op.Conv(x, w, b)
    return op.Neg(conv)


@script(default_opset=op)
def negated_conv(x: Tensor, w_neg: Tensor, b_neg: Tensor) -> Tensor:
    conv = op.Conv(x, w_neg, b_neg)
    return conv


@rule(conv_relu, negated_conv)
def negate_weights(m: Match) -> Mapping[str, object]:
    return {"w_neg": -m.array("w"), "b_neg": None if m.maybe("b") is None else -m.array("b")}


CONV = """g (float[1,1,4] x) => (float[1,2,2] y) <float[2,1,3] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}> {
    c = Conv <kernel_shape = [3], group = 1> (x, w, b)
    y = Neg(c)
}"""


def test_a_tied_node_keeps_what_the_target_does_not_write() -> None:
    model = parse(CONV, ir_version=10)
    conv = model.graph.node[0]
    conv.name, conv.doc_string = "the_conv", "written by hand"
    conv.metadata_props.add(key="from", value="layer 3")
    result = rewriting.check(model, negate_weights)
    (after,) = result.model.graph.node
    assert show(result.model) == ["y = Conv(x, w_neg, b_neg)"]
    assert (after.name, after.doc_string) == (conv.name, conv.doc_string)
    assert list(after.metadata_props) == list(conv.metadata_props)
    assert list(after.attribute) == list(conv.attribute)
    assert [t.name for t in result.model.graph.initializer] == ["w_neg", "b_neg"]
    (done,) = result.report.rewrites
    assert (done.added, done.changed, done.removed) == ((), ("the_conv",), ("y",))


def test_an_absent_input_stays_absent() -> None:
    result = rewriting.check(
        parse(CONV.replace("(x, w, b)", "(x, w)").replace(", float[2] b = {1, 2}", "")), negate_weights
    )
    assert show(result.model) == ["y = Conv(x, w_neg)"]


def test_a_node_whose_value_changes_must_not_be_seen() -> None:
    for more, outputs in [
        ("z = Abs(c)", "float[1,2,2] y, float[1,2,2] z"),
        ("", "float[1,2,2] y, float[1,2,2] c"),
    ]:
        text = CONV.replace("y = Neg(c)", f"y = Neg(c)\n{more}").replace("float[1,2,2] y", outputs)
        assert not rewriting.check(parse(text), negate_weights).changed


def test_a_tied_attribute_is_written_only_where_it_differs() -> None:
    @script(default_opset=op)
    def hot(x: Tensor, alpha: float) -> Tensor:
        leaky = op.LeakyRelu(op.Abs(x), alpha=alpha)
        return leaky

    @script(default_opset=op)
    def cold(x: Tensor, alpha: float) -> Tensor:
        leaky = op.LeakyRelu(op.Relu(x), alpha=alpha)
        return leaky

    text = "g (float[2] x) => (float[2] y) { a = Abs(x)\n [n] y = LeakyRelu <alpha = 0.5, mark = 3> (a) }"
    model = parse(text)
    del model.graph.node[1].attribute[1]
    result = rewriting.run(model, rewrite(hot, cold, name="cool"))
    assert ops(result.model) == ["Relu", "LeakyRelu"]
    assert list(result.model.graph.node[1].attribute) == list(model.graph.node[1].attribute)


def test_none_takes_an_attribute_away() -> None:
    @script(default_opset=op)
    def with_axis(x: Tensor, axis: int) -> Tensor:
        return op.Softmax(x, axis=axis)

    @rule(with_axis, with_axis)
    def plain(m: Match) -> Mapping[str, object]:
        if "axis" not in m.root._table.attributes(m.root.id) or m["axis"] != -1:
            raise NoMatch
        return {"axis": None}

    result = rewriting.check(parse("g (float[2] x) => (float[2] y) { y = Softmax <axis = -1> (x) }"), plain)
    assert len(result.model.graph.node[0].attribute) == 0


def test_a_returned_value_wins_over_a_bound_one() -> None:
    @script(default_opset=op)
    def scaled(x: Tensor, c: Annotated[Tensor, Const]) -> Tensor:
        return op.Div(x, c)

    @rule(scaled, scaled)
    def unit(m: Match) -> Mapping[str, object]:
        if (m.array("c") == 1).all():
            raise NoMatch
        return {"c": np.ones_like(m.array("c"))}

    model = parse("g (float[2] x) => (float[2] y) <float[2] c = {2, 3}> { y = Div(x, c) }")
    result = rewriting.run(model, unit)
    assert [numpy_helper.to_array(t).tolist() for t in result.model.graph.initializer] == [[1, 1]]


# Absent values


@script(default_opset=op)
def product(x: Tensor, c: Annotated[Tensor, Const]) -> Tensor:
    return x * c


@script(default_opset=op)
def through_a_cast(x: Tensor, c_raw: Tensor, c_scale: Tensor) -> Tensor:
    c_dq = op.DequantizeLinear(c_raw, c_scale)
    y = op.Conv(x, c_dq)
    return y


def test_a_node_whose_required_input_is_absent_disappears() -> None:
    @script(default_opset=op)
    def conv(x: Tensor, w: Annotated[Tensor, Const], b: Annotated[Tensor, Const, Maybe]) -> Tensor:
        out = op.Conv(op.Relu(x), w, b)
        return out

    @script(default_opset=op)
    def cast_bias(x: Tensor, w: Tensor, b_raw: Tensor) -> Tensor:
        b_cast = op.Cast(b_raw, to=1)
        out = op.Conv(op.Abs(x), w, b_cast)
        return out

    @rule(conv, cast_bias)
    def cast(m: Match) -> Mapping[str, object]:
        return {"b_raw": None if m.maybe("b") is None else m.array("b").astype(np.float64)}

    with_bias = CONV.replace("(x, w, b)", "(r, w, b)").replace("c = Conv", "r = Relu(x)\n c = Conv")
    assert ops(rewriting.run(parse(with_bias), cast).model) == ["Abs", "Cast", "Conv", "Neg"]
    without = with_bias.replace("(r, w, b)", "(r, w)").replace(", float[2] b = {1, 2}", "")
    assert ops(rewriting.run(parse(without), cast).model) == ["Abs", "Conv", "Neg"]


def test_a_returned_value_may_not_be_absent() -> None:
    @script(default_opset=op)
    def added(x: Tensor, extra: Tensor) -> Tensor:
        return x + extra

    @rule(two_negs, added)
    def broken(m: Match) -> Mapping[str, object]:
        return {"extra": None}

    with pytest.raises(RuleError, match=r"rule 'broken' .*test_engine_edits.py:\d+.*may not be absent"):
        rewriting.run(parse("g (float[2] x) => (float[2] y) { a = Neg(x)\n y = Neg(a) }"), broken)


# New nodes: inherited attributes, constants, names, opsets


def test_inherit() -> None:
    @script(default_opset=op)
    def softmax(x: Tensor) -> Tensor:
        old = P.Op(op.Neg(x), types=["Softmax", "LogSoftmax"])
        return op.Exp(old)

    @script(default_opset=op)
    def after(x: Tensor) -> Tensor:
        new = P.Op(x, types=["Softmax", "LogSoftmax"])
        return op.Abs(new)

    swap = rewrite(softmax, after, name="swap", inherit={"old": "new"})
    for kind in ("Softmax", "LogSoftmax"):
        text = f"g (float[2,3] x) => (float[2,3] y) {{ n = Neg(x)\n s = {kind} <axis = 0> (n)\n y = Exp(s) }}"
        result = rewriting.run(parse(text), swap)
        assert ops(result.model) == [kind, "Abs"]
        assert [(a.name, a.i) for a in result.model.graph.node[0].attribute] == [("axis", 0)]


def test_a_literal_of_the_target_takes_the_type_of_its_neighbour() -> None:
    @script(default_opset=op)
    def doubled(x: Tensor) -> Tensor:
        return x + x

    @script(default_opset=op)
    def times_two(x: Tensor) -> Tensor:
        return x * 2.0

    twice = rewrite(doubled, times_two, name="twice")
    for kind in ("float", "double", "float16", "int32"):
        result = rewriting.check(parse(f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Add(x, x) }}"), twice)
        assert ops(result.model) == ["Mul"]
    # of an inner value, too, whose type nobody declares
    text = "g (int64[2] x) => (int64[2] y) { a = Abs(x)\n b = Neg(a)\n y = Add(b, b) }"
    assert ops(rewriting.check(parse(text), twice).model) == ["Abs", "Neg", "Mul"]


def test_equal_constants_are_made_once() -> None:
    @script(default_opset=op)
    def halved(x: Tensor) -> Tensor:
        return op.Mul(op.Neg(x), 0.5)

    @script(default_opset=op)
    def divided(x: Tensor) -> Tensor:
        return op.Div(op.Neg(x), 2.0)

    nodes = "a = Neg(x)\n b = Mul(a, h)\n c = Neg(b)\n y = Mul(c, h)"
    result = rewriting.check(
        parse(f"g (float[2] x) => (float[2] y) <float h = {{0.5}}> {{ {nodes} }}"), rewrite(halved, divided)
    )
    assert ops(result.model) == ["Neg", "Div", "Neg", "Div"]
    values = [numpy_helper.to_array(t).tolist() for t in result.model.graph.initializer]
    assert set(values) == {2.0}


def test_a_shared_constant_stays_for_its_other_user() -> None:
    text = CONV.replace("y = Neg(c)", "y = Neg(c)\n z = Abs(w)").replace(
        "float[1,2,2] y", "float[1,2,2] y, float[2,1,3] z"
    )
    result = rewriting.check(parse(text), negate_weights)
    assert sorted(t.name for t in result.model.graph.initializer) == ["b_neg", "w", "w_neg"]


def test_names_never_collide() -> None:
    text = CONV.replace("y = Neg(c)", "y = Neg(c)\n w_neg = Abs(x)\n b_neg = Exp(w_neg)\n z = Neg(b_neg)")
    text = text.replace("float[1,2,2] y)", "float[1,2,2] y, float[1,1,4] z)")
    result = rewriting.check(parse(text), negate_weights)
    assert show(result.model)[0] == "y = Conv(x, w_neg_1, b_neg_1)"


def test_a_target_that_the_model_has_no_op_for_is_declined() -> None:
    newer: Any = onnxscript.opset20

    @script(default_opset=newer)
    def gelu(x: Tensor) -> Tensor:
        return newer.Gelu(x)

    never = rewrite(two_negs, gelu, name="never", opset=(1, None))
    model = parse("g (float[2] x) => (float[2] y) { a = Neg(x)\n y = Neg(a) }", 17)
    result = rewriting.run(model, never)
    assert not result.changed
    assert [d.reason for d in result.report.declined] == ["the target's Gelu does not exist at opset 17 of this model"]


def test_a_new_domain_is_imported() -> None:
    @script(default_opset=op)
    def wobble(x: Tensor) -> Tensor:
        return custom.Wobble(x)

    model = parse("g (float[2] x) => (float[2] y) { a = Neg(x)\n y = Neg(a) }")
    result = rewriting.run(model, rewrite(two_negs, wobble))
    assert {e.domain: e.version for e in result.model.opset_import} == {"": 17, "custom": 1}
    assert result.model.graph.node[0].domain == "custom"


def test_a_returned_value_of_another_type_is_declined() -> None:
    @script(default_opset=op)
    def cast_twice(x: Tensor) -> Tensor:
        return op.Cast(op.Cast(x, to=1), to=7)

    no_casts = rewrite(cast_twice, nothing, name="no_casts")
    text = "g (int64[2] x) => (int64[2] y) { a = Cast <to = 1> (x)\n y = Cast <to = 7> (a) }"
    small = [{"x": np.array([3, -70000])}]  # what float32 holds
    assert ops(rewriting.check(parse(text), no_casts, feeds=small).model) == ["Identity"]
    result = rewriting.check(parse(text.replace("int64[2] x", "int32[2] x")), no_casts)
    assert not result.changed
    assert [d.reason for d in result.report.declined] == ["'y' is int64, what would replace it int32"]


# Several outputs, order, cycles


@script(default_opset=op)
def relu_and_neg(x: Tensor) -> tuple[Tensor, Tensor]:
    return op.Relu(x), op.Neg(x)


@script(default_opset=op)
def both(x: Tensor) -> tuple[Tensor, Tensor]:
    negative = op.Neg(x)
    return op.Max(x, op.Sub(x, x)), negative


def test_readers_of_an_early_output_stay_behind() -> None:
    """`Neg` comes last, so what is new must not stand there: `Exp` reads the other output before."""
    text = """g (float[2] x) => (float[2] y, float[2] z) {
        r = Relu(x)
        z = Exp(r)
        w = Abs(z)
        n = Neg(x)
        y = Add(n, w)
    }"""
    result = rewriting.check(parse(text), rewrite(relu_and_neg, both))
    assert ops(result.model) == ["Sub", "Max", "Exp", "Abs", "Neg", "Add"]


@script(default_opset=op)
def two_sums(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return op.Relu(op.Add(a, b)), op.Exp(op.Add(a, c))


@script(default_opset=op)
def one_sum(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Both results need both summands."""
    wide = op.Concat(op.Add(a, b), op.Add(a, c), axis=0)
    left, right = op.Split(wide, axis=0)
    return op.Relu(left), op.Exp(right)


def test_an_early_reader_moves_behind_a_late_feeder() -> None:
    text = """g (float[2] x, float[2] b) => (float[2] y, float[2] z) {
        s = Add(x, b)
        r = Relu(s)
        early = Abs(r)
        z = Sqrt(early)
        late = Sin(b)
        t = Add(x, late)
        e = Exp(t)
        y = Neg(e)
    }"""
    result = rewriting.check(parse(text, 13), rewrite(two_sums, one_sum))
    order = ops(result.model)
    assert order.index("Abs") > order.index("Split") > order.index("Sin")
    assert order.index("Sqrt") > order.index("Abs")


def test_what_would_close_a_cycle_is_declined() -> None:
    text = """g (float[2] x, float[2] b) => (float[2] y) {
        s = Add(x, b)
        r = Relu(s)
        late = Sin(r)
        t = Add(x, late)
        y = Exp(t)
    }"""
    result = rewriting.check(parse(text, 13), rewrite(two_sums, one_sum))
    assert not result.changed
    assert [d.reason for d in result.report.declined] == ["the rewrite would close a cycle through node 'r'"]


def test_a_cycle_through_a_body_is_seen() -> None:
    text = """g (float[2] x, float[2] b, bool k) => (float[2] y) {
        s = Add(x, b)
        r = Relu(s)
        late = If (k) <then_branch = t () => (float[2] p) { p = Sin(r) },
                       else_branch = e () => (float[2] q) { q = Cos(x) }>
        t = Add(x, late)
        y = Exp(t)
    }"""
    assert not rewriting.check(parse(text, 13), rewrite(two_sums, one_sum)).changed


def test_new_nodes_on_both_sides_of_a_kept_one() -> None:
    @script(default_opset=op)
    def before(x: Tensor, w: Tensor) -> Tensor:
        conv = op.Conv(x, w)
        return op.Relu(conv)

    @script(default_opset=op)
    def after(x: Tensor, w: Tensor) -> Tensor:
        conv = op.Conv(op.Neg(x), op.Neg(w))
        return op.Max(conv, op.Sub(conv, conv))

    text = """g (float[1,1,4] x, float[2,1,3] v) => (float[1,2,2] y) {
        w = Abs(v)
        [keep] c = Conv(x, w)
        y = Relu(c)
    }"""
    result = rewriting.check(parse(text), rewrite(before, after))
    assert ops(result.model) == ["Abs", "Neg", "Neg", "Conv", "Sub", "Max"]
    assert result.model.graph.node[3].name == "keep"


def test_random_graphs_stay_sorted() -> None:
    """Many overlapping matches of a rule with two outputs, on random graphs."""
    swap = rewrite(relu_and_neg, both)
    for seed in range(15):
        rng = np.random.default_rng(seed)
        nodes, values = [], ["x"]
        for k in range(25):
            kind = rng.choice(["Relu", "Neg", "Abs", "Add"])
            inputs = rng.choice(values[-5:], 2 if kind == "Add" else 1)
            nodes.append(f"v{k} = {kind}({', '.join(inputs)})")
            values.append(f"v{k}")
        text = f"g (float[3] x) => (float[3] v24, float[3] v20) {{ {chr(10).join(nodes)} }}"
        rewriting.check(parse(text), swap)


# Chains and lanes move as they are


@script(default_opset=op)
def abs_chain(x: Tensor) -> Tensor:
    start = op.Abs(x)
    moved = P.Chain(start, ops=["Relu", "Clip"])
    return op.Abs(moved)


@script(default_opset=op)
def chain_abs(x: Tensor) -> Tensor:
    start = op.Abs(x)
    moved = P.Chain(start, ops=["Relu", "Clip"])
    return moved


@pytest.mark.parametrize("links", [[], ["Relu"], ["Relu", "Relu"]])
def test_a_tied_chain_is_kept(links: list[str]) -> None:
    lines = [f"v{k + 1} = {kind}(v{k})" for k, kind in enumerate(links)]
    text = "g (float[2] x) => (float[2] y) { v0 = Abs(x)\n" + "\n".join(lines) + f"\n y = Abs(v{len(links)}) }}"
    result = rewriting.check(parse(text), rewrite(abs_chain, chain_abs))
    assert ops(result.model) == ["Abs", *links]


def test_a_chain_moves_to_another_start() -> None:
    @script(default_opset=op)
    def before(x: Tensor) -> Tensor:
        moved = P.Chain(op.Neg(op.Neg(x)), ops=["Relu"])
        return op.Exp(moved)

    @script(default_opset=op)
    def after(x: Tensor) -> Tensor:
        moved = P.Chain(x, ops=["Relu"])
        return op.Exp(moved)

    move = rewrite(before, after)
    for links in range(3):
        lines = "\n".join(f"v{k + 1} = Relu(v{k})" for k in range(links))
        text = f"g (float[2] x) => (float[2] y) {{ a = Neg(x)\n v0 = Neg(a)\n{lines}\n y = Exp(v{links}) }}"
        assert ops(rewriting.check(parse(text), move).model) == ["Relu"] * links + ["Exp"]


@script(default_opset=op)
def negated_parts(xs: Annotated[Tensor, Many], axis: int) -> Tensor:
    parts = op.Neg(xs)
    return op.Concat(parts, axis=axis)


@script(default_opset=op)
def negated_whole(xs: Tensor, axis: int) -> Tensor:
    return op.Neg(op.Concat(xs, axis=axis))


@script(default_opset=op)
def absolute_parts(xs: Tensor, axis: int) -> Tensor:
    parts = op.Abs(op.Exp(xs))
    return op.Concat(parts, axis=axis)


def test_many_are_gathered() -> None:
    nodes = "a = Neg(x)\n b = Neg(z)\n y = Concat <axis = 0> (a, b, b)"
    text = f"g (float[1] x, float[2] z) => (float[5] y) {{ {nodes} }}"
    result = rewriting.check(parse(text), rewrite(negated_parts, negated_whole))
    assert list(result.model.graph.node[0].input) == ["x", "z", "z"]
    assert ops(result.model) == ["Concat", "Neg"]


def test_many_are_repeated() -> None:
    nodes = "a = Neg(x)\n b = Neg(z)\n y = Concat <axis = 0> (a, b)"
    text = f"g (float[1] x, float[2] z) => (float[3] y) {{ {nodes} }}"
    result = rewriting.run(parse(text), rewrite(negated_parts, absolute_parts))
    assert sorted(ops(result.model)) == ["Abs", "Abs", "Concat", "Exp", "Exp"]


# The escape hatch


def test_the_escape_hatch_builds_what_no_target_can() -> None:
    @script(default_opset=op)
    def power(x: Tensor, n: Annotated[Tensor, Const]) -> Tensor:
        return op.Pow(x, n)

    @rule(power)
    def unrolled(m: Match) -> None:
        exponent = m.array("n")
        if exponent.size != 1 or exponent.item() not in (2, 3, 4):
            raise Decline("not a small power")
        edit, x = m.edit, m.value("x")
        result: Any = x
        for k in range(int(exponent.item()) - 1):
            result = edit.node("Mul", [result, x], name=f"{m.root.name}_{k}")
        edit.replace(m.root.outputs[0], result)  # type: ignore[arg-type]
        edit.remove(m.root)

    text = "g (float[2] x) => (float[2] y) <float n = {3}, float k = {9}> { [p] a = Pow(x, n)\n y = Pow(a, k) }"
    result = rewriting.check(parse(text), unrolled, rtol=1e-5)
    assert ops(result.model) == ["Mul", "Mul", "Pow"]
    assert [n.name for n in result.model.graph.node][:2] == ["p_0", "p_1"]
    assert [(d.node, d.reason) for d in result.report.declined] == [("y", "not a small power")]
    assert [t.name for t in result.model.graph.initializer] == ["k"]


def test_the_escape_hatch_sets_inputs_and_attributes() -> None:
    @script(default_opset=op)
    def softmax(x: Tensor, axis: int) -> Tensor:
        return op.Softmax(op.Neg(x), axis=axis)

    @rule(softmax)
    def direct(m: Match) -> None:
        m.edit.set_input(m.root, 0, m.value("x"))
        m.edit.set_attribute(m.root, "axis", None)
        m.edit.remove(m.root.inputs[0].producer)  # type: ignore[union-attr]

    text = "g (float[2] x) => (float[2] y) { a = Neg(x)\n y = Softmax <axis = 0> (a) }"
    with pytest.raises(RuleError, match="callback raised AttributeError"):
        rewriting.run(parse(text), direct)

    @rule(softmax)
    def direct2(m: Match) -> None:
        m.edit.set_input(m.root, 0, m.value("x"))
        m.edit.set_attribute(m.root, "axis", None)
        producer = m.reads(m.root.inputs[0]).producer  # type: ignore[arg-type]
        assert producer is not None
        m.edit.remove(producer)

    result = rewriting.run(parse(text), direct2)
    assert show(result.model) == ["y = Softmax(x)"]
    assert len(result.model.graph.node[0].attribute) == 0


# What is not part of an edit


def test_everything_else_stays() -> None:
    model = parse(CONV)
    model.graph.doc_string = "about the graph"
    model.metadata_props.add(key="author", value="somebody")
    model.graph.quantization_annotation.add(tensor_name="x")
    model.graph.value_info.extend([onnx.helper.make_tensor_value_info("c", 1, [1, 2, 2])])
    model.producer_name = "by hand"
    result = rewriting.check(model, negate_weights)
    assert result.model.graph.doc_string == "about the graph"
    assert list(result.model.metadata_props) == list(model.metadata_props)
    assert list(result.model.graph.quantization_annotation) == list(model.graph.quantization_annotation)
    assert result.model.producer_name == "by hand"
    assert list(result.model.graph.value_info) == []  # the value is gone, and so is its type


# Constants where they belong


def test_a_constant_of_a_body_is_an_initializer_there() -> None:
    text = """g (float[1,1,4] x, bool k) => (float[1,2,2] y) <float[2,1,3] w = {1, 2, 3, 4, 5, 6}> {
        y = If (k) <then_branch = t () => (float[1,2,2] r) { c = Conv(x, w)
                        r = Neg(c) },
                    else_branch = e () => (float[1,2,2] r2) { c2 = Conv(x, w)
                        r2 = Exp(c2) }>
    }"""
    result = rewriting.check(parse(text), negate_weights)
    bodies = {a.name: a.g for a in result.model.graph.node[0].attribute}
    assert [t.name for t in bodies["then_branch"].initializer] == ["w_neg"]
    assert [n.op_type for n in bodies["then_branch"].node] == ["Conv"]
    assert [t.name for t in result.model.graph.initializer] == ["w"]


def test_a_constant_of_a_function_is_a_node_there() -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "custom": 1]>
    g (float[1,1,4] x) => (float[1,2,2] y) { y = custom.f(x) }
    <domain: "custom", opset_import: ["": 17]>
    f (p) => (q) {
        a = Relu(p)
        w = Constant <value = float[2,1,3] {1, 2, 3, 4, 5, 6}> ()
        c = Conv(a, w)
        q = Neg(c)
    }"""
    result = rewriting.check(parse(text), negate_weights)
    assert [n.op_type for n in result.model.functions[0].node] == ["Constant", "Relu", "Conv"]


def test_before_ir_version_4_an_initializer_is_an_input_too() -> None:
    text = CONV.replace("float[1,1,4] x)", "float[1,1,4] x, float[2,1,3] w, float[2] b)")
    model = parse(text, opset=9, ir_version=3)

    result = rewriter.run(model, negate_weights)
    onnx.checker.check_model(result.model, full_check=True)
    assert sorted(i.name for i in result.model.graph.input) == ["b_neg", "w_neg", "x"]


def test_an_attribute_that_refers_to_the_function_s_own_is_kept() -> None:
    @script(default_opset=op)
    def softmax(x: Tensor, axis: int) -> Tensor:
        return op.Softmax(op.Neg(op.Neg(x)), axis=axis)

    @script(default_opset=op)
    def direct(x: Tensor, axis: int) -> Tensor:
        return op.Softmax(x, axis=axis)

    text = """<ir_version: 9, opset_import: ["": 17, "custom": 1]>
    g (float[2] x) => (float[2] y) { y = custom.f <ax = 0> (x) }
    <domain: "custom", opset_import: ["": 17]>
    f <ax> (p) => (q) { a = Neg(p)
        b = Neg(a)
        q = Softmax <axis: int = @ax> (b) }"""
    result = rewriting.check(parse(text), rewrite(softmax, direct))
    (node,) = result.model.functions[0].node
    assert [(a.name, a.ref_attr_name) for a in node.attribute] == [("axis", "ax")]


def test_an_attribute_of_the_wrong_type() -> None:
    @script(default_opset=op)
    def softmax(x: Tensor, axis: int) -> Tensor:
        return op.Softmax(x, axis=axis)

    @rule(two_negs, softmax)
    def broken(m: Match) -> Mapping[str, object]:
        return {"axis": "first"}

    model = parse("g (float[2] x) => (float[2] y) { a = Neg(x)\n y = Neg(a) }")
    with pytest.raises(RuleError, match=r"rule 'broken' .*attribute 'axis' of Softmax: expected INT, got 'first'"):
        rewriting.run(model, broken)
