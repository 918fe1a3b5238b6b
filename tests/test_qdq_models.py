"""The generated models are what they say: valid, runnable, calibrated, and as many as the options promise.

Everything that is proved on generated models rests on this. Were a model invalid, or its outputs all zero,
the tests behind it would pass and prove nothing.
"""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from tests import oracle, sessions
from tests.qdq_models import build
from tests.qdq_unit import OPTIONS, Unit, draw, repair, units


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(units())
def test_every_model_is_valid_and_runs(unit: Unit) -> None:
    rng = np.random.default_rng(0)
    model = build(unit, rng)
    onnx.checker.check_model(model, full_check=True)
    for output in sessions.run(model, sessions.feeds(model, rng)):
        assert np.isfinite(output).all()


@given(units())
def test_repair_leaves_what_is_valid(unit: Unit) -> None:
    assert repair(unit) == unit


@pytest.mark.parametrize("option", OPTIONS)
def test_every_value_of_an_option_is_drawn(option: str) -> None:
    rng = np.random.default_rng(0)
    drawn = {getattr(draw(rng, change=0.5), option) for _ in range(400)}
    assert drawn >= set(OPTIONS[option])


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, second = (build(draw(rng), rng) for rng in (np.random.default_rng(5), np.random.default_rng(5)))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


@pytest.mark.parametrize("op", OPTIONS["op"])
def test_outputs_use_the_range_of_their_type(op: str) -> None:
    rng = np.random.default_rng(0)
    fixed: dict[str, Any] = {
        "place": "main",
        "y_type": "",
        "bias_form": "float",
        "redundant": True,
        "beside": "",
        "implicit_zero": False,
    }
    for _ in range(20):
        unit = draw(rng, op=op, output="quantized", **fixed)
        model = build(unit, rng)
        (y,) = sessions.run(model, sessions.feeds(model, rng))
        codes = y.astype(np.int64)  # in which a difference of two int8 has room
        if y.size >= 20:
            assert np.ptp(codes) > 256**y.dtype.itemsize / 5, unit


@pytest.mark.parametrize("weight_form", OPTIONS["weight_form"])
@pytest.mark.parametrize("source", OPTIONS["source"])
def test_weights_are_stored_as_described(weight_form: str, source: str) -> None:
    unit = repair(draw(np.random.default_rng(0), change=0, weight_form=weight_form, source=source))
    (found,) = oracle.units(build(unit, np.random.default_rng(0))).values()
    stored = source in ("initializer", "constant")
    if weight_form == "float":
        assert isinstance(found.weight, oracle.Stored if stored else oracle.Computed)
    else:
        assert isinstance(found.weight, oracle.Dequantized if stored else oracle.Computed)
