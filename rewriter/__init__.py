"""Declarative pattern rewriting for ONNX models: rules are pairs of ONNX Script functions.

import onnx, rewriter, rules
model = rewriter.apply(onnx.load("model.onnx"), rules.weight_bias)
"""

from rewriter.api import Reading, Result, apply, find, read, run
from rewriter.engine.match import Match
from rewriter.engine.pool import Unshared
from rewriter.engine.views import Neighbours, Node, Value
from rewriter.errors import Decline, ModelError, NoMatch, RewriterError, RuleError
from rewriter.report import Declined, Report, Rewrite
from rewriter.rule import Rule, RuleSet, rewrite, rule

__all__ = [
    "Decline",
    "Declined",
    "Match",
    "ModelError",
    "Neighbours",
    "NoMatch",
    "Node",
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
    "find",
    "read",
    "rewrite",
    "rule",
    "run",
]
