"""What an explanation holds, and how it is shown: findings, nearest first, and for a whole model grouped by reason."""

from __future__ import annotations

import html
import os
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any


def near(place: str) -> str:
    """file:line as seen from the folder or the import path that the file lies in."""
    folders = sorted({os.getcwd(), *map(os.path.abspath, filter(None, sys.path))}, key=len, reverse=True)
    return next((place[len(one) + 1 :] for one in folders if place.startswith(one + os.sep)), place)


@dataclass(frozen=True)
class MissedQuestion:
    """One condition of a pattern that does not hold.

    reason: in a sentence, as in the report of a run. expected, seen: what the pattern asks for and what the model has.
    remedy: what would make it hold. place: file:line of the pattern that asks. question: its kind.
    """

    question: str
    reason: str
    expected: str
    seen: str
    remedy: str
    place: str


@dataclass(frozen=True)
class Finding:
    """How near a rule's pattern comes to fitting at a node.

    verdict: "matches" (it would be rewritten), "declined" (its pattern fits, its callback says no), "nothing" (it
        does so without a reason), "opset" (the rule is made for others), or "missed".
    role: which part of the pattern the node was taken for.
    missed: what does not hold, in the order of the search. held: how many conditions hold; found: how many of those
        found another node of the pattern; unasked: how many were not asked any more, as the place is too far.
    reason: of a decline, or of the opset. place: file:line of the rule. nodes: of a pattern that fits, all of them.
    stage: of the rule set (`a >> b` has two); later ones are asked about the model that the earlier ones leave.
    """

    rule: str
    node: str
    role: str
    verdict: str
    missed: tuple[MissedQuestion, ...] = ()
    held: int = 0
    found: int = 0
    unasked: int = 0
    reason: str = ""
    place: str = ""
    nodes: tuple[str, ...] = ()
    stage: int = 1

    @property
    def distance(self) -> tuple[int, int, int]:
        """Smaller is nearer."""
        order = {"matches": 0, "declined": 1, "opset": 2, "nothing": 3, "missed": 4}
        return order[self.verdict], len(self.missed) + (1000 if self.unasked else 0), -self.held

    @property
    def why(self) -> str:
        """In one sentence."""
        if self.verdict == "matches":
            return "it matches"
        return " ".join(self.reason.split()) or (self.missed[0].reason if self.missed else "")

    def lines(self) -> list[str]:
        head = {
            "matches": "matches, and would be rewritten",
            "declined": f"fits, but is declined: {self.why}",
            "opset": self.reason,
            "nothing": self.reason,
            "missed": f"{self.held} of {self.held + len(self.missed) + self.unasked} conditions hold",
        }[self.verdict]
        stage = f" in stage {self.stage}" if self.stage > 1 else ""
        lines = [f"{self.rule} ({near(self.place)}){stage}, with {self.node!r} as {self.role}: {head}"]
        for number, one in enumerate(self.missed):
            lines += [
                f"  {'missed' if not number else 'and'}: {one.reason}",
                f"    expected: {one.expected}  [{near(one.place)}]",
                f"    found:    {one.seen}",
                f"    to mend:  {one.remedy}",
            ]
        if self.unasked:
            lines.append(f"  and {self.unasked} more conditions were not asked: the pattern is too far away")
        return lines


@dataclass(frozen=True)
class Explanation:
    """Why rules match or do not, nearest first; of one node, or the near misses of a whole model."""

    node: str | None
    findings: tuple[Finding, ...] = ()
    more: int = 0  # how many were left out of a shortened one
    hint: str = ""  # where else to ask

    def of(self, rule: str) -> list[Finding]:
        """Those of one rule."""
        return [one for one in self.findings if one.rule == rule]

    def shortened(self, most: int) -> Explanation:
        """The nearest ones: so many findings, or for a whole model so many reasons."""
        if self.node is not None:
            return replace(self, findings=self.findings[:most], more=max(0, len(self.findings) - most))
        reasons = list(self.by_reason())
        kept = set(reasons[:most])
        findings = tuple(one for one in self.findings if (one.rule, one.why) in kept)
        return replace(self, findings=findings, more=max(0, len(reasons) - most))

    def by_reason(self) -> dict[tuple[str, str], list[Finding]]:
        """Rule and reason -> where it is so."""
        found: dict[tuple[str, str], list[Finding]] = {}
        for one in self.findings:
            found.setdefault((one.rule, one.why), []).append(one)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data: {"schema": "qdq-rewriter/explanation", "version": 1, "node", "findings"}."""
        return {
            "schema": "qdq-rewriter/explanation",
            "version": 1,
            "node": self.node,
            "findings": [asdict(one) for one in self.findings],
        }

    def __str__(self) -> str:
        if not self.findings:
            return self.hint if self.node else "no near misses: no rule misses a place by only one or two conditions"
        rest = [f"({self.more} more)"] if self.more else []
        if self.node is not None:
            fitting = [one for one in self.findings if one.verdict == "matches"]
            if fitting:  # then it does not matter how near others come
                others = len(self.findings) - len(fitting) + self.more
                rest = [f"({others} other rules do not fit there)"] if others else []
            return "\n".join([*(line for one in fitting or self.findings for line in one.lines()), *rest])
        lines = []
        for (rule, why), found in self.by_reason().items():
            first = found[0]
            lines.append(f"{rule}: {why} ({len(found)})")
            lines.append("  at " + ", ".join(one.node for one in found))
            lines += [f"  {line.strip()}" for line in first.lines()[2:5]] if first.missed else []
        return "\n".join(lines + rest)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
