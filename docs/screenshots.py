"""Makes the pictures of `docs/images/`: `python -m docs.screenshots` in the repository's root.

Terminals show commands on the example model. Pages are made of the real models that the tests use, and skipped with a
word where those are absent. A picture shows the head of a page; its colours are reduced to a palette, which takes a
third of the bytes.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from unittest import mock

import onnx
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

import rewriter
import rules
from rewriter import cli
from rewriter.commands import applying, looking
from tests import browser
from tests.real_models import SHARED

IMAGES = Path(__file__).parent / "images"
PAGES = {"report_yunet": ("yunet_n_320.real", 2480), "report_cct": ("deeploy_cct_op20", 2150)}
WIDTH = 1240
TERMINALS = {
    "terminal_apply": (("apply", "examples/digits_qdq.onnx", "digits.int8.onnx", "--rules", "weight_bias"), 392),
    "terminal_explain": (
        ("explain", "digits.int8.onnx", "--rules", "weight_bias", "--node", "conv1", "--most", "2"),
        260,
    ),
}
COLUMNS = 132


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    for name, (words, height) in TERMINALS.items():
        shoot(terminal(words), IMAGES / f"{name}.png", height)
    for name, (model, height) in PAGES.items():
        file = SHARED / "actqdq" / f"{model}.onnx"
        if not file.is_file():
            print(f"{name}: there is no {file}", file=sys.stderr)
            return 1
        before = onnx.load(file)
        page = rewriter.html_report(rewriter.run(before, rules.weight_bias), before, title=file.name)
        shoot(page, IMAGES / f"{name}.png", height)
    return 0


def terminal(words: tuple[str, ...]) -> str:
    """A page with what a command prints on a terminal."""
    console = Console(record=True, width=COLUMNS, force_terminal=True, highlight=False, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.ExitStack() as stack:
        Path("examples").symlink_to(Path(__file__).parents[1] / "examples")
        if "explain" in words:
            rewriter.apply("examples/digits_qdq.onnx", rules.weight_bias, "digits.int8.onnx")
        for module in (applying, looking):
            stack.enter_context(mock.patch.object(module, "make_console", return_value=console))
        CliRunner().invoke(cli.app, list(words))
    picture = console.export_svg(title=f"rewriter {' '.join(words)}")
    return f"<!doctype html><body style='margin:0'>{picture}</body>"


def shoot(page: str, image: Path, height: int) -> None:
    """A PNG of the head of a page."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, "utf-8")
        browser.screenshot(file, image, WIDTH, height)
    with Image.open(image) as taken:
        reduced = taken.convert("RGB").quantize(128)
    reduced.save(image, optimize=True)
    print(f"{image.name}: {image.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
