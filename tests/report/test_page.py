"""The HTML page: what it must show, counted with onnx and computed with numpy; that it escapes, loads nothing, and
never leaves anything out without a word."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import rewriter
import rules
from rewriter import Declined, Report, Rewrite
from rewriter.report import html
from rewriter.report.html import MissingLibrary, html_report
from tests.report.noted import HOSTILE, ran
from tests.report.reader import Reader
from tests.rewriter.small_models import NESTED, parse
from tests.rewriter.small_rules import everything

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_qdq.onnx"


@pytest.fixture(scope="module")
def digits() -> tuple[onnx.ModelProto, rewriter.Result[Any], str]:
    model = onnx.load(EXAMPLE)
    result = rewriter.run(model, rules.weight_bias)
    return model, result, html_report(result, model, title="Digits & more")


def test_units_are_counted_as_onnx_counts_them(digits: tuple[onnx.ModelProto, rewriter.Result[Any], str]) -> None:
    model, result, page = digits
    read = Reader(page)
    stored = {one.name for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT}
    units = {node.name for node in model.graph.node if node.op_type in ("Conv", "Gemm") and node.input[1] in stored}
    head, *rows = read.rows("rewrites")
    assert {row[1] for row in rows} == units
    assert len(rows) == len(units) == 6
    assert "Digits & more" in read.all("h1")[0].text
    dequantizers = [str(sum(n.op_type == "DequantizeLinear" for n in one.graph.node)) for one in (model, result.model)]
    assert read.rows("operators")[1:] == [["DequantizeLinear", *dequantizers]]
    nodes = f"{len(model.graph.node)} → {len(result.model.graph.node)}"
    assert nodes in read.section("summary").text
    assert len(read.all("svg", **{"class": "picture"})) == 2 * len(units)
    assert "SNR of the weight [dB]" in head


def test_ratios_are_those_of_the_files(digits: tuple[onnx.ModelProto, rewriter.Result[Any], str]) -> None:
    """Weights of the one file and codes of the other, all channels and the worst, sorted by them."""
    model, result, page = digits
    before = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    after = {one.name: numpy_helper.to_array(one) for one in result.model.graph.initializer}
    back = {node.output[0]: node for node in result.model.graph.node if node.op_type == "DequantizeLinear"}
    expected = {}
    for old in model.graph.node:
        if old.op_type in ("Conv", "Gemm"):
            (new,) = [node for node in result.model.graph.node if node.name == old.name]
            codes, scale = (after[name] for name in back[new.input[1]].input[:2])
            w = before[old.input[1]].astype(np.float64).reshape(len(codes), -1)  # output channels first, in these
            q = codes.reshape(len(codes), -1) * scale.astype(np.float64).reshape(-1, 1)
            ratios = 10 * np.log10((w**2).sum(axis=1) / ((w - q) ** 2).sum(axis=1))
            expected[old.name] = 10 * np.log10((w**2).sum() / ((w - q) ** 2).sum()), ratios.min()
    rows = Reader(page).rows("rewrites")[1:]
    for row in rows:
        assert [float(cell) for cell in row[3:5]] == pytest.approx(expected[row[1]], abs=0.006)
    assert [row[1] for row in rows] == sorted(expected, key=lambda name: expected[name][0])


def test_sizes_are_those_of_the_tensors(digits: tuple[onnx.ModelProto, rewriter.Result[Any], str]) -> None:
    model, result, page = digits
    counts = [
        sum(numpy_helper.to_array(one).nbytes for one in held.graph.initializer) for held in (model, result.model)
    ]
    assert " → ".join(f"{count / 1000:.1f} kB" for count in counts) in Reader(page).section("summary").text


def test_what_stands_around_a_rewrite(digits: tuple[onnx.ModelProto, rewriter.Result[Any], str]) -> None:
    """Of a unit: before, its three nodes; after, two DequantizeLinear more, which are marked; each arrow a value."""
    model, result, _ = digits
    one = dataclasses.replace(
        result, report=Report([rewrite for rewrite in result.report.rewrites if rewrite.node == "conv1"])
    )
    read = Reader(html_report(one, model))
    for word, extra in (("before", 0), ("after", 2)):
        name = {"aria-label": f"conv1 {word}"}
        (conv,) = [node for node in (model if word == "before" else result.model).graph.node if node.name == "conv1"]
        boxes = [box for box in read.all("g", **name) if "transform" in box.attributes]
        roles = [box.attributes["class"] for box in boxes]
        graph = (model if word == "before" else result.model).graph
        producers = [node.name for node in graph.node if set(node.output) & set(conv.input)]
        readers = [node.name for node in graph.node if set(node.input) & set(conv.output)]
        headings = {title.text for title in read.all("title", **name) if title.parents[-1] in boxes}
        assert headings == {
            f"{node.op_type} {node.name}" for node in graph.node if node.name in {*producers, *readers, "conv1"}
        }
        assert roles.count("changed") == 1
        assert roles.count("added") == extra
        assert len(read.all("path", **name)) == 2 * (len(producers) + len(readers))  # a line and its tip


def test_every_kind_of_model_is_drawn(tmp_path: Path) -> None:
    """Branches, loops and functions; given as a path, in memory, and as an onnx_ir.Model; nothing is named."""
    model = parse(NESTED)
    onnx.save(model, tmp_path / "before.onnx")
    in_memory = rewriter.run(model, everything)
    pages = [
        html_report(in_memory, model, title="t"),
        html_report(rewriter.run(ir.from_proto(model), everything), ir.from_proto(model), title="t"),
        html_report(
            rewriter.run(str(tmp_path / "before.onnx"), everything, tmp_path / "after.onnx"),
            tmp_path / "before.onnx",
            title="t",
        ),
    ]
    assert len(in_memory.report.rewrites) == 9  # 4 pairs of Relu, one of Neg, 4 Mul
    assert pages[0] == pages[2]
    for page in pages:
        read = Reader(page)
        roles = [one.attributes.get("class") for one in read.all("g", **{"class": "picture"})]
        touched = [roles.count(role) for role in ("added", "changed", "removed")]
        assert touched == [6, 2 * 4, 11]  # the changed in both pictures
        assert "12 bytes → 20 bytes" in read.section("summary").text  # three floats; four halves and a two
        assert not any("nothing of it is there" in one.text for one in read.all("p"))


def test_declined_are_grouped_and_escaped() -> None:
    """A node's name is text, wherever it stands: in the table, in the chart, in pictures."""
    hostile = '"><img src=x onerror=alert(2)>$x_1^{$'
    model, result = ran([2, 3, 4, 3, 8], {0: HOSTILE, 2: hostile})
    page = html_report(result, model, title=HOSTILE)
    read = Reader(page)
    assert not read.all("script")
    assert not read.all("img")
    assert [row[1] for row in read.rows("rewrites")[1:]] == [HOSTILE, hostile, "mul4"]
    assert any(HOSTILE in one.text for one in read.all("text", id="chart"))
    assert [one.text for one in read.all("details", id="declined")] == ["3 has no <inverse>2 mul1, mul3"]
    assert [one.text for one in read.all("dd")][:3] == ["2", "Infinity", "NaN"]  # None is left out
    light = Reader(result.report._repr_html_())
    assert not light.all("script")
    assert HOSTILE in light.all("td")[0].text


