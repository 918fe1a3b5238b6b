"""One rewrite, checked from all sides: what every test of a rule asks of its result.

The model that was passed is left as it was, the result passes onnx's full check and holds the same inputs
and outputs, applying again changes nothing, a second run gives the same bytes, and both models compute the
same on random inputs. What the nodes are then, each test says itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import parser

import rewriter
from rewriter import Result, RuleSet
from tests import sessions
from tests.sessions import Feeds


def parse(text: str, opset: int = 17, ir_version: int = 9) -> onnx.ModelProto:
    """A model from the graph's text, or from a whole model's if it begins with `<`."""
    text = text.strip()
    if not text.startswith("<"):
        imports = f'"": {opset}, "com.microsoft": 1, "custom": 1'
        text = f"<ir_version: {ir_version}, opset_import: [{imports}]>\n{text}"
    model = parser.parse_model(text)
    used = {node.domain for node in sessions.nodes(model.graph)} | {f.domain for f in model.functions} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def show(model: onnx.ModelProto) -> list[str]:
    """The nodes of the main graph, one a line: `y = Relu(x)`."""
    return [f"{', '.join(n.output)} = {n.op_type}({', '.join(n.input)})" for n in model.graph.node]


def ops(model: onnx.ModelProto) -> list[str]:
    """The op types of the main graph, in order."""
    return [n.op_type for n in model.graph.node]


def run(model: onnx.ModelProto, rules: RuleSet) -> Result[onnx.ModelProto]:
    """Rewrite, and check what does not need to run the models."""
    before = model.SerializeToString()
    result = rewriter.run(model, rules)
    assert model.SerializeToString() == before, "the model that was passed has changed"
    onnx.checker.check_model(result.model, full_check=True)
    assert result.report.sweeps <= len(rules.stages()), "the confirming sweep found what the worklist had missed"
    assert list(result.model.graph.input) == list(model.graph.input)
    assert list(result.model.graph.output) == list(model.graph.output)
    again = rewriter.run(result.model, rules)
    assert not again.changed, f"applied again, it does more: {again.report.rewrites}"
    assert again.model.SerializeToString() == result.model.SerializeToString()
    assert rewriter.run(model, rules).model.SerializeToString() == result.model.SerializeToString()
    return result


def check(
    model: onnx.ModelProto,
    rules: RuleSet,
    *,
    rtol: float = 0,
    atol: float = 0,
    feeds: Sequence[Feeds] | None = None,
) -> Result[onnx.ModelProto]:
    """The same, and compare what both models compute (to the bit, without tolerances)."""
    onnx.checker.check_model(model, full_check=True)
    result = run(model, rules)
    if feeds is None:
        feeds = [sessions.feeds(model, np.random.default_rng(seed)) for seed in range(2)]
    for one in feeds:
        compare(sessions.run(model, one), sessions.run(result.model, one), rtol, atol)
    return result


def compare(before: Sequence[np.ndarray], after: Sequence[np.ndarray], rtol: float = 0, atol: float = 0) -> None:
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if rtol or atol:
            np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(b, a)
