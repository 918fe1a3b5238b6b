"""The command line: what it prints, what it writes, and the exit status that scripts read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner, Result

import rewriter
import rules
from rewriter import cli
from tests.rewriter.test_bad_input import unit

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_qdq.onnx"
SMALL = "tests.rewriter.small_rules"

MIXED = """<ir_version: 8, opset_import: ["" : 17]>
mixed (float[2] x) => (float[2] y, float[2] z) <float[1] two = {2}> {
    [a] r = Relu(x)
    [b] s = Relu(r)
    ["block[0]/scale"] y = Mul(s, two)
    [c] z = LeakyRelu(s)
}"""

MY_RULES = """
import dataclasses
from onnxscript import script, opset17 as op
from rewriter import Decline, RuleSet, rule
from rewriter.pattern import P, Tensor

@script(default_opset=op)
def before(x: Tensor) -> Tensor:
    y = op.Relu(x)
    return y

@script(default_opset=op)
def after(x: Tensor, slope: float) -> Tensor:
    y = op.LeakyRelu(x, alpha=slope)
    return y

@dataclasses.dataclass(frozen=True)
class Mine(RuleSet):
    \"\"\"Relu becomes leaky.\"\"\"
    slope: float = 0.5
    steps: int = 1
    on: bool = True
    names: tuple[str, ...] = ()

    @rule(before, after)
    def leak(self, m):
        if not self.on:
            raise Decline("it is off")
        m.note(slope=self.slope, names=self.names)
        return {"slope": self.slope}

mine = Mine()
number = 3
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "in.onnx"
    onnx.save(parser.parse_model(MIXED), path)
    return path


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "my_rules.py"
    path.write_text(MY_RULES)
    return str(path)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    words = [sys.executable, "-m", "rewriter", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, cwd=root, check=False, **options)


# -- what it does ----------------------------------------------------------------------------------------


