"""`rewriter legal MODEL --backend qnn`: the answer of `rules.legal` on the terminal (a command that `rules` adds)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rewriter import RewriterError
from rules.legality import legal as judge

ALL, SOME, FAILED = 0, 3, 1


def legal(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file; it is left as it is.")],
    backend: Annotated[
        str, typer.Option("--backend", help="onnxruntime-x86, onnxruntime, qnn, tensorrt, ...")
    ] = "generic",
) -> None:
    """Say which units run as integer kernels on a backend once they are completed, and why the others do not.

    Exit status: 0 all of them; 3 not all; 1 an error.
    """
    try:
        verdicts = judge(model, backend)
    except (RewriterError, ValueError, OSError) as error:
        typer.echo("error: " + " ".join(str(error).split()), err=True)
        raise typer.Exit(FAILED) from None
    for one in verdicts:
        typer.echo(
            f"{'integer' if one.integer else 'float  '}  {one.op}  {one.node}{'  ' + one.reason if one.reason else ''}"
        )
    good = sum(one.integer for one in verdicts)
    typer.echo(f"{good} of {len(verdicts)} units run as integer kernels on {backend}")
    raise typer.Exit(ALL if good == len(verdicts) else SOME)
