"""Every code block of README.md and docs/ is run, in order, in one namespace for each page.

Blocks fenced as `python` run; where a `text` block follows, it is what the code prints. In blocks fenced as `console`
the lines behind `$` are commands, and the others what they print (`...` stands for any lines). A page's code is
put in a real file, at the lines that it has in the page, because ONNX Script reads the source of what it
compiles; so errors and tracebacks show the page's own lines.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rewriter import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(p for p in [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")] if p.exists())
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*?$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    line: int
    code: str
    output: str | None = None


def blocks_of(page: str) -> list[Block]:
    """The page's python blocks, each with what it is said to print."""
    blocks: list[Block] = []
    end = -1
    for fence in FENCE.finditer(page):
        language, text = fence.groups()
        if language == "python":
            blocks.append(Block(page.count("\n", 0, fence.start()) + 1, text))
        elif language == "text" and blocks and not page[end : fence.start()].strip():
            blocks[-1].output = text
        end = fence.end()
    return blocks


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of(page.read_text())
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - len(lines)) + block.code.splitlines()
    name = f"page_{page.stem}"
    file = tmp_path / f"{name}.py"
    file.write_text("\n".join(lines) + "\n")
    module = types.ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(work)
    for block in blocks:
        code = compile("\n" * block.line + block.code, str(file), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, module.__dict__)
        if block.output is not None:
            assert printed.getvalue().rstrip() == block.output.rstrip(), f"{page.name}:{block.line}"


def commands_of(page: str) -> list[tuple[str, list[str]]]:
    """The commands of a page's console blocks, each with the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for fence in FENCE.finditer(page):
        if fence[1] == "console":
            for line in fence[2].splitlines():
                if line.startswith("$ "):
                    found.append((line[2:], []))
                else:
                    found[-1][1].append(line)
    return found


def is_printed(wanted: list[str], printed: list[str]) -> bool:
    pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


@pytest.mark.parametrize("page", [p for p in PAGES if commands_of(p.read_text())], ids=lambda p: p.name)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    cli.add_commands()
    for command, wanted in commands_of(page.read_text()):
        program, *words = shlex.split(command)
        assert program == "rewriter"
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code in (0, 3), f"{command}: {result.stderr}"
        assert is_printed(wanted, result.stdout.splitlines()), f"{command}:\n{result.stdout}"


def test_a_page_is_read_as_its_reader_does() -> None:
    page = "# T\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nwords\n\n```bash\nls\n```\n"
    page += "\n```python\nx = 2\n```\n"
    assert blocks_of(page) == [Block(3, "print(1)\n", "1\n"), Block(17, "x = 2\n")]
    assert commands_of("```console\n$ a b\nx\n...\n$ c\n```\n") == [("a b", ["x", "..."]), ("c", [])]
    assert is_printed(["x", "..."], ["x", "y", "z"])
    assert not is_printed(["x"], ["x", "y"])


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target
