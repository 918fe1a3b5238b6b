"""`rules.legal`: a verdict for each unit of a model, and nothing changed.

That the verdicts for `onnxruntime` are right is asked of sessions in `test_units_that_fuse.py`; for the backends that
could not be run, `test_backends.py` judges the form of what is completed for them.
"""

import json

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import rewriter
import rules
from rewriter import cli
from tests.qdq_models import build
from tests.qdq_unit import Unit
from tests.real_models import Row, table

every_file = pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
EXAMPLE = "examples/digits_qdq.onnx"


@every_file
def test_verdicts_are_those_on_the_model_as_it_would_be_completed(row: Row) -> None:
    model = onnx.load(row.path)
    verdicts = rules.legal(model, "onnxruntime-x86")
    assert verdicts == rules.legal(rewriter.apply(model, rules.for_backend("onnxruntime-x86")), "onnxruntime-x86")
    assert len(verdicts) >= row.fused
    assert all(one.reason for one in verdicts if not one.integer)
    assert {one.op for one in verdicts if not one.integer} <= {"ConvTranspose"}


def test_complete_units_are_judged_too() -> None:
    model = rewriter.apply(build(Unit(), np.random.default_rng(0)), rules.weight_bias)
    assert [one.integer for one in rules.legal(model, "onnxruntime")] == [True]
    (verdict,) = rules.legal(model, "tensorrt")
    assert not verdict.integer
    assert "tensorrt takes int8 activations, x is uint8" in verdict.reason


def test_nothing_is_changed() -> None:
    model = build(Unit(), np.random.default_rng(0))
    before = model.SerializeToString()
    rules.legal(model, "qnn")
    assert model.SerializeToString() == before


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="unknown backend 'npu'"):
        rules.legal(build(Unit(), np.random.default_rng(0)), "npu")


def test_the_command_line() -> None:
    cli.add_commands()
    runner = CliRunner()
    result = runner.invoke(cli.app, ["legal", EXAMPLE, "--backend", "onnxruntime"])
    assert result.exit_code == 0
    assert "6 of 6 units run as integer kernels on onnxruntime" in result.stdout
    result = runner.invoke(cli.app, ["legal", EXAMPLE, "--backend", "tensorrt"])
    assert result.exit_code == 3
    assert "0 of 6 units" in result.stdout
    data = json.loads(runner.invoke(cli.app, ["legal", EXAMPLE, "--backend", "tensorrt", "--json"]).stdout)
    assert [unit["node"] for unit in data["units"]] == [one.node for one in rules.legal(EXAMPLE, "tensorrt")]
    for arguments, status in ((["legal", "no.onnx"], 1), (["legal", EXAMPLE, "--backend", "npu"], 2)):
        result = runner.invoke(cli.app, arguments)
        assert result.exit_code == status
        assert len(result.stderr.splitlines()) == 1