def test_nothing_is_loaded(digits: tuple[onnx.ModelProto, rewriter.Result[Any], str]) -> None:
    _, _, page = digits
    read = Reader(page)
    for element in read.elements:
        assert element.tag not in ("script", "link", "img", "iframe", "object", "embed", "base")
        for name, value in element.attributes.items():
            assert name not in ("src", "srcset", "data", "poster")
            assert not name.startswith("on")
            assert not name.endswith("href") or value.startswith("#")
            for target in re.findall(r"url\((.)", value):
                assert target == "#"
    assert "@import" not in page
    links_lead_somewhere(read)
    assert len(read.all("a", id="chart")) == 12  # a dot for each figure, each leading somewhere


def links_lead_somewhere(read: Reader) -> None:
    targets = {one.attributes["id"] for one in read.elements if "id" in one.attributes}
    links = {value[1:] for one in read.elements for name, value in one.attributes.items() if name.endswith("href")}
    assert links
    assert links <= targets


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MOST_ROWS", 7)
    monkeypatch.setattr(html, "MOST_DOTS", 5)
    monkeypatch.setattr(html, "MOST_HISTOGRAMS", 2)
    model, result = ran([2 + k / 4 for k in range(30) if k != 4])
    read = Reader(html_report(result, model, drawn=3))
    links_lead_somewhere(read)
    assert len(read.rows("rewrites")) == 1 + 7
    assert len(read.all("svg", **{"class": "picture"})) == 2 * 3
    assert "24 more, not drawn" in read.section("chart").text
    assert "22 more, not listed; the report as JSON has all." in read.section("rewrites").text
    assert len(read.all("svg", **{"class": "rewrite"})) == 2 * 3 + 2
    assert "1 of these have histograms that are not drawn" in read.section("details").text
    assert "26 more, not drawn" in read.section("details").text
    least = Reader(html_report(result, model, drawn=0))
    assert "29 rewrites, not drawn." in least.all("body")[0].text


