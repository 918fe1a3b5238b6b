"""Statistics: what each rule did, counted by hand on a small model; and the result is the same as without."""

from __future__ import annotations

import time

import pytest

import rewriter
from rewriter import Decline, Match, NoMatch, rule
from tests.rewriter.small_models import CHAIN, parse
from tests.rewriter.small_rules import a_tanh, any_relu, doubled, everything, halved, relu_of_relu
from tests.rewriter.test_in_place import bytes_of


def test_counts() -> None:
    """CHAIN has two Relu, a Mul and an Add: of these rules two fit, once each."""
    plain = rewriter.run(parse(CHAIN), everything)
    result = rewriter.run(parse(CHAIN), everything, statistics=True)
    found = result.report.statistics
    assert plain.report.statistics is None
    assert bytes_of(result.model) == bytes_of(plain.model)
    assert found is not None
    assert set(found.rules) == {"relus", "negs", "leak", "mul_to_div"}
    assert {name: (s.matches, s.rewrites, s.declines) for name, s in found.rules.items() if s.matches} == {
        "relus": (1, 1, 0),
        "mul_to_div": (3, 1, 0),  # in the sweep, after the edit of its input, and when it is taken
    }
    assert found.rules["negs"].attempts == found.rules["leak"].attempts == 0  # no such node
    assert found.rules["relus"].attempts >= 3  # two Relu in the first sweep, one in the last
    assert found.asked >= found.rules["relus"].attempts


def test_declines_and_time() -> None:
    @rule(doubled, halved)
    def slow(m: Match) -> None:
        time.sleep(0.02)
        raise Decline("not today")

    @rule(any_relu, a_tanh)
    def silent(m: Match) -> None:
        raise NoMatch

    found = rewriter.run(parse(CHAIN), slow + silent, statistics=True).report.statistics
    assert found is not None
    assert (found.rules["slow"].declines, found.rules["silent"].declines) == (1, 2)
    assert found.rules["slow"].callback_seconds >= 0.02 > found.rules["silent"].callback_seconds
    assert found.rules["slow"].edit_seconds < 0.02
    assert found.match_seconds > 0


def test_one_rule_in_two_forms_is_one_line() -> None:
    rules = rewriter.rewrite(relu_of_relu, a_tanh, name="one") + rewriter.rewrite(any_relu, a_tanh, name="two")
    found = rewriter.run(parse(CHAIN), rules, statistics=True).report.statistics
    assert found is not None
    assert list(found.rules) == ["one", "two"]
    assert found.rules["one"].rewrites == 1
    assert found.rules["two"].rewrites == 0


def asked(pairs: int, constant: bool) -> int:
    """At how many nodes the rule is asked in a chain of such pairs, of ops that could be computed at build time."""
    nodes = "".join(f"a{k} = Neg(c{k})\n b{k} = Neg(a{k})\n c{k + 1} = Abs(b{k})\n" for k in range(pairs))
    stored = "<float[2] c0 = {1, 2}>" if constant else ""
    source = "x" if constant else "c0"
    model = parse(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        chain (float[2] {source}) => (float[2] c{pairs}, float[2] z) {stored} {{ {nodes} z = Abs({source}) }}"""
    )
    result = rewriter.run(model, everything.only("negs"), statistics=True)
    assert len(result.report.rewrites) == pairs
    assert result.report.statistics is not None
    return result.report.statistics.asked


@pytest.mark.parametrize("constant", [False, True])
def test_an_edit_asks_near_itself(constant: bool) -> None:
    """What cannot be constant is not followed to the end of the graph; what is, no further than constants go."""
    few, many = asked(100, constant), asked(400, constant)
    assert many <= 4.2 * few + (4 * 400 * 64 if constant else 0)
