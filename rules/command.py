"""`rewriter legal MODEL --backend qnn`: the answer of `rules.legal` on the terminal (a command that `rules` adds)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rewriter import RewriterError
from rules.legality import legal as judge

ALL, FAILED, USAGE, SOME = 0, 1, 2, 3


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
        typer.echo("error: " + " ".join(str(error).split()), err=True)
        raise typer.Exit(USAGE if not isinstance(error, (RewriterError, OSError)) else FAILED) from None
    good = sum(one.integer for one in verdicts)
    status = ALL if verdicts and good == len(verdicts) else SOME
    if as_json:
        units = [asdict(one) for one in verdicts]
        data = {"schema": "qdq-rewriter/legality", "version": 1, "backend": backend, "units": units}
        typer.echo(json.dumps(data, indent=2))
        raise typer.Exit(status)
    for one in verdicts:
        typer.echo(
            f"{'integer' if one.integer else 'float  '}  {one.op}  {one.node}{'  ' + one.reason if one.reason else ''}"
        )
    typer.echo(f"{good} of {len(verdicts)} units run as integer kernels on {backend}")
    raise typer.Exit(status)
