"""`rewriter apply` and `rewriter plan`: what is done to a model, or would be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from rewriter.api import run
from rewriter.commands.console import (
    CHANGED,
    NOTHING,
    USAGE,
    Backend,
    Json,
    Only,
    Quiet,
    Rules,
    Settings,
    Without,
    chosen,
    errors_told,
    fail,
    heading,
    make_console,
    print_account,
    print_table,
    progress_shown,
)
from rewriter.models.files import Output, default_output
from rewriter.planning import plan as plan_of
from rewriter.report import Report
from rewriter.report.html import html_report, require_libraries
from rewriter.report.text import what_was_done
from rewriter.rule import RuleSet


def apply(
    model: Annotated[Path, typer.Argument(metavar="IN", help="The ONNX file; it is left as it is.")],
    output: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="The file to write [default: NAME.rewritten.onnx beside IN]."),
    ] = None,
    rules: Rules = None,
    options: Settings = None,
    backend: Backend = None,
    only: Only = None,
    without: Without = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace IN, as a whole or not at all, instead of writing beside it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing: tell what would be done, as `rewriter plan`.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write the account as a web page, too.")
    ] = None,
    statistics: Annotated[bool, typer.Option("--statistics", help="Count and time what each rule does, too.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Apply rules to a model until nothing changes, and tell what was done.

    Exit status: 0 changed; 3 nothing to do (OUT is then a copy of IN); 1 an error; 2 a wrong command line.
    """
    if in_place and output is not None:
        fail("--in-place replaces IN, OUT is written beside it: give one of them", USAGE)
    if dry_run and (report is not None or statistics or in_place or output is not None):
        fail("--dry-run writes and measures nothing: leave out OUT, --in-place, --report and --statistics", USAGE)
    chosen_rules = chosen(rules, backend, options, only, without)
    if dry_run:
        show_plan(model, chosen_rules, as_json, quiet)
    if report is not None:
        check_page(report, model, output)
    before: Any = model.read_bytes() if report is not None and in_place and model.is_file() else None
    with errors_told(), progress_shown(quiet or as_json) as progress:
        result = run(
            str(model),
            chosen_rules,
            output,
            in_place=in_place,
            statistics=statistics,
            progress=progress,
        )
        if report is not None:
            page = html_report(result, before=model if before is None else _loaded(before))
            with Output() as out:
                out.file(report, lambda to: to.write(page.encode()))
    if as_json:
        print_account(
            "run",
            input=str(model),
            output=str(result.model),
            changed=result.changed,
            report=result.report.as_dict(),
        )
    elif not quiet:
        console = make_console()
        print_report(console, result.report, chosen_rules)
        console.print(Text(closing(result.report, result.changed, str(model), str(result.model), in_place)))
    raise typer.Exit(CHANGED if result.changed else NOTHING)


def check_page(page: Path, model: Path, output: Path | None) -> None:
    """The page may be no file that is read or written otherwise, and there must be a place for it."""
    others = (model, output or default_output(model))
    if any(os.path.realpath(page) == os.path.realpath(other) for other in others):
        fail(f"{page}: the page would overwrite the model; choose another name", USAGE)
    if page.is_dir() or not page.parent.is_dir():
        fail(f"{page}: {'this is a folder' if page.is_dir() else f'there is no folder {page.parent}'}", USAGE)
    if not os.access(page.parent, os.W_OK):
        fail(f"{page}: the folder may not be written", USAGE)
    with errors_told():
        require_libraries()


def _loaded(data: bytes) -> Any:
    import onnx

    return onnx.load_from_string(data)


def plan(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file; it is left as it is.")],
    rules: Rules = None,
    options: Settings = None,
    backend: Backend = None,
    only: Only = None,
    without: Without = None,
    as_json: Json = False,
) -> None:
    """Tell what rules would do to a model, with a diff of its graph; write nothing.

    Exit status: 0 there is something to do; 3 there is not; 1 an error; 2 a wrong command line.
    """
    show_plan(model, chosen(rules, backend, options, only, without), as_json, False)


def show_plan(model: Path, rules: RuleSet, as_json: bool, quiet: bool) -> None:
    with errors_told():
        made = plan_of(str(model), rules)
        diff = "" if quiet else made.diff()
    if as_json:
        print_account(
            "plan",
            input=str(model),
            changed=made.changed,
            initializers=made.initializers,
            report=made.report.as_dict(),
            diff=diff.splitlines(),
        )
    elif not quiet:
        console = make_console()
        print_report(console, made.report, rules, done=False)
        styles = {"+": "green", "-": "red", "@": "dim"}
        for line in diff.splitlines():
            console.print(Text(line, style=styles.get(line[:1], "")), soft_wrap=True)
        console.print(Text(closing(made.report, made.changed, str(model), None, False)))
    raise typer.Exit(CHANGED if made.changed else NOTHING)


def print_report(console: Console, report: Report, rules: RuleSet, done: bool = True) -> None:
    if report.rewrites:
        counts = report.counts
        names = dict.fromkeys(rule.name for rule in rules.rules())
        heading(console, "Applied" if done else "Would be applied")
        print_table(console, ("rule", "count"), ([name, str(counts[name])] for name in names if name in counts))
        heading(console, "Changed" if done else "Would change")
        print_table(console, ("node", "rule", "what"), ([r.node, r.rule, what_was_done(r)] for r in report.rewrites))
    if report.declined:
        heading(console, "Left alone")
        for reason, nodes in report.declined_by_reason().items():
            console.print(Text(f"  {reason} ({len(nodes)})"))
            console.print(Text("    " + ", ".join(nodes), style="dim"))
    if report.skipped:
        heading(console, "Not applicable to this model")
        print_table(console, ("rule", "reason"), ([name, why] for name, why in report.skipped.items()))
    if report.statistics is not None:
        heading(console, "Statistics")
        columns = ("rule", "attempts", "matches", "declines", "rewrites", "callback", "edit")
        print_table(
            console,
            columns,
            (
                [name, *map(str, (s.attempts, s.matches, s.declines, s.rewrites)),
                 f"{s.callback_seconds * 1e3:.1f} ms", f"{s.edit_seconds * 1e3:.1f} ms"]
                for name, s in report.statistics.rules.items()
            ),
        )  # fmt: skip
        console.print(Text(f"  search for all rules: {report.statistics.match_seconds * 1e3:.1f} ms"))


def closing(report: Report, changed: bool, source: str, written: str | None, in_place: bool) -> str:
    left = f", {len(report.declined)} left alone" if report.declined else ""
    if not changed:
        copied = "" if written is None or in_place else f"; {written} is a copy"
        return f"{source}: nothing to do{left}{copied}"
    count = len(report.rewrites)
    rewrites = f"{count} rewrite{'' if count == 1 else 's'}{left}"
    return f"{source}: {rewrites} to do; nothing was written" if written is None else f"{written}: {rewrites}"
