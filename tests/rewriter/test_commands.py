"""The commands beside `apply`: what they print, as text and as JSON, and their exit statuses."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner, Result

import rewriter
import rules
from rewriter import cli
from tests.rewriter.small_models import CHAIN, as_file, parse
from tests.rewriter.test_cli import EXAMPLE, SMALL


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return as_file(parse(CHAIN), tmp_path)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def data_of(*arguments: object) -> Any:
    result = invoke(*arguments, "--json")
    assert result.stderr == ""
    return json.loads(result.stdout)


# -- apply ---------------------------------------------------------------------------------------------


def test_in_place(chain: Path, tmp_path: Path) -> None:
    expected = rewriter.apply(chain, rules_of("everything"), tmp_path / "other.onnx").read_bytes()
    assert invoke("apply", chain, "--rules", f"{SMALL}:everything", "--in-place", "-q").exit_code == cli.CHANGED
    assert chain.read_bytes() == expected
    result = invoke("apply", chain, "--rules", f"{SMALL}:everything", "--in-place")
    assert (result.exit_code, result.stdout) == (cli.NOTHING, f"{chain}: nothing to do\n")
    assert invoke("apply", chain, "o.onnx", "--rules", f"{SMALL}:relus", "--in-place").exit_code == cli.USAGE


def rules_of(name: str) -> rewriter.RuleSet:
    from tests.rewriter import small_rules

    found: rewriter.RuleSet = getattr(small_rules, name)
    return found


def test_only_and_without(chain: Path, tmp_path: Path) -> None:
    names = ("apply", chain, tmp_path / "o.onnx", "--rules", f"{SMALL}:everything")
    assert [r["rule"] for r in data_of(*names, "--only", "mul*")["report"]["rewrites"]] == ["mul_to_div"]
    assert [r["rule"] for r in data_of(*names, "--without", "mul*", "--without", "leak")["report"]["rewrites"]] == [
        "relus"
    ]
    result = invoke(*names, "--only", "nul*")
    assert result.exit_code == cli.USAGE
    assert "nul*" in result.stderr


@pytest.mark.parametrize("command", [("plan",), ("apply", "--dry-run")])
def test_plan_and_dry_run(command: tuple[str, ...], chain: Path) -> None:
    result = invoke(command[0], chain, *command[1:], "--rules", f"{SMALL}:everything")
    assert result.exit_code == cli.CHANGED
    lines = result.stdout.splitlines()
    assert "-  a = Relu(x)" in lines
    assert lines[-1] == f"{chain}: 2 rewrites to do; nothing was written"
    assert [p.name for p in chain.parent.iterdir()] == [chain.name]
    assert invoke(command[0], chain, *command[1:], "--rules", f"{SMALL}:negs").exit_code == cli.NOTHING
    data = data_of(command[0], chain, *command[1:], "--rules", f"{SMALL}:everything")
    assert (data["schema"], data["initializers"]) == ("qdq-rewriter/plan", {"y_half": "float[1]"})


def test_json_and_statistics(tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    data = data_of("apply", EXAMPLE, target, "--rules", "weight_bias", "--statistics")
    assert (data["schema"], data["output"], data["changed"]) == ("qdq-rewriter/run", str(target), True)
    result = rewriter.run(EXAMPLE, rules.weight_bias, tmp_path / "p.onnx")
    assert [r["node"] for r in data["report"]["rewrites"]] == [r.node for r in result.report.rewrites]
    assert data["report"]["statistics"]["rules"]["conv"]["rewrites"] == 5
    shown = invoke("apply", EXAMPLE, target, "--rules", "weight_bias", "--statistics").stdout
    assert "search for all rules" in shown


def test_a_page(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    page = tmp_path / "page.html"
    result = invoke("apply", EXAMPLE, tmp_path / "o.onnx", "--rules", "weight_bias", "--report", page, "-q")
    assert result.exit_code == cli.CHANGED, result.stderr
    assert "conv0" in page.read_text(encoding="utf-8")
    missing = invoke(
        "apply", EXAMPLE, tmp_path / "p.onnx", "--rules", "weight_bias", "--report", tmp_path / "no" / "p.html"
    )
    assert missing.exit_code == cli.USAGE
    assert not (tmp_path / "p.onnx").exists()


def test_a_log_gets_lines_of_progress(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.commands.console.EVERY", 0.0)
    arguments = ("apply", chain, tmp_path / "o.onnx", "--rules", f"{SMALL}:everything")
    assert invoke(*arguments).stderr.splitlines() == [
        "1 rewrites done, 1 places wait",
        "2 rewrites done, 0 places wait",
    ]
    assert invoke(*arguments, "--quiet").stderr == ""


# -- questions -----------------------------------------------------------------------------------------


def test_explain() -> None:
    result = invoke("explain", EXAMPLE, "--rules", "weight_bias", "--node", "conv1", "--most", "2")
    assert result.exit_code == 0
    assert result.stdout.startswith("conv (")
    assert result.stdout.rstrip().endswith("other rules do not fit there)")
    assert (
        data_of("explain", EXAMPLE, "--rules", "weight_bias", "--node", "conv1")["schema"] == "qdq-rewriter/explanation"
    )
    assert invoke("explain", EXAMPLE, "--rules", "weight_bias", "--node", "relu1").exit_code == cli.NOTHING
    wrong = invoke("explain", EXAMPLE, "--rules", "weight_bias", "--node", "con1")
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (cli.FAILED, 1)
    assert "did you mean 'conv1'" in wrong.stderr


def test_find() -> None:
    data = data_of("find", EXAMPLE, "--rules", "weight_bias")
    assert [m["root"] for m in data["matches"]] == [m.root.name for m in rewriter.find(EXAMPLE, rules.weight_bias)]
    assert invoke("find", EXAMPLE, "--rules", f"{SMALL}:negs").exit_code == cli.NOTHING


def test_provenance(tmp_path: Path) -> None:
    model = onnx.load(EXAMPLE)
    model.ir_version = 10
    path, target = as_file(model, tmp_path), tmp_path / "o.onnx"
    assert invoke("provenance", path).exit_code == cli.NOTHING
    rewriter.apply(path, rules.weight_bias, target)
    nodes = data_of("provenance", target)["nodes"]
    assert len(nodes) == 12
    assert "image.dq, conv0, relu0, relu0.q" in invoke("provenance", target).stdout


def test_one_rule_in_full() -> None:
    result = invoke("rules", "weight_bias/gemm")
    assert result.exit_code == 0
    assert "before:\ndef gemm_float_weight(" in result.stdout
    assert "after:\ndef gemm_quantized(" in result.stdout
    whole = invoke("rules", "weight_bias").stdout
    assert "backend:" in whole
    assert whole.count("before:") > 10
    assert invoke("rules", "weight_bias/gem").exit_code == cli.USAGE
    assert invoke("rules", f"{SMALL}:relus").stdout.count("def ") == 2


def test_a_page_beside_in_place(tmp_path: Path) -> None:
    """The floats of before are still there when the file is not."""
    pytest.importorskip("jinja2")
    pages = []
    for number, words in enumerate((["a.onnx", "o.onnx"], ["a.onnx", "--in-place"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.onnx").write_bytes(EXAMPLE.read_bytes())
        paths = [folder / word if word.endswith("onnx") else word for word in words]
        result = invoke("apply", *paths, "--rules", "weight_bias", "--report", folder / "page.html", "-q")
        assert result.exit_code == cli.CHANGED, result.stderr
        pages.append((folder / "page.html").read_text(encoding="utf-8").replace("o.onnx", "a.onnx"))
    assert pages[0] == pages[1]


@pytest.mark.parametrize("page", ["digits.onnx", "out.onnx", "folder", "no/page.html"])
def test_a_page_never_takes_the_place_of_a_model(page: str, tmp_path: Path) -> None:
    source = tmp_path / "digits.onnx"
    source.write_bytes(EXAMPLE.read_bytes())
    (tmp_path / "folder").mkdir()
    result = invoke("apply", source, tmp_path / "out.onnx", "--rules", "weight_bias", "--report", tmp_path / page)
    assert (result.exit_code, result.stderr.count("\n")) == (cli.USAGE, 1)
    assert source.read_bytes() == EXAMPLE.read_bytes()
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rules", f"{SMALL}:relus", "--dry-run", "--statistics"), "--dry-run writes and measures nothing"),
        (("--rules", f"{SMALL}:relus", "--without", "*"), "no rule is left"),
        (("--rules", f"{SMALL}:relus", "--backend", "qnn"), "leave out --rules"),
        (("--rules", ":x"), "module:attribute"),
    ],
)
def test_wrong_words(words: tuple[str, ...], told: str, chain: Path) -> None:
    result = invoke("apply", chain, *words)
    assert (result.exit_code, result.stdout) == (cli.USAGE, "")
    assert told in result.stderr
    assert [p.name for p in chain.parent.iterdir()] == [chain.name]


RULES_FILE = """\
from onnxscript import opset18 as op, script
import rewriter
from beside import Tensor

