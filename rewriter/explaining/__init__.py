"""Why a rule did not match: `explain` asks its pattern everything at a node, and tells what is missing.

For a node, each rule is tried with the node in every part of its pattern that could be it; for a whole model, at every
node where it could begin, and what misses little is kept. What comes out is ranked by nearness: whoever asks means the
rule that almost fitted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rewriter.api import Reading, check_rules, read
from rewriter.engine.driver import run_stage
from rewriter.engine.table import Table
from rewriter.errors import RewriterError
from rewriter.explaining.account import Explanation, Finding, MissedQuestion
from rewriter.explaining.asking import Asking
from rewriter.pause import collector_paused
from rewriter.report import Report
from rewriter.rule import RuleSet

__all__ = ["Explanation", "Finding", "MissedQuestion", "explain"]

NEAR = 2  # for a whole model: the most that a place may miss


def explain(model: Any, rules: RuleSet, node: str | None = None) -> Explanation:
    """Why rules match at a node of a model or do not: for each rule the nearest partial match and what it misses.

    Args:
        model: an onnx.ModelProto, an onnx_ir.Model, a path, or what `rewriter.read` gave. It is left alone.
        rules: a rule set or a single rule. Those of later stages are asked once the earlier ones have run.
        node: the name of a node (or of its first output). Without one, the near misses of the whole model: places that
            a rule's pattern fits but for one or two questions.

    Returns:
        An Explanation: its findings, nearest first. `print(...)` it, or use `findings`, `as_dict()`.

    Raises:
        RewriterError: there is no such node. ModelError, RuleError: as `rewriter.apply`.
    """
    stages = check_rules(rules).stages()
    with collector_paused():
        reading = model if isinstance(model, Reading) else read(model)
        table, source = reading.table, reading.source
        if reading is model and len(stages) > 1:  # the stages before the last are run, and a reading is not to change
            table = source.read()
        wanted = [] if node is None else nodes_called(table, node)
        findings: list[Finding] = []
        hint = ""
        for number, stage in enumerate(stages):
            if number:
                run_stage(table, stages[number - 1], source.model, Report(), {}, None)
            asking = Asking(table, stage, source.model)
            found = list(near_misses(asking)) if node is None else []
            for one in (n for n in wanted if table.op[n]):
                title = table.title(table.scope(one)) if len(wanted) > 1 else ""
                where = f" (in {title})" if title else ""  # where the name alone does not tell
                found += [replace(f, node=f"{f.node}{where}") for f in asking.at(one)]
                hint = hint if found else asking.hint(one)
            findings += [replace(f, stage=number + 1) for f in found]
    findings.sort(key=lambda finding: finding.distance)
    return Explanation(node, tuple(findings), hint="" if findings else hint)


def near_misses(asking: Asking) -> Iterator[Finding]:
    """Of each node that no rule would rewrite what comes nearest: declines, else what misses least."""
    at: dict[str, list[Finding]] = {}
    taken: set[str] = set()
    for finding in asking.everywhere():
        at.setdefault(finding.node, []).append(finding)
        if finding.verdict == "matches":
            taken.update(finding.nodes)
    for node, findings in at.items():
        if node in taken:
            continue
        findings = [one for one in findings if not is_far(one)]
        least = min((one.distance[:2] for one in findings if one.verdict != "nothing"), default=(0, 0))
        if least[0] and least[1] <= NEAR:
            yield from (one for one in findings if one.distance[:2] == least)


def is_far(finding: Finding) -> bool:
    """Whether nothing of a pattern was found but the node itself."""
    first = finding.missed[0] if finding.missed else None
    return first is not None and first.question == "op" and not finding.found


def nodes_called(table: Table, name: str) -> list[int]:
    """The nodes of this name (of several graphs), or else those whose output has it.

    Raises RewriterError with the nearest names, TypeError for what is no name.
    """
    if not isinstance(name, str):
        raise TypeError(f"node is the name of a node, not {type(name).__name__}")
    alive = [n for n in range(1, len(table.op)) if table.op[n]]
    found = [n for n in alive if table.node_name(n) == name]
    found = found or [n for n in alive if any(table.name[v] == name for v in table.outputs[n] if v)]
    if found:
        return found
    close = difflib.get_close_matches(name, [table.label(n) for n in alive], 3, 0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"the model has {len(alive)} nodes"
    raise RewriterError(f"the model has no node {name!r}; {hint}")
