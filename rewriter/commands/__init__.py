"""The commands of `rewriter`, a file for each kind; only these and `rewriter.cli` need typer and rich."""

from rewriter.commands import console  # first, since it says what to install where those are missing

__all__ = ["console"]