@script(default_opset=op)
def before(x: Tensor) -> Tensor:
    return op.Relu(x)

@script(default_opset=op)
def after(x: Tensor) -> Tensor:
    return op.Tanh(x)

tanhs = rewriter.rewrite(before, after)
"""


def test_a_file_may_be_called_as_a_module_is_and_import_what_lies_beside(tmp_path: Path, chain: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES_FILE)
    (tmp_path / "beside.py").write_text("from rewriter.pattern import Tensor\n")
    data = data_of("plan", chain, "--rules", f"{tmp_path / 'rules.py'}:tanhs")
    assert [r["rule"] for r in data["report"]["rewrites"]] == ["after", "after"]
    forgotten = invoke("plan", chain, "--rules", tmp_path / "rules.py")
    assert forgotten.exit_code == cli.USAGE
    assert "rules.py:NAME" in forgotten.stderr
    assert "tanhs" in forgotten.stderr


def test_rule_sets_of_installed_packages(monkeypatch: pytest.MonkeyPatch, chain: Path) -> None:
    entry = EntryPoint("my_relus", f"{SMALL}:relus", "rewriter.rules")
    monkeypatch.setattr("rewriter.rule_names.entry_points", lambda group: [entry] if group == "rewriter.rules" else [])
    assert [r["rule"] for r in data_of("plan", chain, "--rules", "my_relus")["report"]["rewrites"]] == ["relus"]
    assert "my_relus" in invoke("rules").stdout


def test_a_page_without_its_libraries_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rewriter.report.html.find_spec", lambda name: None)
    result = invoke("apply", EXAMPLE, tmp_path / "o.onnx", "--rules", "weight_bias", "--report", tmp_path / "p.html")
    assert result.exit_code == cli.FAILED
    assert "qdq-rewriter[report]" in result.stderr
    assert not list(tmp_path.iterdir())
