"""How rules and matches show themselves in a notebook: a little HTML, made when somebody looks."""

from __future__ import annotations

import html
import inspect
import linecache
from typing import TYPE_CHECKING

from rewriter.pattern.graph import PatternGraph
from rewriter.report.light import html_table

if TYPE_CHECKING:
    from rewriter.engine.match import Match
    from rewriter.rule import Rule, RuleSet


def written(graph: PatternGraph) -> str:
    """A pattern as its author wrote it; its name where the file is gone."""
    lines = linecache.getlines(graph.place.file)[graph.place.line - 1 :]
    start = next((k for k, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    return inspect.cleandoc("\n" + "".join(inspect.getblock(lines[start:]))).rstrip() if lines else graph.name


def rules_html(rules: RuleSet) -> str:
    """A line for each rule."""
    rows = ([one.name, (one.__doc__ or "").strip().partition("\n")[0], str(one.place)] for one in rules.rules())
    return html_table(("rule", "what it does", "where"), rows)


def rule_html(rule: Rule) -> str:
    """The patterns of a rule, before and after."""
    after = rule.definition.target
    parts = [f"<b>{html.escape(rule.name)}</b> <small>{html.escape(str(rule.place))}</small>"]
    parts += [f"before<pre>{html.escape(written(source))}</pre>" for source in rule.definition.sources]
    parts.append(
        "after: what its callback builds" if after is None else f"after<pre>{html.escape(written(after))}</pre>"
    )
    return "<br>".join(parts)


def match_html(match: Match) -> str:
    """The nodes of a match, and what its names are bound to."""
    nodes = html_table(("node", "op"), ([node.name, node.op_type] for node in match.matched))
    bound = ((name, match[name]) for name in match._leaf.variant.parameters)
    names = html_table(("name", "value"), ([name, str(getattr(value, "name", value))] for name, value in bound))
    return f"<b>{html.escape(match.rule.name)}</b> at {html.escape(match.root.name)}{nodes}{names}"
