"""`rewriter rules`: the shipped rule sets, or one in full, with its options and its patterns before and after."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rewriter import rule_names
from rewriter.commands.console import USAGE, fail, heading, make_console
from rewriter.errors import RewriterError
from rewriter.notebook import written
from rewriter.report.text import shown
from rewriter.rule import RuleSet


def rules(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Show this one in full: as --rules takes it, or NAME/RULE for one rule."),
    ] = None,
) -> None:
    """List the shipped rule sets, their options and their rules; or show one with its patterns, before and after."""
    console = make_console()
    if name is not None:
        show(console, name)
        return
    for one, rule_set in rule_names.shipped().items():
        console.print(Text.assemble((one, "bold"), f"  {rule_names.summary(rule_set)}"))
        print_options(console, rule_set)
        for rule in rule_set.rules():
            console.print(Text(f"    {rule.name}: {rule_names.summary(rule) or 'no description'}"))


def print_options(console: Console, rule_set: RuleSet) -> None:
    for option in rule_names.options(rule_set):
        console.print(Text(f"    --set {option.name}={as_option(getattr(rule_set, option.name))}"))


def show(console: Console, name: str) -> None:
    """A rule set in full, or one rule of it."""
    wanted, _, rule_name = name.partition("/") if not name.endswith(".py") else (name, "", "")
    try:
        found = rule_names.resolve([wanted if rule_name else name])
        found = found.only(rule_name) if rule_name else found
    except (RewriterError, ValueError) as error:
        fail(str(error), USAGE)
    text = inspect.getdoc(found) or inspect.getdoc(type(found)) or ""
    if not rule_name:
        heading(console, name)
        console.print(Text(text), soft_wrap=True)
        print_options(console, found)
    for rule in found.rules():
        console.print()
        heading(console, f"{rule.name}  ({rule.place})")
        if rule.__doc__:
            console.print(Text(inspect.cleandoc(rule.__doc__)), soft_wrap=True)
        for source in rule.definition.sources:
            console.print(Text("before:", style="dim"))
            console.print(Text(written(source)), soft_wrap=True)
        if rule.definition.target is not None:
            console.print(Text("after:", style="dim"))
            console.print(Text(written(rule.definition.target)), soft_wrap=True)
        else:
            console.print(Text("after: what its callback builds", style="dim"))


def as_option(value: object) -> str:
    """A value as --set takes it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else shown(value)
