"""`rewriter compare A B`: `rules.compare` on the terminal, and for scripts as JSON and by the exit status."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rewriter import RewriterError
from rewriter.commands import FAILED, USAGE, fail, make_console, print_json, print_table
from rules.comparison.figures import Figures
from rules.comparison.result import Comparison, Layer, decibel
from rules.comparison.run import compare as run

COMPARED, BELOW = 0, 4
NUMBERS = ("SNR dB", "cosine", "largest difference", "steps", "top-1", "alone dB", "alone steps")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The reference, an ONNX file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The ONNX file to compare with it.")],
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE.npz",
            help="An array for each input, by its name; one more axis in front: several samples.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many random inputs.")] = 4,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs.")] = 0,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=1,3,224,224", help="The shape of a random input; repeatable."),
    ] = None,
    min_snr: Annotated[
        float | None,
        typer.Option("--min-snr", metavar="DB", help="Exit with 4 if the SNR of an output is below this."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show the layers too that add no error by themselves.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/compare.md) and nothing else.")] = False,
) -> None:
    """Run two models in ONNX Runtime and say how far apart they are, per output and layer, and where that begins.

    Exit status: 0 compared; 4 an output is below --min-snr; 1 an error; 2 a wrong command line.
    """
    if min_snr is not None and math.isnan(min_snr):
        fail("--min-snr wants a number of dB", USAGE)
    if shapes and inputs:
        fail("--shape is for random inputs, --inputs brings its own", USAGE)
    sizes = dict(map(shape, shapes or []))
    try:
        found = run(a, b, inputs, samples=samples, seed=seed, shapes=sizes)
    except (RewriterError, ValueError, OSError, ModuleNotFoundError) as error:
        fail(str(error), FAILED)
    if as_json:
        print_json(found.as_dict())
    else:
        show(found, every)
    below = min_snr is not None and found.worst_snr < min_snr
    if below and not as_json:
        print(f"The lowest SNR of an output is {decibel(found.worst_snr)} dB, below {min_snr:g} dB.")
    raise typer.Exit(BELOW if below else COMPARED)


def shape(text: str) -> tuple[str, list[int]]:
    name, _, dims = text.rpartition("=")
    sizes = [int(each) for each in dims.split(",") if each.strip().isdecimal()]
    if not name or (dims and len(sizes) != len(dims.split(","))):
        fail(f"--shape {text}: it is written NAME=1,3,224,224", USAGE)
    return name, sizes


def show(found: Comparison, every: bool) -> None:
    console = make_console()
    console.print(Text("Outputs", style="bold"))
    rows = []
    for one in found.outputs:
        rows.append([one.name, "as it is", *cells(one.plain), share(one.plain.top1), one.plain.note])
        if one.optimized is not None:
            rows.append(["", "optimized", *cells(one.optimized), share(one.optimized.top1), one.optimized.note])
    print_table(console, ("output", "B", "SNR dB", "cosine", "largest difference", "steps", "top-1", ""), rows, NUMBERS)
    shown = [one for one in found.layers if every or one.adds or one.alone is None]
    if shown:
        console.print(Text("Layers" if every else "Layers that add to the error", style="bold"))
        columns = ("layer", "op", "alone dB", "alone steps", "SNR dB", "cosine", "largest difference", "steps", "")
        print_table(console, columns, [row(one, one is found.enters) for one in shown], NUMBERS)
    if len(shown) < len(found.layers):
        print(f"{len(found.layers) - len(shown)} more layers add none (--all shows them)")
    for name, model in found.unmatched:
        print(f"{name}: an output of {model} only")
    for note in found.notes:
        print(note)
    kind = "random" if found.seed is not None else "given"
    print(f"{found.samples} {kind} sample{'' if found.samples == 1 else 's'}. {found.where}")


def row(layer: Layer, marked: bool) -> list[str]:
    alone = layer.alone
    own = ["", ""] if alone is None else [decibel(alone.snr), number(alone.max_steps)]
    note = ", ".join(filter(None, ["<-- enters here" if marked else "", layer.figures.note]))
    return [layer.name, layer.op, *own, *cells(layer.figures), note]


def cells(figures: Figures) -> list[str]:
    cosine = "" if figures.cosine is None else f"{figures.cosine:.6f}"
    return [decibel(figures.snr), cosine, number(figures.max_difference), number(figures.max_steps)]


def number(value: float | None) -> str:
    return "" if value is None else "inf" if math.isinf(value) else f"{value:.3g}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
