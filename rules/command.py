"""`rewriter legal MODEL --backend qnn`: the answer of `rules.legal` on the terminal (a command that `rules` adds)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rewriter import RewriterError
from rewriter.commands import FAILED, USAGE, fail, print_account
from rules.legality import legal as judge

ALL, SOME = 0, 3


def legal(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file; it is left as it is.")],
    backend: Annotated[
        str, typer.Option("--backend", help="onnxruntime-x86, onnxruntime, qnn, tensorrt, ...")
    ] = "generic",
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Say which units run as integer kernels on a backend once they are completed, and why the others do not.

    Exit status: 0 all of them; 3 not all, or there is none; 1 an error; 2 an unknown backend.
    """
    try:
        verdicts = judge(model, backend)
    except (RewriterError, ValueError, OSError) as error:
        fail(str(error), FAILED if isinstance(error, (RewriterError, OSError)) else USAGE)
    good = sum(one.integer for one in verdicts)
    status = ALL if verdicts and good == len(verdicts) else SOME
    if as_json:
        print_account("legality", backend=backend, units=[asdict(one) for one in verdicts])
        raise typer.Exit(status)
    for one in verdicts:
        typer.echo(
            f"{'integer' if one.integer else 'float  '}  {one.op}  {one.node}{'  ' + one.reason if one.reason else ''}"
        )
    typer.echo(f"{good} of {len(verdicts)} units run as integer kernels on {backend}")
    raise typer.Exit(status)
