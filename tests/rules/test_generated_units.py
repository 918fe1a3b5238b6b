"""The main job on generated models: every form of unit, at every opset, and everywhere that a unit can be.

The real files hold only bare DQ -> op -> Q units at opsets 13 to 20. Here the options of `qdq_unit.Unit`
are drawn at random, and each result is judged by ONNX Runtime: it gives nearly the outputs that the float
model gives. Of which units it makes integer kernels is asked in `test_units_that_fuse.py`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

import rewriter
import rules
from tests import oracle, sessions
from tests.ort_optimizer import optimize_with_only
from tests.qdq_models import build
from tests.qdq_unit import OPSETS, OPTIONS, Op, Unit, draw, repair, units

SINGLE_OPTIONS = [
    (option, value) for option, values in OPTIONS.items() if option not in ("op", "opset") for value in values[1:]
]


def described(model: onnx.ModelProto, *ops: str) -> list[oracle.Described]:
    """Nodes of these types, by their outputs' names, with constants as ONNX Runtime stores them."""
    found = oracle.units(optimize_with_only(model, "ConstantFolding"), ops)
    return [found[name] for name in sorted(found)]


def distance(before: list[npt.NDArray[np.generic]], after: list[npt.NDArray[np.generic]]) -> float:
    """The largest difference in any output, as a part of that output's range before."""
    parts = []
    for old, new in zip(before, after, strict=True):
        a, b = old.astype(np.float64), new.astype(np.float64)
        parts.append(np.abs(a - b).max() / max(np.ptp(a), 1e-6 if old.dtype == np.float32 else 64))
    return float(max(parts))


def no_units(unit: Unit) -> set[int]:
    """Which operators are no units for any backend."""
    if unit.op == "MatMulAdd" and unit.bias_form == "input":
        return set(range(unit.count))  # a MatMul and something else
    return {unit.chain - 1} if unit.output in ("no q", "also graph output", "second consumer") else set()


def has_float(unit: Unit) -> bool:
    """Whether anything is float, so that what is not done has to be declined.

    One that is quantized throughout is mended where its bias' scale is wrong, but no word is lost where it is no unit.
    """
    return unit.weight_form == "float" or (unit.bias != "none" and unit.bias_form == "float")


def check(unit: Unit, seed: int = 0) -> None:
    """All that holds of any model with the default backend."""
    rng = np.random.default_rng(seed)
    model = build(unit, rng)
    result = rewriter.run(model, rules.weight_bias)
    onnx.checker.check_model(result.model, full_check=True)
    feeds = sessions.feeds(model, rng)
    before, after = sessions.run(model, feeds), sessions.run(result.model, feeds)
    # Rounding W and B costs well below a twentieth; a wrong scale, axis or zero point costs far more.
    assert distance(before, after) <= 0.1 * unit.chain, unit
    declined = no_units(unit)
    assert len(result.report.declined) == (len(declined) if has_float(unit) else 0)
    found = described(result.model, *oracle.OPS)
    # The Add behind a MatMul has the bias where the others have the weight.
    biases = [add.weight for add in described(result.model, "Add")] or [each.bias for each in found]
    assert len(found) == len(biases) == unit.count
    for k, (each, bias) in enumerate(zip(found, biases, strict=True)):
        if k in declined:
            continue
        check_weight(unit, each.weight)
        if unit.bias != "none" and unit.bias_form != "input":
            check_bias(bias)
    assert rewriter.apply(result.model, rules.weight_bias) == result.model


def check_weight(unit: Unit, weight: oracle.Operand) -> None:
    """It is of integers, in the form that most backends take."""
    assert isinstance(weight, oracle.Dequantized), unit
    assert isinstance(weight.scale, oracle.Stored)
    assert isinstance(weight.zero_point, oracle.Stored)
    assert weight.zero_point.shape == weight.scale.shape
    if unit.weight_form == "float":
        assert weight.codes.dtype == "int8"
        assert not weight.zero_point.array.any()
        has_axis = (unit.opset >= 13 or unit.domain != "") and not unit.batched
        shared_by_groups = unit.op == "ConvTranspose" and (unit.group > 1 or unit.depthwise)
        if has_axis and (weight.scale.array.size > 1 or not shared_by_groups):
            assert weight.scale.shape == (weight.codes.shape[unit.axis],)
            assert weight.axis in (unit.axis, None)  # None where there is one channel only


def check_bias(bias: oracle.Operand) -> None:
    assert isinstance(bias, oracle.Dequantized)
    assert isinstance(bias.scale, oracle.Stored)
    assert bias.codes.dtype == "int32"
    assert bias.zero_point is None
    assert np.abs(bias.codes.array.astype(np.int64)).max() < 2**31 - 1


@pytest.mark.parametrize("seed", range(24))
def test_random_units(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    for _ in range(50):
        check(draw(rng), seed)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(units())
def test_any_unit(unit: Unit) -> None:
    check(unit)


@pytest.mark.parametrize("op", OPTIONS["op"])
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("domain", OPTIONS["domain"], ids=["ai.onnx", "com.microsoft"])
def test_every_opset(op: Op, opset: int, domain: str) -> None:
    check(repair(Unit(op=op, opset=opset, domain=domain)))


@pytest.mark.parametrize("op", OPTIONS["op"])
@pytest.mark.parametrize(("option", "value"), SINGLE_OPTIONS)
def test_every_option_alone(op: Op, option: str, value: Any) -> None:
    change: dict[str, Any] = {"op": op, "opset": 21, option: value}
    check(repair(Unit(**change)))
