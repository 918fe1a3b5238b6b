"""The command line: `rewriter apply IN OUT --rules weight_bias`, `plan`, `explain`, `find`, `rules`, `provenance`.

Scripts read the exit status (0 changed or found, 3 nothing to do, 1 an error, 2 a wrong command line, 130 interrupted)
and people the account: per rule how often it was applied, per place what was done, and per reason where it was not. An
error is one line on stderr. With status 3 the output of `apply` is written all the same, a copy of the input, so that
what comes next in a pipeline finds its file. Installed packages add commands of theirs (`rules` adds `legal` and
`compare`).
"""

from __future__ import annotations

import io
import sys
from importlib.metadata import entry_points

from rewriter.commands import applying, listing, looking
from rewriter.commands.console import CHANGED, FAILED, INTERRUPTED, NOTHING, USAGE, new_app

__all__ = ["CHANGED", "FAILED", "INTERRUPTED", "NOTHING", "USAGE", "add_commands", "app", "main"]

app = new_app()


@app.callback()
def group() -> None:
    """Rewrite ONNX models by declarative rules."""


for _command in (applying.apply, applying.plan, looking.explain, looking.find, listing.rules, looking.provenance):
    app.command(_command.__name__)(_command)


def add_commands() -> None:
    """The commands that installed packages add, by the entry point group `rewriter.commands`."""
    known = {command.name for command in app.registered_commands}
    for entry in sorted(entry_points(group="rewriter.commands"), key=lambda e: e.name):
        if entry.name not in known:
            app.command(entry.name)(entry.load())


def main() -> None:
    """The entry point of the `rewriter` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for names that the terminal's encoding does not have
    add_commands()
    app()


if __name__ == "__main__":
    main()
