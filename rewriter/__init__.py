"""Declarative pattern rewriting for ONNX models: rules are pairs of ONNX Script functions.

import onnx, rewriter, rules
model = rewriter.apply(onnx.load("model.onnx"), rules.weight_bias)
"""

from rewriter.api import Reading, Result, apply, find, read, run
from rewriter.engine.match import Match
from rewriter.engine.pool import Unshared
from rewriter.engine.views import Neighbours, Node, Value
from rewriter.errors import Decline, ModelError, NoMatch, RewriterError, RuleError
from rewriter.explaining import Explanation, explain
from rewriter.origins import Origin, provenance
from rewriter.planning import Plan, plan
from rewriter.report import Declined, Report, Rewrite
from rewriter.report.html import html_report
from rewriter.rule import Rule, RuleSet, rewrite, rule

__all__ = [
    "Decline",
    "Declined",
    "Explanation",
    "Match",
    "ModelError",
    "Neighbours",
    "NoMatch",
    "Node",
    "Origin",
    "Plan",
    "Reading",
    "Report",
    "Result",
    "Rewrite",
    "RewriterError",
    "Rule",
    "RuleError",
    "RuleSet",
    "Unshared",
    "Value",
    "apply",
    "explain",
    "find",
    "html_report",
    "plan",
    "provenance",
    "read",
    "rewrite",
    "rule",
    "run",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("qdq-rewriter")
        except PackageNotFoundError:  # run from a folder, not installed
            return "unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
