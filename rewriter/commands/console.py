"""What all commands share: exit statuses, errors in one line, tables, progress, and how rules are named.

Scripts read the exit status; people the account, which folds to a terminal's width and is plain text elsewhere.
Progress goes to stderr: a bar on a terminal, a line now and then in a log, nothing when quiet or soon done.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"error: the command line needs {missing.name}: python -m pip install 'qdq-rewriter[cli]'"
    ) from None

from rewriter import rule_names
from rewriter.errors import RewriterError
from rewriter.rule import RuleSet

CHANGED, FAILED, USAGE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 130
EVERY = 10.0  # seconds between lines of progress in a log

Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rules",
        metavar="NAME",
        help="A shipped rule set (see `rewriter rules`), module:attribute or file.py:attribute; given more than once, "
        "they run together.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the rule set; repeatable.")
]
Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="Instead of --rules: the rule sets advised for a backend."),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="PATTERN", help="Only the rules whose name fits (`conv*`); repeatable."),
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="PATTERN", help="All but the rules whose name fits; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the account as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def new_app() -> typer.Typer:
    """A command line without commands (and with `--install-completion` for the shell)."""
    return typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def fail(message: str, status: int) -> NoReturn:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    raise typer.Exit(status)


@contextmanager
def errors_told() -> Iterator[None]:
    """Errors become one line on stderr and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        fail("interrupted; nothing was written", INTERRUPTED)
    except (RewriterError, OSError) as error:
        fail(str(error), FAILED)


def chosen(
    rules: Sequence[str] | None,
    backend: str | None,
    settings: Sequence[str] | None,
    only: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
) -> RuleSet:
    """The rule set that a command line names."""
    if not rules and not backend:
        fail("name the rules: --rules weight_bias, or --backend NAME", USAGE)
    if rules and backend:
        fail("--backend NAME stands for rules of its own: leave out --rules, or say --set backend=NAME instead", USAGE)
    try:
        found = (
            rule_names.advised(backend, settings or []) if backend else rule_names.resolve(rules or [], settings or [])
        )
        found = found.only(*only) if only else found
        found = found.without(*without) if without else found
    except KeyboardInterrupt:
        fail("interrupted; nothing was written", INTERRUPTED)
    except (RewriterError, ValueError) as error:
        fail(str(error), USAGE)
    if not found.rules():
        fail("no rule is left", USAGE)
    return found


# -- output ----------------------------------------------------------------------------------------


def make_console() -> Console:
    """A console that folds to the terminal's width, and hardly at all where nobody looks."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def print_json(value: Any) -> None:
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    print(json.dumps(value, indent=2, ensure_ascii=plain, allow_nan=False))


def print_account(kind: str, **account: Any) -> None:
    """An account of this kind as JSON, with the name and version of its form."""
    print_json({"schema": f"qdq-rewriter/{kind}", "version": 1, **account})


def print_table(
    console: Console, columns: Iterable[str], rows: Iterable[Iterable[str]], right: Collection[str] = ()
) -> None:
    """A table; columns in `right` hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in right else "left")
    for row in rows:
        table.add_row("", *(Text(cell) for cell in row))
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():  # what is read by programs has no padding
        print(line.rstrip(), file=console.file)


def heading(console: Console, text: str) -> None:
    console.print(Text(text, style="bold"))


# -- progress --------------------------------------------------------------------------------------


@contextmanager
def progress_shown(quiet: bool) -> Iterator[Callable[[int, int], object] | None]:
    """A callback for `rewriter.run`'s progress, None when quiet."""
    if quiet:
        yield None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("rewriting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, waiting: bar.update(task, completed=done, total=done + waiting)


def _lines() -> Callable[[int, int], object]:
    last = time.monotonic()

    def tell(done: int, waiting: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            print(f"{done} rewrites done, {waiting} places wait", file=sys.stderr, flush=True)

    return tell
