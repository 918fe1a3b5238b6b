"""`rewriter explain`, `find` and `provenance`: questions about a model, which is left as it is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rewriter.api import find as find_matches
from rewriter.commands.console import (
    CHANGED,
    NOTHING,
    Backend,
    Json,
    Only,
    Rules,
    Settings,
    Without,
    chosen,
    errors_told,
    make_console,
    print_account,
    print_json,
    print_table,
)
from rewriter.explaining import explain as explain_model
from rewriter.origins import OLDEST_IR
from rewriter.origins import provenance as origins_of

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file; it is left as it is.")]


def explain(
    model: Model,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="The node, by its name or its first output's.")
    ] = None,
    rules: Rules = None,
    options: Settings = None,
    backend: Backend = None,
    only: Only = None,
    without: Without = None,
    most: Annotated[int, typer.Option("--most", help="How many findings to show; 0 for all.")] = 5,
    as_json: Json = False,
) -> None:
    """Say why rules match at a node or do not: for each rule what is missing, nearest first.

    Without --node: the near misses of the whole model, grouped by reason.
    Exit status: 0 there is something to say; 3 there is not; 1 an error; 2 a wrong command line.
    """
    chosen_rules = chosen(rules, backend, options, only, without)
    with errors_told():
        found = explain_model(str(model), chosen_rules, node)
    if as_json:
        print_json(found.as_dict())
    else:
        shown = found.shortened(most) if most else found
        make_console().print(Text(str(shown)), soft_wrap=True)
    raise typer.Exit(CHANGED if found.findings else NOTHING)


def find(
    model: Model,
    rules: Rules = None,
    options: Settings = None,
    backend: Backend = None,
    only: Only = None,
    without: Without = None,
    as_json: Json = False,
) -> None:
    """List the places that the patterns of rules fit; callbacks are not asked.

    Exit status: 0 some; 3 none; 1 an error; 2 a wrong command line.
    """
    chosen_rules = chosen(rules, backend, options, only, without)
    with errors_told():
        found = [
            (m.rule.name, m.root.name, [n.name for n in m.matched]) for m in find_matches(str(model), chosen_rules)
        ]
    if as_json:
        matches = [{"rule": rule, "root": root, "nodes": nodes} for rule, root, nodes in found]
        print_account("matches", matches=matches)
    else:
        print_table(make_console(), ("root", "rule", "nodes"), ([root, rule, ", ".join(n)] for rule, root, n in found))
    raise typer.Exit(CHANGED if found else NOTHING)


def provenance(model: Model, as_json: Json = False) -> None:
    """List the nodes that say that a rule made them, and of which nodes (models of IR version 10 and later).

    Exit status: 0 some; 3 none; 1 an error.
    """
    with errors_told():
        found = origins_of(str(model))
    if as_json:
        print_account("provenance", nodes=[asdict(one) for one in found])
    elif not found:
        print(f"no node says that a rule made it (there is a place for that from IR version {OLDEST_IR} on)")
    else:
        rows = ([one.node, one.op_type, one.rule, one.rules, ", ".join(one.sources)] for one in found)
        print_table(make_console(), ("node", "op", "rule", "rules", "from"), rows)
    raise typer.Exit(CHANGED if found else NOTHING)
