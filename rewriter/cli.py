"""The command line: `rewriter apply IN OUT --rules weight_bias`, and `rewriter rules`.

Scripts read the exit status (0 changed, 3 nothing to do, 1 an error, 2 a wrong command line, 130 interrupted)
and people the account: per rule how often it was applied, per place what was done, and per reason where it
was not. An error is one line on stderr. With status 3 the output is written all the same, a copy of the
input, so that what comes next in a pipeline finds its file. Only this file needs typer and rich.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, NoReturn

try:
    import typer
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"error: the command line needs {missing.name}: python -m pip install 'qdq-rewriter[cli]'"
    ) from None

from rewriter import rule_names
from rewriter.api import run
from rewriter.errors import RewriterError
from rewriter.report import Report
from rewriter.report.text import shown, what_was_done
from rewriter.rule import RuleSet

CHANGED, FAILED, USAGE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 130

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def group() -> None:
    """Rewrite ONNX models by declarative rules."""


@app.command()
def apply(
    model: Annotated[Path, typer.Argument(metavar="IN", help="The ONNX file; it is left as it is.")],
    output: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="The file to write [default: NAME.rewritten.onnx beside IN]."),
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rules",
            metavar="NAME",
            help="A shipped rule set (see `rewriter rules`), module:attribute or file.py:attribute; "
            "given more than once, they run together.",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the rule set; repeatable."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="NAME", help="Instead of --rules: the rule sets advised for a backend."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Apply rules to a model until nothing changes, and tell what was done.

    Exit status: 0 changed; 3 nothing to do (OUT is then a copy of IN); 1 an error; 2 a wrong command line.
    """
    if bool(rules) == bool(backend):
        fail("name the rules: --rules weight_bias, or --backend NAME, not both", USAGE)
    try:
        chosen = (
            rule_names.advised(backend, options or []) if backend else rule_names.resolve(rules or [], options or [])
        )
    except RewriterError as error:
        fail(str(error), USAGE)
    try:
        result = run(str(model), chosen, output)
    except KeyboardInterrupt:
        fail("interrupted; nothing was written", INTERRUPTED)
    except (RewriterError, OSError) as error:
        fail(str(error), FAILED)
    if not quiet:
        console = make_console()
        print_report(console, result.report, chosen)
        console.print(Text(closing(result.report, result.changed, str(model), str(result.model))))
    raise typer.Exit(CHANGED if result.changed else NOTHING)


@app.command("rules")
def list_rules() -> None:
    """List the shipped rule sets, their options and their rules."""
    console = make_console()
    for name, rule_set in rule_names.shipped().items():
        console.print(Text.assemble((name, "bold"), f"  {rule_names.summary(rule_set)}"))
        for option in rule_names.options(rule_set):
            console.print(Text(f"    --set {option.name}={as_option(getattr(rule_set, option.name))}"))
        for rule in rule_set.rules():
            console.print(Text(f"    {rule.name}: {rule_names.summary(rule) or 'no description'}"))


def as_option(value: object) -> str:
    """A value as --set takes it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else shown(value)


def add_commands() -> None:
    """The commands that installed packages add, by the entry point group `rewriter.commands`."""
    for entry in sorted(entry_points(group="rewriter.commands"), key=lambda e: e.name):
        app.command(entry.name)(entry.load())


def fail(message: str, status: int) -> NoReturn:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    raise typer.Exit(status)


def make_console() -> Console:
    """A console that folds to the terminal's width, and hardly at all where nobody looks."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def print_report(console: Console, report: Report, rules: RuleSet) -> None:
    if report.rewrites:
        counts = report.counts
        names = dict.fromkeys(rule.name for rule in rules.rules())
        console.print(Text("Applied", style="bold"))
        print_table(console, ("rule", "count"), ([name, str(counts[name])] for name in names if name in counts))
        console.print(Text("Changed", style="bold"))
        print_table(console, ("node", "rule", "what"), ([r.node, r.rule, what_was_done(r)] for r in report.rewrites))
    if report.declined:
        console.print(Text("Left alone", style="bold"))
        for reason, nodes in report.declined_by_reason().items():
            console.print(Text(f"  {reason} ({len(nodes)})"))
            console.print(Text("    " + ", ".join(nodes), style="dim"))
    if report.skipped:
        console.print(Text("Not applicable to this model", style="bold"))
        print_table(console, ("rule", "reason"), ([name, why] for name, why in report.skipped.items()))


def print_table(console: Console, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row("", *(Text(cell) for cell in row))
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():  # what is read by programs has no padding
        print(line.rstrip(), file=console.file)


def closing(report: Report, changed: bool, source: str, written: str) -> str:
    left = f", {len(report.declined)} left alone" if report.declined else ""
    if not changed:
        return f"{source}: nothing to do{left}; {written} is a copy"
    count = len(report.rewrites)
    return f"{written}: {count} rewrite{'' if count == 1 else 's'}{left}"


def main() -> None:
    """The entry point of the `rewriter` command."""
    add_commands()
    app()


if __name__ == "__main__":
    main()