def test_the_main_job_on_the_example(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    done = command("apply", EXAMPLE, target, "--rules", "weight_bias")
    assert (done.returncode, done.stderr) == (0, "")
    assert target.read_bytes() == rewriter.apply(onnx.load(EXAMPLE), rules.weight_bias).SerializeToString()
    lines = done.stdout.splitlines()
    assert "  conv  5" in lines
    assert any("conv0.weight" in line and "conv" in line for line in lines)
    assert lines[-1] == f"{target}: 6 rewrites"
    again = command("apply", target, tmp_path / "again.onnx", "--rules", "weight_bias")
    assert (again.returncode, again.stderr) == (3, "")
    assert (tmp_path / "again.onnx").read_bytes() == target.read_bytes()


def test_what_is_printed(model: Path, tmp_path: Path) -> None:
    result = invoke("apply", model, tmp_path / "out.onnx", "--rules", f"{SMALL}:everything")
    assert result.exit_code == cli.CHANGED
    assert result.stdout.splitlines() == [
        "Applied",
        "  rule        count",
        "  relus       1",
        "  leak        1",
        "  mul_to_div  1",
        "Changed",
        "  node            rule        what",
        "  b               relus       1 changed, 1 removed",
        "  block[0]/scale  mul_to_div  factor=2",
        "  c               leak        1 changed",
        f"{tmp_path / 'out.onnx'}: 3 rewrites",
    ]


def test_the_default_output_lies_beside_the_input(model: Path) -> None:
    result = invoke("apply", model, "--rules", f"{SMALL}:relus", "--quiet")
    assert (result.exit_code, result.output) == (cli.CHANGED, "")
    assert len(onnx.load(model.with_name("in.rewritten.onnx")).graph.node) == 3


def test_declines_are_told_once_per_reason(model: Path, mine: str, tmp_path: Path) -> None:
    result = invoke("apply", model, tmp_path / "o.onnx", "--rules", f"{mine}:mine", "--set", "on=false")
    assert result.exit_code == cli.NOTHING
    assert result.stdout.splitlines() == [
        "Left alone",
        "  it is off (2)",
        "    a, b",
        f"{model}: nothing to do, 2 left alone; {tmp_path / 'o.onnx'} is a copy",
    ]


def test_rules_that_the_opset_excludes_are_told(tmp_path: Path) -> None:
    old = unit()
    old.opset_import[0].version = 9
    path = tmp_path / "in.onnx"
    path.write_bytes(old.SerializeToString())
    result = invoke("apply", path, "--rules", "weight_bias")
    assert result.exit_code == cli.NOTHING
    assert "Not applicable to this model" in result.stdout
    assert "opset 10 or later, the model has 9" in result.stdout


def test_rules_given_twice_run_together(model: Path, mine: str, tmp_path: Path) -> None:
    result = invoke("apply", model, tmp_path / "o.onnx", "--rules", f"{SMALL}:leak", "--rules", f"{mine}:mine")
    assert result.exit_code == cli.CHANGED
    assert "  leak  3" in result.stdout.splitlines()


def test_shipped_rules_are_listed() -> None:
    result = invoke("rules")
    assert result.exit_code == 0
    assert "weight_bias  DQ -> Conv" in result.stdout
    assert "    --set backend=generic" in result.stdout
    assert "    conv: " in result.stdout


# -- rules and options by name ---------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["mine", "Mine"])
def test_rules_of_a_file(attribute: str, model: Path, mine: str, tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    options = ("--set", "slope=0.25", "--set", "names=a, b", "--set", "steps=2")
    result = invoke("apply", model, target, "--rules", f"{mine}:{attribute}", *options)
    assert result.exit_code == cli.CHANGED
    assert "slope=0.25, names=[a, b]" in result.stdout
    assert onnx.load(target).graph.node[0].attribute[0].f == 0.25


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--rules weight_bias"),
        (("--rules", "weight_bais"), "did you mean 'weight_bias'"),
        (("--rules", "nothing"), "weight_bias"),
        (("--rules", "no_such_module:x"), "cannot import no_such_module: ModuleNotFoundError"),
        (("--rules", "no_such.py:x"), "no file no_such.py"),
        (("--rules", f"{SMALL}:relu"), "did you mean 'relus'"),
        (("--rules", "MINE:number"), "has no rule set 'number'"),
        (("--rules", "weight_bias", "--set", "backend"), "key=value"),
        (("--rules", "weight_bias", "--set", "speed=x"), "its options are backend,"),
        (("--rules", "weight_bias", "--set", "backends=x"), "did you mean 'backend'"),
        (("--rules", "weight_bias", "--set", "backend=abacus"), "unknown backend 'abacus'"),
        (("--rules", f"{SMALL}:relus", "--set", "a=b"), "no option 'a'"),
        (("--rules", "MINE:mine", "--set", "on=perhaps"), "expected true or false, got 'perhaps'"),
        (("--rules", "MINE:mine", "--set", "steps=1.5"), "expected a number (int), got '1.5'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line(arguments: tuple[str, ...], words: str, model: Path, mine: str) -> None:
    result = invoke("apply", model, *(a.replace("MINE", mine) for a in arguments))
    assert result.exit_code == cli.USAGE
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert not model.with_name("in.rewritten.onnx").exists()


def test_rules_that_cannot_be_loaded(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(MY_RULES.replace("LeakyRelu", "LeakyReluu"))
    result = invoke("apply", model, "--rules", f"{broken}:mine")
    assert result.exit_code == cli.USAGE
    assert result.stderr.startswith(f"error: cannot load {broken}: ")
    assert "LeakyReluu" in result.stderr
    assert result.stderr.count("\n") == 1


# -- what goes wrong -------------------------------------------------------------------------------------


def test_errors_are_one_line_on_stderr(model: Path, tmp_path: Path) -> None:
    for source, target, word in (
        (tmp_path / "absent.onnx", tmp_path / "o.onnx", "no such file"),
        (model, model, "overwrite the input"),
        (model, tmp_path / "no" / "o.onnx", "no folder"),
    ):
        done = command("apply", source, target, "--rules", "weight_bias")
        assert done.returncode == cli.FAILED
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert word in done.stderr


def test_an_interrupt_is_130(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rewriter.commands.applying.run", interrupted)
    result = invoke("apply", model, "--rules", "weight_bias")
    assert result.exit_code == cli.INTERRUPTED
    assert result.stderr == "error: interrupted; nothing was written\n"


def test_without_the_extra_it_says_how_to_get_it() -> None:
    code = "import sys; sys.modules['typer'] = None; import rewriter.cli"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=EXAMPLE.parents[1], check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: the command line needs typer: python -m pip install 'qdq-rewriter[cli]'\n"
