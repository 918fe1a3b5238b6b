"""The functions that people call: apply, run, find, read.

A model is an `onnx.ModelProto`, an `onnx_ir.Model`, or a path; the same kind comes back, and what was passed is left
as it was unless `in_place` is asked for. Where nothing matched, what comes back is what was passed: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import onnxscript

from rewriter.engine.driver import Identity, Progress, run_stage
from rewriter.engine.match import Match
from rewriter.engine.run import Run
from rewriter.engine.settle import settle
from rewriter.engine.table import Table
from rewriter.models.source import Source, open_source
from rewriter.pattern.graph import Place
from rewriter.pause import collector_paused
from rewriter.report import Report
from rewriter.report.statistics import Statistics
from rewriter.rule import Definition, Rule, RuleSet

M = TypeVar("M")


@dataclass(frozen=True)
class Reading:
    """A model read once, for many questions. Made by `read`; it sees nothing of later changes to the model."""

    source: Source
    table: Table

    def node_names(self) -> list[str]:
        """The names of all nodes, in the order of the model (a node without a name has that of its first output)."""
        table = self.table
        return [table.label(n) for n in sorted(range(1, len(table.op)), key=table.place) if table.op[n]]

    def op_types(self) -> dict[str, str]:
        """The op type of each node, by those names."""
        table = self.table
        return {table.label(n): table.op[n] for n in range(1, len(table.op)) if table.op[n]}


@dataclass(frozen=True)
class Result(Generic[M]):
    """What a run gives: the rewritten model, of the kind that was passed, and the account of it."""

    model: M
    report: Report
    changed: bool


def apply(model: M, rules: RuleSet, output: str | PathLike[str] | None = None, *, in_place: bool = False) -> M:
    """Apply rules to a model until nothing changes; the model that was passed is left alone.

    Args:
        model: an onnx.ModelProto, an onnx_ir.Model, or the path of an ONNX file.
        rules: a rule set or a single rule.
        output: for a path, where the result goes (default: next to it, `NAME.rewritten.onnx`).
        in_place: change the model itself (which saves the copy of one in memory), or replace the file at the path.
            It is changed once everything is known; an error before that leaves it as it was.

    Returns:
        The same kind as `model`; for a path, the path of the file that was written.

    Raises:
        ModelError: the model cannot be read or written.
        RuleError: a rule is wrong, its callback misbehaved, or rules chase each other.
    """
    return run(model, rules, output, in_place=in_place).model


def run(
    model: M,
    rules: RuleSet,
    output: str | PathLike[str] | None = None,
    *,
    in_place: bool = False,
    limit: int | None = None,
    statistics: bool = False,
    progress: Progress | None = None,
) -> Result[M]:
    """The same as `apply`, with the report: what was rewritten, what was declined and why.

    `limit` stops after so many rewrites (the report's `stop_reason` then says "limit"). With `statistics` the report
    counts and times what each rule did. `progress(done, waiting)` is called after each match that was taken: how many
    rewrites were made, and how many matches wait.
    """
    check_rules(rules)
    if in_place and output is not None:
        raise TypeError("in_place replaces the input, output writes beside it: give one of them")
    with collector_paused():
        source = open_source(model)
        table = source.read()
        report = perform(source, table, rules, limit=limit, statistics=statistics, progress=progress)
        written = source.write(table, None if output is None else Path(output), in_place)
        return Result(written, report, table.is_changed)


def perform(
    source: Source,
    table: Table,
    rules: RuleSet,
    *,
    limit: int | None = None,
    statistics: bool = False,
    left_out: frozenset[Identity] = frozenset(),
    progress: Progress | None = None,
) -> Report:
    """Apply rules to a table that was read from a source; nothing is written. left_out: matches to leave alone."""
    report = Report(statistics=Statistics() if statistics else None)
    analyses: dict[Any, Any] = {}
    for stage in rules.stages():
        run_stage(table, stage, source.model, report, analyses, limit, left_out, progress)
    settle(table, report)
    return report


def read(model: Any) -> Reading:
    """Read a model once, to ask `find` many questions about it."""
    with collector_paused():
        source = open_source(model)
        return Reading(source, source.read())


def find(model: Any, rules: RuleSet | onnxscript.OnnxFunction[..., Any]) -> Iterator[Match]:
    """Every place where a rule's source (or a bare pattern script) fits, in the order of the model; changes nothing.

    Only the pattern is asked, not the callback. `model` may be a `Reading`.
    """
    reading = model if isinstance(model, Reading) else read(model)
    if isinstance(rules, onnxscript.OnnxFunction):
        rules = pattern_rule(rules)
    for stage in check_rules(rules).stages():
        run_ = Run(reading.table, stage, reading.source.model)
        seen: set[tuple[int, frozenset[int]]] = set()
        found: list[tuple[tuple[int, ...], int, Match]] = []
        for raw in run_.sweep():
            leaf = run_.leaf(raw)
            match = run_.match(raw)
            key = (leaf.rule_index, frozenset(n.id for n in match.matched))
            if key not in seen and run_.in_window(leaf, match.root_id) is None:
                seen.add(key)
                found.append((reading.table.place(match.root_id), leaf.rule_index, match))
        yield from (match for _, _, match in sorted(found, key=lambda item: item[:2]))


def check_rules(rules: Any) -> RuleSet:
    if not isinstance(rules, RuleSet):
        raise TypeError(f"expected a rule set or a rule, got {type(rules).__name__}: {rules!r}")
    return rules


def pattern_rule(pattern: onnxscript.OnnxFunction[..., Any]) -> Rule:
    """A rule that only finds: a bare pattern."""
    from rewriter.reading import read_script

    graph = read_script(pattern, "source")
    return Rule(
        Definition(
            pattern.name,
            Place(graph.place.file, graph.place.line),
            (graph,),
            None,
            lambda match: None,
            {},
            True,
            None,
            None,
            None,
            None,
        )
    )
