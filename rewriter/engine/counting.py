"""The driver with a clock: it counts and times what each rule does (`Statistics`).

A class of its own, so that a run which nobody measures does not even ask whether it is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any

from rewriter.engine.driver import Driver
from rewriter.engine.edit import Effect
from rewriter.engine.match import Match
from rewriter.engine.run import Failure, Raw, Run
from rewriter.report import Declined, Report
from rewriter.report.statistics import Statistics
from rewriter.rule import Rule


class CountingRun:
    """A run that counts what is asked, and for how long."""

    def __init__(self, run: Run, statistics: Statistics) -> None:
        self._run = run
        self._statistics = statistics
        self._rules: dict[str, list[str]] = {}  # by the op type of the nodes at which they are looked for
        for leaf in run.program.leaves:
            name = run.rules[leaf.rule_index].name
            statistics.of(name)
            for op in leaf.lowered.anchor.types:
                names = self._rules.setdefault(op, [])
                if name not in names:
                    names.append(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def sweep_with_failures(self) -> tuple[list[Raw], list[Failure]]:
        for op in self._rules:
            self._count(op, sum(self._run.table.op[n] == op for n in self._run.table.by_op.get(op, ())))
        start = perf_counter()
        found, failures = self._run.sweep_with_failures()
        self._statistics.match_seconds += perf_counter() - start
        return self._counted(found), failures

    def ask(self, anchors: Iterable[int]) -> list[Raw]:
        nodes = list(anchors)
        for node in nodes:
            self._count(self._run.table.op[node], 1)
        start = perf_counter()
        found = self._run.ask(nodes)
        self._statistics.match_seconds += perf_counter() - start
        return self._counted(found)

    def _count(self, op: str, nodes: int) -> None:
        names = self._rules.get(op, ())
        for name in names:
            self._statistics.of(name).attempts += nodes
        self._statistics.asked += nodes if names else 0

    def _counted(self, found: list[Raw]) -> list[Raw]:
        for raw in found:
            self._statistics.of(self._run.rules[self._run.leaf(raw).rule_index].name).matches += 1
        return found


class CountingDriver(Driver):
    """A driver whose report has statistics."""

    def __init__(self, run: Run, report: Report, *options: Any) -> None:
        assert report.statistics is not None
        super().__init__(CountingRun(run, report.statistics), report, *options)  # type: ignore[arg-type]
        self.statistics = report.statistics
        self.rule = ""  # of the match at hand
        self.apart = 0.0  # seconds of its callback

    def step(self) -> None:
        self.rule, self.apart = "", 0.0
        before, start = self.statistics.match_seconds, perf_counter()
        super().step()
        passed = perf_counter() - start - self.apart - (self.statistics.match_seconds - before)
        if self.rule:
            self.statistics.of(self.rule).edit_seconds += passed

    def call(self, rule: Rule, match: Match) -> Any:
        self.rule = rule.name
        start = perf_counter()
        try:
            return super().call(rule, match)
        finally:
            self.apart = perf_counter() - start
            self.statistics.of(rule.name).callback_seconds += self.apart

    def remember(self, raw: Raw, match: Match, declined: Declined | None) -> None:
        self.statistics.of(self.rule).declines += 1
        super().remember(raw, match, declined)

    def account(self, rule: Rule, match: Match, effect: Effect, at_risk: list[int]) -> None:
        self.statistics.of(rule.name).rewrites += 1
        super().account(rule, match, effect, at_risk)
