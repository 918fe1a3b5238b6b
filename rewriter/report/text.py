"""A rewrite in words, for people: what its callback noted, or else how many nodes came, changed and went.

A note is a plain value, which is shown beside its name, or an object with a line of its own: its `str`, which is asked
for only here. So a callback can note what is dear to compute, and nobody pays for it who does not look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rewriter.report.notes import is_plain

if TYPE_CHECKING:
    from rewriter.report import Rewrite


def what_was_done(rewrite: Rewrite) -> str:
    """The notes of a rewrite, else its nodes."""
    if rewrite.notes:
        return ", ".join(shown_note(key, value) for key, value in rewrite.notes.items())
    parts = (("added", rewrite.added), ("changed", rewrite.changed), ("removed", rewrite.removed))
    return ", ".join(f"{len(nodes)} {word}" for word, nodes in parts if nodes)


def shown_note(key: str, value: Any) -> str:
    return f"{key}={shown(value)}" if is_plain(value) else str(value)


def shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
