"""The commands of `rewriter`, a file for each kind; only these and `rewriter.cli` need typer and rich.

What is named here is for packages that add commands of their own (entry point group `rewriter.commands`).
"""

from rewriter.commands.console import (  # says what to install where typer or rich is missing
    FAILED,
    USAGE,
    fail,
    make_console,
    print_account,
    print_json,
    print_table,
)

__all__ = ["FAILED", "USAGE", "fail", "make_console", "print_account", "print_json", "print_table"]
