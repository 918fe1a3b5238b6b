"""What a notebook shows of rules and matches: names and patterns, escaped, in well-formed HTML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import rewriter
import rules
from tests.rewriter.small_models import CHAIN, parse
from tests.rewriter.small_rules import constant_if, everything, relus

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_qdq.onnx"


def text_of(shown: str) -> str:
    return " ".join(ET.fromstring(f"<div>{shown.replace('<br>', '<br/>')}</div>").itertext())


def test_rule_sets_and_rules() -> None:
    shown = text_of(everything._repr_html_())
    assert all(rule.name in shown for rule in everything.rules())
    assert "Multiply by a constant -> divide by its inverse" in shown
    one = text_of(relus._repr_html_())
    assert "return op.Relu(op.Relu(x))" in one
    assert "def one_relu(x: Tensor) -> Tensor:" in one
    assert "what its callback builds" in text_of(constant_if._repr_html_())


def test_matches() -> None:
    match = next(rewriter.find(EXAMPLE, rules.weight_bias.only("gemm")))
    shown = text_of(match._repr_html_())
    assert "gemm.weight" in shown
    assert "DequantizeLinear" in shown
    model = parse(CHAIN)
    model.graph.node[0].name = "<script>alert(1)</script>"
    (found,) = rewriter.find(model, relus)
    assert "<script" not in found._repr_html_()
    assert "<script>alert(1)</script>" in text_of(found._repr_html_())
