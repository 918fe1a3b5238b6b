"""Asking the rules of one stage at nodes: which variant of each comes nearest, in words.

A rule is tried with the node in every part of its pattern that has the node's type, so that the user may name whichever
node they look at. For a whole model each rule begins where the search would: at its core, else at its rarest op. Where
everything holds, the callback is asked too (and nothing is changed), since most of what is declined it declines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rewriter.compiler.emit import node_captures, value_captures
from rewriter.compiler.lower import lower
from rewriter.compiler.probes import Probes, probes_for
from rewriter.compiler.program import Leaf, anchor_of
from rewriter.compiler.questions import Question, Space, article, sentence, short
from rewriter.engine.driver import Driver
from rewriter.engine.match import Match
from rewriter.engine.run import Run
from rewriter.engine.table import Table
from rewriter.errors import Decline, NoMatch
from rewriter.explaining import words
from rewriter.explaining.account import Finding, MissedQuestion
from rewriter.explaining.probing import Miss, Prober, Walked
from rewriter.pattern.graph import PNode
from rewriter.report import Report
from rewriter.rule import Rule


class Asking:
    """The rules of one stage on one table."""

    def __init__(self, table: Table, rules: Sequence[Rule], model: Any) -> None:
        self.table = table
        self.rules = tuple(rules)
        self.run = Run(table, rules, model)
        self.space = Space()
        self.leaves: dict[tuple[int, int], Leaf] = {}  # by variant and anchor
        self.probes: dict[int, Probes] = {}

    def at(self, node: int) -> Iterator[Finding]:
        """One finding for each rule whose pattern has a node of that type."""
        op = self.table.op[node]
        for index, rule in enumerate(self.rules):
            places = [
                self.leaf(index, variant, script, part)
                for variant, script in rule.definition.variants
                for part in variant.nodes
                if op in part.types and not part.chain and id(part) not in variant.lanes
            ]
            if places:
                yield self.nearest(rule, places, node)

    def hint(self, node: int) -> str:
        """Where to ask instead about a node that no pattern has, unless it passes over it."""
        table = self.table
        op = short(table.op[node])
        known = {
            t
            for r in self.rules
            for v, _ in r.definition.variants
            for n in v.nodes
            if not n.chain and id(n) not in v.lanes
            for t in n.types
        }
        passed = any(table.op[node] in n.types for r in self.rules for v, _ in r.definition.variants for n in v.nodes)
        text = f"no rule's pattern has {article(op)}" + (
            ", but for one that a P.Chain passes over or a Many repeats" if passed else ""
        )
        before = table.producer[table.inputs[node][0]] if table.inputs[node] else 0
        while before and table.op[before] not in known:
            before = table.producer[table.inputs[before][0]] if table.inputs[before] else 0
        if before:
            return f"{text}; ask at {table.label(before)!r} before it"
        after = next((u for v in table.outputs[node] if v for u in table.uses[v] if table.op[u] in known), 0)
        return f"{text}; ask at {table.label(after)!r} behind it" if after else text

    def everywhere(self) -> Iterator[Finding]:
        """One finding for each rule and node where it could begin."""
        histogram = {op: len(nodes) for op, nodes in self.table.by_op.items()}
        for index, rule in enumerate(self.rules):
            begins: dict[str, list[Leaf]] = {}
            for variant, script in rule.definition.variants:
                core = variant.core
                anchor = core.node if core is not None and core.node is not None else anchor_of(variant, histogram)
                for op in anchor.types:
                    begins.setdefault(op, []).append(self.leaf(index, variant, script, anchor))
            for op, leaves in begins.items():
                for node in self.table.by_op.get(op, ()):
                    if self.table.op[node] == op:
                        yield self.nearest(rule, leaves, node)

    def leaf(self, index: int, variant: Any, script: Any, anchor: PNode) -> Leaf:
        key = (id(variant), id(anchor))
        if key not in self.leaves:
            definition = self.rules[index].definition
            lowered = lower(variant, anchor, script, self.space, definition.commute)
            self.leaves[key] = Leaf(len(self.leaves), definition, index, script, lowered, definition.window(variant))
        return self.leaves[key]

    def prober(self, leaf: Leaf) -> Prober:
        if leaf.index not in self.probes:
            title = self.rules[leaf.rule_index].name
            self.probes[leaf.index] = probes_for([leaf.lowered], self.space, self.table, title)
        return Prober(self.table, self.space, self.probes[leaf.index])

    # -- one rule at one node ----------------------------------------------------------------------

    def nearest(self, rule: Rule, leaves: Sequence[Leaf], node: int) -> Finding:
        best: tuple[tuple[int, ...], Leaf, Walked] | None = None
        for leaf in leaves:
            walked = self.prober(leaf).probe(leaf.lowered, node)
            misses, nodes, kinds, size = walked.distance
            other_opset = self.run.in_window(leaf, node) is not None  # a condition like any other, but the last to mean
            distance = (misses + other_opset, nodes, kinds + 4 * other_opset, size)
            if best is None or distance < best[0]:
                best = distance, leaf, walked
            if not distance[0]:
                break
        assert best is not None
        return self.finding(rule, *best[1:], node)

    def finding(self, rule: Rule, leaf: Leaf, walked: Walked, node: int) -> Finding:
        verdict, reason, nodes = "missed", "", tuple[str, ...]()
        if not walked.misses and not walked.left:
            reason = self.run.in_window(leaf, node) or ""
            verdict = "opset" if reason else "matches"
            if not reason:
                match = self.match(leaf, walked)
                nodes = tuple(one.name for one in match.matched)
                verdict, reason = self.ask_callback(rule, match)
        return Finding(
            rule.name,
            self.table.label(node),
            leaf.lowered.anchor.label,
            verdict,
            tuple(self.in_words(leaf, miss) for miss in walked.misses),
            walked.held,
            walked.nodes,
            walked.left,
            reason,
            str(rule.place),
            nodes,
        )

    def match(self, leaf: Leaf, walked: Walked) -> Match:
        captures = [of(leaf.lowered) for of in (node_captures, value_captures)]
        self.prober(leaf).place([*captures[0], *captures[1]], walked.at)  # those too that no question asked about
        nodes, values = (tuple(walked.at[position] for position in one) for one in captures)
        return Match(self.run, leaf, nodes, values)

    def ask_callback(self, rule: Rule, match: Match) -> tuple[str, str]:
        """What the rule says where its pattern fits; nothing is changed."""
        try:
            Driver(self.run, Report(), None).edit(rule, match).check()
        except Decline as decline:
            return "declined", decline.reason
        except NoMatch:
            return "nothing", "fits, but its callback finds nothing to do (NoMatch)"
        return "matches", ""

    # -- words -------------------------------------------------------------------------------------

    def in_words(self, leaf: Leaf, miss: Miss) -> MissedQuestion:
        labels = leaf.lowered.labels
        question, table, seen = miss.question, self.table, miss.seen

        def label(position: int) -> str:
            return labels.get(position, "a value")

        name = label(question.positions[0])
        return MissedQuestion(
            question.kind,
            reason_of(question, label, table, seen),
            words.expected(question, name, miss.passed),
            words.seen(question, table, seen, miss.value),
            words.remedy(question, table, seen, name),
            self.place(leaf, question),
        )

    def place(self, leaf: Leaf, question: Question) -> str:
        """The line of the pattern that asks."""
        lowered = leaf.lowered
        nodes = {lowered.node_positions.get(id(n)): n.place for n in lowered.variant.nodes}
        values = [v for n in lowered.variant.nodes for v in (*n.inputs, *n.outputs) if v is not None]
        stated = {lowered.value_positions.get(id(v)): v.place for v in values}
        for position in reversed(question.positions):
            while position >= 0:
                found = stated.get(position) or nodes.get(position)
                if found is not None:
                    return str(found)
                position = self.space.positions[position].parent
        return str(lowered.variant.graph.place)


def reason_of(question: Question, label: Any, table: Table, seen: Sequence[int]) -> str:
    if question.kind == "lanes":
        return f"the repeated inputs of {label(question.positions[0])} do not agree"
    return sentence(question, label, table, seen) if seen else f"{label(question.positions[0])} is not there"
