"""A report as a notebook shows it, and the table that it is shown as: made without any library."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from rewriter.report.text import what_was_done

if TYPE_CHECKING:
    from rewriter.report import Report

ROWS = 50


def table_of_report(report: Report) -> str:
    """Counts, the first rewrites, and every reason for which nodes were left alone."""
    counts = ", ".join(f"{rule}: {count}" for rule, count in report.counts.items())
    parts = [f"<p>{escape(counts) or 'nothing rewritten'}; {len(report.declined)} left alone</p>"]
    if report.rewrites:
        rows = ((one.node, one.rule, what_was_done(one)) for one in report.rewrites[:ROWS])
        parts.append(html_table(("node", "rule", "what"), rows))
    if len(report.rewrites) > ROWS:
        parts.append(f"<p>{len(report.rewrites) - ROWS} more, not listed</p>")
    reasons = report.declined_by_reason().items()
    left = [(reason, str(len(nodes)), _first(nodes)) for reason, nodes in reasons]
    left += [(f"{rule} was skipped: {why}", "", "") for rule, why in report.skipped.items()]
    if left:
        parts.append(html_table(("left alone because", "count", "nodes"), left))
    return "<div>" + "".join(parts) + "</div>"


def _first(nodes: list[str]) -> str:
    more = f", and {len(nodes) - ROWS} more" if len(nodes) > ROWS else ""
    return ", ".join(nodes[:ROWS]) + more


def html_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
