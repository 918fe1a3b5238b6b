"""The report as JSON: what it holds, that it is valid JSON, and that its schema describes it and nothing else."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx

import rewriter
import rules
from rewriter import Report
from rewriter.report.plain import plain
from tests.real_models import SHARED, needs_shared
from tests.report.noted import ran
from tests.rewriter.small_models import NESTED, parse
from tests.rewriter.small_rules import everything

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "digits_qdq.onnx"


def read(report: Report) -> dict[str, Any]:
    """Read as a strict reader of JSON does, which knows no NaN, and held to the schema."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    data: dict[str, Any] = json.loads(report.to_json(), parse_constant=refuse)
    jsonschema.Draft202012Validator(Report.schema()).validate(data)
    assert data == report.as_dict()
    return data


def test_every_field() -> None:
    """By hand: of factors 2, 3 and 8 the rule declines 3."""
    _, result = ran([2, 3, 8])
    data = read(result.report)
    assert data == {
        "schema": "qdq-rewriter/report",
        "version": 1,
        "counts": {"mul_to_div": 2},
        "rewrites": [
            {
                "rule": "mul_to_div",
                "node": name,
                "added": data["rewrites"][k]["added"],
                "changed": data["rewrites"][k]["changed"],
                "removed": data["rewrites"][k]["removed"],
                "notes": {
                    "loss": {"ratio": ratio, "nothing": None, "endless": "Infinity", "bad": "NaN"},
                    "plain": [1, 2.5],
                },
            }
            for k, (name, ratio) in enumerate([("mul0", 2.0), ("mul2", 8.0)])
        ],
        "declined": [{"rule": "mul_to_div", "node": "mul1", "reason": "3 has no <inverse>"}],
        "skipped": {},
        "stop_reason": "saturated",
        "sweeps": 1,
        "statistics": None,
    }
    names = {node.name for node in result.model.graph.node}
    assert {one for rewrite in data["rewrites"] for one in rewrite["added"] + rewrite["changed"]} <= names
    assert not {one for rewrite in data["rewrites"] for one in rewrite["removed"]} & names


def test_statistics_and_limit() -> None:
    report = rewriter.run(parse(NESTED), everything, statistics=True, limit=2).report
    data = read(report)
    assert data["stop_reason"] == "limit"
    assert sum(one["rewrites"] for one in data["statistics"]["rules"].values()) == len(data["rewrites"]) == 2


def test_an_empty_report() -> None:
    assert read(Report())["rewrites"] == []


def test_plain_values() -> None:
    class Colour(Enum):
        RED = 1

    class Told:
        def figures(self) -> dict[str, float]:
            return {"a [dB]": math.inf}

    values = {
        1: np.float32(0.5), "a": np.array([[1, 2]], np.int8), "b": (np.int64(3), True, np.bool_(False)),
        "c": [-np.inf, np.float64("nan")], "d": {"z", "a"}, "e": Colour.RED, "f": np.array(np.inf),
        "g": Told(),
    }  # fmt: skip
    assert plain(values) == {
        "1": 0.5, "a": [[1, 2]], "b": [3, True, False], "c": ["-Infinity", "NaN"], "d": ["a", "z"], "e": "Colour.RED",
        "f": "Infinity", "g": {"a [dB]": "Infinity"},
    }  # fmt: skip
    assert [type(one) for one in plain(values)["b"]] == [int, bool, bool]


def test_the_schema_says_no() -> None:
    """Each required field is missed, and a wrong type in each place is found."""
    _, result = ran([2, 3])
    validator = jsonschema.Draft202012Validator(Report.schema())
    data = result.report.as_dict()
    jsonschema.Draft202012Validator.check_schema(Report.schema())
    for field in data:
        assert not validator.is_valid({key: value for key, value in data.items() if key != field}), field
    for part in ("rewrites", "declined"):
        for field in data[part][0]:
            broken = copy.deepcopy(data)
            del broken[part][0][field]
            assert not validator.is_valid(broken), (part, field)
    for change in ({"version": 2}, {"schema": "other"}, {"sweeps": -1}, {"stop_reason": "tired"}, {"counts": {"a": 0}}):
        assert not validator.is_valid({**data, **change}), change


def test_the_figures_of_units() -> None:
    result = rewriter.run(onnx.load(EXAMPLE), rules.weight_bias)
    units = [one["notes"]["unit"] for one in read(result.report)["rewrites"]]
    stored = {one.name: list(one.dims) for one in onnx.load(EXAMPLE).graph.initializer}
    assert len(units) == 6
    for unit in units:
        assert stored[unit["weight"]] == unit["shape"]
        assert unit["snr"] > unit["worst_channel"][1] > 30


@needs_shared
def test_a_real_model() -> None:
    model = onnx.load(SHARED / "actqdq" / "gtcrn_simple.onnx")
    data = read(rewriter.run(model, rules.WeightBias(backend="onnxruntime")).report)
    assert data["rewrites"]
    assert {one["reason"] for one in data["declined"]} >= {"onnxruntime has no integer kernel for ConvTranspose"}


def test_json_and_page_are_the_same_in_every_process() -> None:
    """Python's hashes of strings differ between processes."""
    model = onnx.load(EXAMPLE)
    result = rewriter.run(model, rules.weight_bias)
    page = rewriter.html_report(result, model, drawn=1)
    assert page == rewriter.html_report(result, model, drawn=1)
    code = (
        "import rewriter, rules, onnx; m = onnx.load('examples/digits_qdq.onnx')\n"
        "r = rewriter.run(m, rules.weight_bias)\n"
        "print(r.report.to_json() + rewriter.html_report(r, m, drawn=1), end='')"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=True).stdout
    assert other == result.report.to_json() + page
