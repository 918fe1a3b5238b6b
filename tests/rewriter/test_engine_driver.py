"""Rule sets, callbacks and the driver: what runs when, how often, what is said of it, and what stops it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import onnx
import onnxscript
import pytest
from onnx import TensorProto, helper
from onnxscript import script

import rewriter
from rewriter import Decline, Match, NoMatch, RuleError, RuleSet, rewrite, rule
from rewriter.pattern import Const, P, Tensor
from tests import rewriting
from tests.rewriting import ops, parse, show

op: Any = onnxscript.opset17


@script(default_opset=op)
def relu(x: Tensor) -> Tensor:
    return op.Relu(x)


@script(default_opset=op)
def relu_relu(x: Tensor) -> Tensor:
    return op.Relu(op.Relu(x))


@script(default_opset=op)
def neg(x: Tensor) -> Tensor:
    return op.Neg(x)


@script(default_opset=op)
def neg_neg(x: Tensor) -> Tensor:
    return op.Neg(op.Neg(x))


@script(default_opset=op)
def absolute(x: Tensor) -> Tensor:
    return op.Abs(x)


@script(default_opset=op)
def nothing(x: Tensor) -> Tensor:
    return x


merge = rewrite(relu_relu, relu, name="merge")
cancel = rewrite(neg_neg, nothing, name="cancel")
relu_to_abs = rewrite(relu, absolute, name="relu_to_abs")
abs_to_neg = rewrite(absolute, neg, name="abs_to_neg")


def chain(*kinds: str) -> onnx.ModelProto:
    lines = [f"v{k + 1} = {kind}(v{k})" for k, kind in enumerate(kinds)]
    text = "\n".join(lines).replace("(v0)", "(x)").replace(f"v{len(kinds)} =", "y =")
    return parse(f"g (float[2] x) => (float[2] y) {{ {text} }}")


# Until nothing changes


def test_a_rule_runs_until_nothing_changes() -> None:
    result = rewriting.check(chain(*["Relu"] * 30), merge)
    assert show(result.model) == ["y = Relu(x)"]
    assert result.report.counts == {"merge": 29}
    assert result.report.stop_reason == "saturated"


def test_rules_make_work_for_each_other() -> None:
    model = chain("Neg", "Relu", "Relu", "Neg", "Neg", "Relu", "Neg")
    result = rewriting.check(model, merge + cancel)
    assert ops(result.model) == ["Neg", "Relu", "Neg"]


def test_what_does_not_match_comes_back_as_it_is() -> None:
    model = chain("Neg", "Relu")
    assert rewriter.apply(model, merge) is model


def test_the_larger_match_goes_first() -> None:
    @script(default_opset=op)
    def three(x: Tensor) -> Tensor:
        return op.Relu(op.Neg(op.Abs(x)))

    @script(default_opset=op)
    def two(x: Tensor) -> Tensor:
        return op.Relu(op.Neg(x))

    @script(default_opset=op)
    def exp(x: Tensor) -> Tensor:
        return op.Exp(x)

    @script(default_opset=op)
    def sin(x: Tensor) -> Tensor:
        return op.Sin(x)

    large, small = rewrite(three, exp), rewrite(two, sin)
    model = chain("Abs", "Neg", "Relu")
    for rules in (large + small, small + large):
        assert ops(rewriting.run(model, rules).model) == ["Exp"]
    eager = rewrite(two, sin, name="eager", benefit=10)
    assert ops(rewriting.run(model, large + eager).model) == ["Abs", "Sin"]


def test_the_order_of_rules_breaks_ties() -> None:
    other = rewrite(relu, neg, name="other")
    assert ops(rewriting.run(chain("Relu"), other + relu_to_abs).model) == ["Neg"]
    assert ops(rewriting.run(chain("Relu"), relu_to_abs + other).model) == ["Abs"]


def test_stages_run_one_after_the_other() -> None:
    together = rewriting.run(chain("Relu", "Relu"), merge + relu_to_abs)
    assert ops(together.model) == ["Abs"]
    assert ops(rewriting.run(chain("Relu", "Relu"), relu_to_abs >> merge).model) == ["Abs", "Abs"]
    assert ops(rewriting.run(chain("Relu", "Abs"), relu_to_abs >> abs_to_neg >> cancel).model) == ["Identity"]


def test_a_limit_stops_early() -> None:
    result = rewriter.run(chain(*["Relu"] * 5), merge, limit=2)
    assert ops(result.model) == ["Relu"] * 3
    assert result.report.stop_reason == "limit"


# Rule sets


@dataclass(frozen=True)
class Cleanup(RuleSet):
    """Options decide which rules take part, and what they do."""

    negatives: bool = True
    least: int = 2

    @rule(relu_relu, relu)
    def merge_relu(self, m: Match) -> None:
        if len(m.matched) < self.least:
            raise NoMatch

    @rule(neg_neg, nothing, enabled=lambda options: options.negatives)
    def cancel_neg(self, m: Match) -> None:
        m.note(nodes=len(m.matched))


class Cleanup2(Cleanup):
    @rule(absolute, nothing)
    def drop_abs(self, m: Match) -> None:
        raise NoMatch


MIXED = ("Neg", "Neg", "Relu", "Relu")


def test_options_of_a_rule_set() -> None:
    assert ops(rewriting.run(chain(*MIXED), Cleanup()).model) == ["Relu"]
    assert ops(rewriting.run(chain(*MIXED), Cleanup(negatives=False)).model) == ["Neg", "Neg", "Relu"]
    assert ops(rewriting.run(chain(*MIXED), Cleanup(least=3)).model) == ["Relu", "Relu"]
    assert [r.name for r in Cleanup().rules()] == ["merge_relu", "cancel_neg"]
    assert [r.name for r in Cleanup(negatives=False).rules()] == ["merge_relu"]
    assert [r.name for r in Cleanup2().rules()] == ["merge_relu", "cancel_neg", "drop_abs"]
    assert Cleanup() == Cleanup(least=2)


def test_rules_are_chosen_by_name() -> None:
    rules = Cleanup() + merge
    assert [r.name for r in rules.only("merge*").rules()] == ["merge_relu", "merge"]
    assert [r.name for r in rules.without("merge").rules()] == ["merge_relu", "cancel_neg"]
    assert ops(rewriting.run(chain(*MIXED), Cleanup().only("cancel_neg")).model) == ["Relu", "Relu"]
    with pytest.raises(ValueError, match="no rule is called 'mergee'; there are cancel_neg, merge, merge_relu"):
        rules.only("mergee")
    with pytest.raises(TypeError, match="joins rule sets of one stage"):
        (merge >> cancel) + merge


def test_the_same_rule_is_taken_once() -> None:
    assert len((merge + merge).rules()) == 1
    assert len((Cleanup() + Cleanup()).rules()) == 2
    assert len((Cleanup() + Cleanup(least=3)).rules()) == 4


def test_notes_and_counts_are_reported() -> None:
    report = rewriting.run(chain(*MIXED), Cleanup()).report
    assert report.counts == {"merge_relu": 1, "cancel_neg": 1}
    assert [r.notes for r in report.rewrites if r.rule == "cancel_neg"] == [{"nodes": 2}]


def test_something_else_is_no_rule_set() -> None:
    with pytest.raises(TypeError, match="expected a rule set or a rule, got list"):
        rewriter.apply(chain("Relu"), [merge])  # type: ignore[arg-type]


# Declines


@script(default_opset=op)
def sums(x: Tensor, c: Annotated[Tensor, Const]) -> Tensor:
    total = P.Core(op.Add(x, c))
    return op.Neg(op.Relu(total))


@pytest.mark.parametrize(
    ("nodes", "reasons"),
    [
        ("t = Add(x, c)\n r = Relu(t)\n y = Neg(r)", []),
        ("t = Add(x, c)\n r = Relu(t)\n y = Exp(r)", ["an Exp stands where a Neg is expected"]),
        ("t = Add(x, x)\n r = Relu(t)\n y = Exp(r)", []),  # no constant: no match, and nothing to say
        ("t = Add(x, c)\n y = Exp(t)", ["an Exp stands where a Relu is expected"]),
        ("y = Add(x, c)", ["the output of the Add has no consumer, where one is expected"]),
    ],
)
def test_what_fails_past_the_core_is_a_decline(nodes: str, reasons: list[str]) -> None:
    @rule(sums, neg)
    def shorten(m: Match) -> None:
        """Not exact, so the models are not run."""

    model = parse(f"g (float[2] x) => (float[2] y) <float[2] c = {{1, 2}}> {{ {nodes} }}")
    declined = rewriting.run(model, shorten).report.declined
    assert [d.reason for d in declined] == reasons
    assert all(d.rule == "shorten" and d.node in ("t", "y") for d in declined)


def test_sentences_of_declines() -> None:
    @script(default_opset=op)
    def matmul(a: Tensor, b: Tensor, bias: Annotated[Tensor, Const]) -> Tensor:
        product = P.Core(op.MatMul(a, b))
        return P.OnlyUse(product) + bias

    @script(default_opset=op)
    def gemm(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        return op.Gemm(a, b, bias)

    fuse = rewrite(matmul, gemm, name="fuse")

    def reasons(nodes: str, outputs: str = "float[2,2] y") -> list[str]:
        text = f"g (float[2,2] a) => ({outputs}) <float[2] c = {{1, 2}}> {{ {nodes} }}"
        return [d.reason for d in rewriting.run(parse(text), fuse).report.declined]

    assert reasons("p = MatMul(a, a)\n y = Add(p, c)") == []
    assert reasons("p = MatMul(a, a)\n q = Abs(p)\n r = Add(p, c)\n y = Add(q, r)") == [
        "the output of the MatMul has 2 consumers, where only one may be"
    ]
    assert reasons("p = MatMul(a, a)\n y = Add(p, c)", "float[2,2] y, float[2,2] p") == [
        "the output of the MatMul is also a graph output"
    ]
    assert reasons("p = MatMul(a, a)\n y = Add(p, a)") == ["bias is not a constant"]


def test_a_decline_of_a_callback_is_reported_once_and_no_match_is_not() -> None:
    asked: list[str] = []

    @rule(relu_relu, relu)
    def picky(m: Match) -> None:
        asked.append(m.root.name)
        if m.root.name == "v2":
            raise NoMatch
        raise Decline("not today")

    result = rewriter.run(chain("Relu", "Relu", "Relu", "Relu"), picky)
    assert [(d.rule, d.node, d.reason) for d in result.report.declined] == [
        ("picky", "v3", "not today"),
        ("picky", "y", "not today"),
    ]
    assert asked == ["v2", "v3", "y"]
    assert result.report.declined_by_reason() == {"not today": ["v3", "y"]}


def test_a_declined_match_is_asked_again_when_what_it_looked_at_changes() -> None:
    @rule(absolute, neg)
    def after_a_short_chain(m: Match) -> None:
        depth, value = 0, m.value("x")
        while (producer := m.reads(value).producer) is not None:
            depth += 1
            assert producer.inputs[0] is not None
            value = producer.inputs[0]
        if depth > 1:
            raise Decline(f"{depth} nodes before it")

    result = rewriting.run(chain("Relu", "Relu", "Relu", "Relu", "Abs"), merge + after_a_short_chain)
    assert ops(result.model) == ["Relu", "Neg"]
    assert result.report.declined == []


def test_a_rule_out_of_its_opsets_is_skipped_with_the_reason() -> None:
    @rule(relu_relu, relu, opset=(18, 20))
    def later(m: Match) -> None:
        """Nothing to ask."""

    result = rewriting.run(chain("Relu", "Relu"), later)
    assert result.report.skipped == {"later": "the rule is made for ai.onnx opsets 18 to 20, the model has 17"}


# Callbacks that go wrong


@script(default_opset=op)
def scaled(x: Tensor, scale: Tensor) -> Tensor:
    return op.Mul(x, scale)


def raises() -> Mapping[str, object]:
    return {"scale": [1, 2][5]}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            lambda m: {},
            "the callback did not return 'scale' of the target 'scaled' (None makes a value absent)",
        ),
        (lambda m: None, "the callback did not return 'scale'"),
        (
            lambda m: {"scale": 2.0, "bias": 1},
            "the callback returned 'bias', which the target 'scaled' does not have; it has scale, x",
        ),
        (lambda m: {"scale": "two"}, "the callback returned str for 'scale'; a tensor is a numpy array"),
        (
            lambda m: [2.0],
            "its callback returned list; a dict of the target's parameters (or None) was expected",
        ),
        (lambda m: raises(), "its callback raised IndexError: list index out of range"),
        (
            lambda m: {"scale": m["scales"]},
            "its callback raised KeyError: \"the source 'relu' has no 'scales'; it has x\"",
        ),
    ],
)
def test_mistakes_of_a_callback(returned: Any, message: str) -> None:
    def callback(m: Match) -> Any:
        return returned(m)

    broken = rule(relu, scaled, name="broken")(callback)
    with pytest.raises(RuleError) as error:
        rewriter.apply(chain("Abs", "Relu"), broken)
    text = str(error.value)
    assert message in text
    assert re.match(r"rule 'broken' \(.*test_engine_driver\.py:\d+\), at node 'y': ", text)


def test_an_error_in_a_callback_names_its_own_line() -> None:
    @rule(relu, scaled)
    def broken(m: Match) -> Mapping[str, object]:
        return raises()

    line = raises.__code__.co_firstlineno + 1
    with pytest.raises(RuleError, match=rf"test_engine_driver\.py:{line}\)$"):
        rewriter.apply(chain("Relu"), broken)


def test_a_target_name_that_nothing_provides() -> None:
    with pytest.raises(RuleError, match=r"rule 'scaled' .*\.py:\d+\): nothing provides 'scale' of the target 'scaled'"):
        rewrite(relu, scaled)


def test_sides_of_different_outputs() -> None:
    @script(default_opset=op)
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return op.Relu(x), op.Neg(x)

    with pytest.raises(
        RuleError, match=r"'both' returns 2 value\(s\), its target 'relu' 1; the k-th replaces the k-th"
    ):
        rewrite(both, relu)


def test_inherit_from_nobody() -> None:
    with pytest.raises(RuleError, match="inherit names 'conv', which no source assigns"):
        rewrite(relu, neg, inherit={"conv": "new"})


def test_a_pattern_that_is_not_connected() -> None:
    @script(default_opset=op)
    def apart(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return op.Relu(x), op.Neg(z)

    with pytest.raises(RuleError, match="a pattern must be connected"):
        list(rewriter.find(chain("Relu", "Neg"), apart))


# What could go on for ever


def test_a_rule_that_changes_nothing_is_an_error() -> None:
    @rule(relu, relu)
    def idle(m: Match) -> None:
        """Nothing changes."""

    with pytest.raises(RuleError, match=r"rule 'idle' .*, at node 'y': it claims a change without making one"):
        rewriter.apply(chain("Relu"), idle)

    @rule(relu)
    def lazy(m: Match) -> None:
        """An edit without an edit."""

    with pytest.raises(RuleError, match=r"rule 'lazy' .*it claims a change without making one"):
        rewriter.apply(chain("Relu"), lazy)


def test_rules_that_chase_each_other_are_named() -> None:
    back = rewrite(absolute, relu, name="back")
    with pytest.raises(RuleError) as error:
        rewriter.apply(chain("Neg", "Relu"), relu_to_abs + back)
    assert "rules chase each other without end" in str(error.value)
    assert "'relu_to_abs'" in str(error.value)
    assert "'back'" in str(error.value)


def test_a_rule_that_feeds_itself_is_stopped() -> None:
    @script(default_opset=op)
    def grown(x: Tensor) -> Tensor:
        return op.Relu(op.Neg(x))

    with pytest.raises(RuleError, match=r"chase each other without end.*'grow'"):
        rewriter.apply(chain("Neg"), rewrite(neg, grown, name="grow"))


def test_a_rule_may_grow_for_a_while() -> None:
    """As many generations as the model has nodes are no reason to worry: here a Neg sinks below 40 Abs."""

    @script(default_opset=op)
    def above(x: Tensor) -> Tensor:
        return op.Exp(op.Neg(x))

    @script(default_opset=op)
    def below(x: Tensor) -> Tensor:
        return op.Neg(op.Abs(x))

    result = rewriting.run(chain("Neg", *["Exp"] * 90), rewrite(above, below, name="sink"))
    assert ops(result.model) == ["Abs"] * 90 + ["Neg"]
    assert result.report.counts == {"sink": 90}


def test_a_measure_must_fall() -> None:
    def constant(m: Match) -> int:
        return int(m.array("c").item())

    def step(by: int) -> RuleSet:
        @script(default_opset=op)
        def plus(x: Tensor, c: Annotated[Tensor, Const]) -> Tensor:
            return x + c

        @rule(plus, plus, measure=constant, name="count_down")
        def count_down(m: Match) -> Mapping[str, object]:
            if constant(m) <= 0:
                raise NoMatch
            return {"c": np.float32(constant(m) - by)}

        return count_down

    model = parse("g (float[2] x) => (float[2] y) <float c = {200}> { y = Add(x, c) }")
    result = rewriter.run(model, step(1))
    assert result.report.counts == {"count_down": 200}
    with pytest.raises(RuleError, match="its measure must fall, but went from 200 to 201"):
        rewriter.apply(model, step(-1))


# The same every time


def test_two_runs_give_the_same_bytes() -> None:
    rng = np.random.default_rng(7)
    model = chain(*rng.choice(["Neg", "Relu", "Abs"], 60))
    rules = merge + cancel + Cleanup()
    first = rewriter.apply(model, rules).SerializeToString()
    assert all(rewriter.apply(model, rules).SerializeToString() == first for _ in range(3))


def test_an_unrelated_node_changes_nothing() -> None:
    """Which op is rarest decides where the search begins; that must not show."""
    nodes = "a = Relu(x)\n b = Relu(a)\n c = Neg(b)\n d = Neg(c)\n e = Relu(d)\n y = Relu(e)"
    plain = parse(f"g (float[2] x) => (float[2] y) {{ {nodes} }}")
    wide = parse(
        f"g (float[2] x) => (float[2] y, float[2] z) {{ {nodes}\n"
        + "\n".join(f"n{k} = {'Relu' if k % 3 else 'Abs'}({f'n{k - 1}' if k else 'x'})" for k in range(8))
        + "\n n8 = Abs(n7)\n z = Neg(n8) }"
    )
    after = show(rewriter.apply(plain, merge + cancel))
    assert show(rewriter.apply(wide, merge + cancel))[: len(after)] == after


# Large models


def hub_model(consumers: int, extra: int) -> onnx.ModelProto:
    """One value with thousands of consumers, and long chains besides."""
    nodes = [helper.make_node("Abs", ["x"], ["hub"])]
    for k in range(consumers):
        nodes.append(helper.make_node("Relu", ["hub"], [f"r{k}"]))
        nodes.append(helper.make_node("Relu", [f"r{k}"], [f"s{k}"]))
        nodes.append(helper.make_node("Neg", [f"s{k}"], [f"n{k}"]))
    last = "hub"
    for k in range(extra):
        nodes.append(helper.make_node("Neg" if k % 2 else "Exp", [last], [f"c{k}"]))
        last = f"c{k}"
    nodes.append(helper.make_node("Sum", [f"n{k}" for k in range(consumers)] + [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "hub",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_large_model_with_a_hub() -> None:
    @script(default_opset=op)
    def only_user(x: Tensor, z: Tensor) -> Tensor:
        return op.Sub(P.OnlyUse(op.Abs(x)), z)

    @script(default_opset=op)
    def swapped(x: Tensor, z: Tensor) -> Tensor:
        return op.Neg(op.Sub(z, op.Abs(x)))

    model = hub_model(2000, 4000)
    assert len(model.graph.node) > 10_000
    result = rewriter.run(model, merge + cancel + rewrite(only_user, swapped))
    assert result.report.counts == {"merge": 2000}
    assert sum(n.op_type == "Relu" for n in result.model.graph.node) == 2000

    @script(default_opset=op)
    def siblings(x: Tensor) -> tuple[Tensor, Tensor]:
        return op.Exp(x), op.Abs(x)

    assert list(rewriter.find(model, siblings)) == []


def test_rewrites_of_the_hub_itself() -> None:
    @script(default_opset=op)
    def hub(x: Tensor) -> Tensor:
        return op.Abs(x)

    @script(default_opset=op)
    def other(x: Tensor) -> Tensor:
        return op.Relu(x)

    result = rewriter.run(hub_model(2000, 10), rewrite(hub, other) + merge)
    assert result.report.counts == {"other": 1, "merge": 4000}


def test_threads_can_share_a_rule_set() -> None:
    from concurrent.futures import ThreadPoolExecutor

    models = [chain(*["Relu"] * (k % 5 + 2), *["Neg"] * (k % 4)) for k in range(24)]
    rules = merge + cancel
    alone = [rewriter.apply(m, rules).SerializeToString() for m in models]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda m: rewriter.apply(m, rules).SerializeToString(), models)) == alone


# The compiled source


def test_the_source_is_readable_and_the_same_every_time() -> None:
    source = (merge + cancel).source()
    assert source == (merge + cancel).source()
    assert '"""The compiled matcher of merge, cancel.' in source
    assert "op[n0] != 'Relu'" in source
    compile(source, "matcher", "exec")


def test_what_rules_share_is_asked_once() -> None:
    @script(default_opset=op)
    def first(x: Tensor) -> Tensor:
        return op.Exp(op.Softplus(op.Neg(x)))

    @script(default_opset=op)
    def second(x: Tensor) -> Tensor:
        return op.Exp(op.Softplus(op.Abs(x)))

    source = (rewrite(first, neg, name="a") + rewrite(second, neg, name="b")).source()
    assert source.count("== 'Softplus'") + source.count("!= 'Softplus'") == 1
