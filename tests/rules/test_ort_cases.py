"""ONNX Runtime's own unit tests of WeightBiasQuantization, met by our rules offline.

Each graph is completed by us, and then runs in a session with full optimization *without* ONNX Runtime's
own WeightBiasQuantization, which would else mend whatever we had left undone. That the graphs and their
expected outcomes are the right ones is shown by putting the same questions to that optimizer.
"""

import numpy as np
import onnx
import onnxruntime
import pytest

import rewriter
import rules
from tests import oracle, sessions
from tests.ort_optimizer import weight_bias_quantization
from tests.ort_wbq_cases import CASES, DOMAINS, OPSETS, Case

ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
OURS_ALONE = ("WeightBiasQuantization",)

GRAPHS = [
    pytest.param(case, domain, opset, id=f"{case.name}-{domain or 'ai.onnx'}-{opset}")
    for case in CASES
    for domain in DOMAINS
    for opset in OPSETS
]


def build(case: Case, domain: str, opset: int) -> onnx.ModelProto:
    return case.build(domain, opset, np.random.default_rng(opset))


def became_integer(before: onnx.ModelProto, after: onnx.ModelProto) -> list[str]:
    """The operands of the graph's one unit that are float before and dequantized integers after."""
    (old,), (new,) = oracle.units(before).values(), oracle.units(after).values()
    operands = {"weight": new.weight, "bias": new.bias}
    return [what for what in oracle.left_float(old) if isinstance(operands[what], oracle.Dequantized)]


def kernels(case: Case, model: onnx.ModelProto, disabled: tuple[str, ...] = ()) -> dict[str, int]:
    counts = sessions.op_counts(sessions.optimized(model, ALL, disabled))
    return {op: counts[op] for op in case.kernels}


@pytest.mark.parametrize(("case", "domain", "opset"), GRAPHS)
def test_ort_itself_does_what_the_case_expects(case: Case, domain: str, opset: int) -> None:
    model = build(case, domain, opset)
    onnx.checker.check_model(model, full_check=True)
    assert became_integer(model, weight_bias_quantization(model)) == list(case.quantized)
    assert kernels(case, model) == case.kernels


@pytest.mark.parametrize(("case", "domain", "opset"), GRAPHS)
@pytest.mark.parametrize("backend", ["generic", "onnxruntime"])
def test_the_expected_outcome_is_reached(case: Case, domain: str, opset: int, backend: str) -> None:
    model = build(case, domain, opset)
    result = rewriter.run(model, rules.WeightBias(backend=backend))
    onnx.checker.check_model(result.model, full_check=True)
    declined = backend == "onnxruntime" and not case.fuses
    if declined or not case.quantized:
        assert result.model.SerializeToString() == model.SerializeToString()
        assert [bool(decline.reason) for decline in result.report.declined] == [True]
    else:
        assert became_integer(model, result.model) == list(case.quantized)
        assert not result.report.declined
    assert kernels(case, result.model, OURS_ALONE) == case.kernels


@pytest.mark.parametrize(("case", "domain", "opset"), GRAPHS)
def test_results_stay_near(case: Case, domain: str, opset: int) -> None:
    """A wrong scale, axis or zero point is far off; a right one is within a few steps of 1/50."""
    model = build(case, domain, opset)
    feeds = sessions.feeds(model, np.random.default_rng(1))
    before = sessions.run(model, feeds)
    after = sessions.run(rewriter.apply(model, rules.weight_bias), feeds)
    for old, new in zip(before, after, strict=True):
        step = 1 if np.issubdtype(old.dtype, np.integer) else 1 / 50
        assert np.abs(old.astype(np.float64) - new.astype(np.float64)).max() <= 5.01 * step


def test_the_bias_of_a_per_channel_weight_has_axis_0() -> None:
    """Its DequantizeLinear must say so, since the default is 1 and a bias has but one axis."""
    (case,) = (case for case in CASES if case.name == "ConvTransposePerChannelWeight")
    result = rewriter.apply(build(case, "", 21), rules.weight_bias)
    (bias,) = (node for node in result.graph.node if node.op_type == "DequantizeLinear" and _gives_bias(node, result))
    assert [attribute.i for attribute in bias.attribute if attribute.name == "axis"] == [0]


def _gives_bias(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    return any(len(user.input) > 2 and user.input[2] == node.output[0] for user in model.graph.node)
