"""What a run did and did not do, as data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from rewriter.report.light import table_of_report
from rewriter.report.plain import report_as_dict, report_schema
from rewriter.report.statistics import Statistics
from rewriter.report.text import what_was_done


@dataclass(frozen=True)
class Rewrite:
    """One rewrite: which rule, at which node, what became of the nodes, and what the callback noted.

    `str(rewrite)` is its line: the notes, each as `key=value` or, if it is no plain value, as its own line.
    """

    rule: str
    node: str
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    notes: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.node} ({self.rule}): {what_was_done(self)}"


@dataclass(frozen=True)
class Declined:
    """A place that a rule's core fits but that was left alone, and why."""

    rule: str
    node: str
    reason: str


@dataclass
class Report:
    """The account of a run."""

    rewrites: list[Rewrite] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # rules that this model's opset rules out, and why
    stop_reason: str = ""
    sweeps: int = 0
    matches: list[tuple[str, tuple[int, ...]]] = field(default_factory=list, repr=False)  # of each rewrite: see `Plan`
    statistics: Statistics | None = None  # where asked for

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule was applied."""
        found: dict[str, int] = {}
        for one in self.rewrites:
            found[one.rule] = found.get(one.rule, 0) + 1
        return found

    def __str__(self) -> str:
        """A line for each rewrite, and for each reason for which nodes were left alone."""
        lines = [str(one) for one in self.rewrites]
        lines += [f"left alone: {reason}: {', '.join(nodes)}" for reason, nodes in self.declined_by_reason().items()]
        return "\n".join(lines + [f"{rule} was skipped: {why}" for rule, why in self.skipped.items()])

    def declined_by_reason(self) -> dict[str, list[str]]:
        """Reason -> the nodes that it holds for, in the order of the model."""
        found: dict[str, list[str]] = {}
        for one in self.declined:
            found.setdefault(one.reason, []).append(one.node)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, of the form that `schema()` says: the same for the same run
        (but for the seconds of `statistics`). A note that is no plain value is asked for its `as_dict()`."""
        return report_as_dict(self)

    def to_json(self, indent: int | None = 2) -> str:
        """The same as JSON text; a number that is not finite is "Infinity", "-Infinity" or "NaN", a string."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def schema() -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) that every `as_dict()` of this version obeys."""
        return report_schema()

    def _repr_html_(self) -> str:
        """A table, as notebooks show it."""
        return table_of_report(self)
