"""What each rule did and how long that took, for those who wonder where the time goes.

One compiled tree asks for all rules at once, so the search has one time for all of them; what follows a match belongs
to its rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RuleStatistics:
    """attempts: nodes at which the rule was looked for. matches: places that its source fits, each time one was found.
    declines: what its callback, or a check of the edit, turned down. seconds: in its callback, and in edits (what they
    are built from, their checks, and what is asked again after them)."""

    attempts: int = 0
    matches: int = 0
    declines: int = 0
    rewrites: int = 0
    callback_seconds: float = 0.0
    edit_seconds: float = 0.0


@dataclass
class Statistics:
    """match_seconds: in the search for all rules. asked: nodes at which the compiled rules were asked."""

    match_seconds: float = 0.0
    asked: int = 0
    rules: dict[str, RuleStatistics] = field(default_factory=dict)

    def of(self, rule: str) -> RuleStatistics:
        return self.rules.setdefault(rule, RuleStatistics())