def test_a_hub_is_drawn_in_part() -> None:
    """A value that a hundred nodes read."""
    lines = "".join(f"y{k} = Abs(a)\n" for k in range(100))
    outputs = ", ".join(f"float[2] y{k}" for k in range(100))
    model = parse(
        f"""<ir_version: 10, opset_import: ["" : 20]> hub (float[2] x) => ({outputs})
        <float[1] two = {{2}}> {{ a = Mul(x, two) {lines} }}"""
    )
    result = rewriter.run(model, everything.only("mul_to_div"))
    read = Reader(html_report(result, model))
    left = [one.text for one in read.all("p") if "not drawn" in one.text]
    assert left == ["96 more nodes near by, not drawn"] * 2


def test_without_the_model_before() -> None:
    model, result = ran([2, 8])
    read = Reader(html_report(result))
    assert [one.attributes["aria-label"] for one in read.all("svg") if "aria-label" in one.attributes] == [
        "mul0 after",
        "mul1 after",
    ]
    assert "→" not in read.section("summary").text.replace("800 bytes → 200 bytes", "")
    with_model = Reader(html_report(result, model))
    assert len(with_model.all("svg", **{"class": "picture"})) == 4


def test_infinite_figures_and_empty_reports() -> None:
    model, result = ran([8])
    read = Reader(html_report(result, model))
    assert read.rows("rewrites")[1][3:6] == ["∞", "4", "0.25"]
    nothing = rewriter.run(model, everything.only("negs"))
    empty = Reader(html_report(nothing, model))
    assert "0 rewrites" in empty.all("body")[0].text
    assert not empty.all("svg")
    assert nothing.report._repr_html_().startswith("<div><p>nothing rewritten; 0 left alone</p>")


def test_the_light_table_says_what_it_leaves_out() -> None:
    rewrites = [Rewrite("r", f"n{k}", ("a",), (), (), {}) for k in range(60)]
    report = Report(rewrites, [Declined("r", f"d{k}", "why") for k in range(53)], {"s": "too <old>"})
    read = Reader(report._repr_html_())
    text = read.all("div")[0].text
    assert "r: 60; 53 left alone" in text
    assert "10 more, not listed" in text
    assert "d49, and 3 more" in text
    assert "s was skipped: too <old>" in text
    assert len(read.all("tr")) == 1 + 50 + 1 + 2


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, result = ran([2])
    monkeypatch.setattr(html, "find_spec", lambda name: None if name == "jinja2" else importlib.util.find_spec(name))
    with pytest.raises(MissingLibrary, match=r"jinja2: python -m pip install 'qdq-rewriter\[report\]'"):
        html_report(result, model)


def test_a_wrong_model_is_refused(tmp_path: Path) -> None:
    _, result = ran([2])
    with pytest.raises(TypeError, match="int"):
        html_report(result, 3)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(rewriter.ModelError, match="cannot be read for the report"):
        html_report(result, tmp_path / "bad.onnx")


def test_a_notebook_shows_the_page() -> None:
    model, result = ran([2], {0: HOSTILE})
    page = html_report(result, model)
    (frame,) = Reader(page._repr_html_()).all("iframe")
    assert frame.attributes["srcdoc"] == page
