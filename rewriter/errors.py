"""The errors of the engine, and the two exceptions by which a replacement callback says no.

Whoever catches `RewriterError` catches everything that this package raises on purpose. Each message is one that a
person can act on: it names the rule and its file:line, or the model and its node or tensor, what was expected, and
what to do. `Decline` and `NoMatch` are not errors: a callback raises them to leave a match alone, with or without a
word in the report.
"""

from __future__ import annotations


class RewriterError(Exception):
    """Base of every error that this package raises on purpose."""


class RuleError(RewriterError):
    """A rule is wrong, or its callback misbehaved. The message names the rule and its file:line."""


class ModelError(RewriterError):
    """A model cannot be read or written: not ONNX, truncated, cyclic, dangling names, missing data."""


class Decline(Exception):
    """Raised by a callback: leave this match alone and report `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoMatch(Exception):
    """Raised by a callback: this is no match after all; nothing is reported."""
