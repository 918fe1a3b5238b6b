"""Confluence: a rule set that claims it gives the same bytes in whatever order its matches are rewritten."""

from __future__ import annotations

import heapq
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import rewriter
import rules
from rewriter import RuleSet
from rewriter.engine import driver
from rewriter.engine.run import Raw
from tests.qdq_models import build
from tests.qdq_unit import draw
from tests.real_models import SHARED, needs_shared
from tests.rewriter.small_models import CHAIN, parse
from tests.rewriter.small_rules import a_tanh, an_abs, any_relu
from tests.rewriter.test_in_place import bytes_of

PLAIN = rules.WeightBias(scale_search="minmax", rounding="nearest")
CLAIMED = {
    "weight_bias": rules.weight_bias,
    "nearest": PLAIN,
    "onnxruntime": rules.WeightBias(backend="onnxruntime", scale_search="minmax"),
    "as ONNX Runtime": rules.WeightBias(scheme="onnxruntime"),
    "uint8": rules.uint8_activations,
}
SCHEDULES = 5


@pytest.fixture
def shuffled(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """The driver takes whatever waits in a random order."""
    order, push = random.Random(0), driver.Driver.push

    def push_anywhere(self: driver.Driver, found: list[Raw]) -> None:
        known = {id(entry) for entry in self.heap}
        push(self, found)
        self.heap[:] = [e if id(e) in known else (order.randrange(1 << 30), *e[1:]) for e in self.heap]
        heapq.heapify(self.heap)

    monkeypatch.setattr(driver.Driver, "push", push_anywhere)
    return order


def results(model: onnx.ModelProto, rule_set: RuleSet) -> set[bytes]:
    return {bytes_of(rewriter.apply(model, rule_set)) for _ in range(SCHEDULES)}


def model_of(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    return build(draw(rng, chain=3), rng)


@pytest.mark.parametrize("name", CLAIMED)
@pytest.mark.parametrize("seed", range(20))
def test_generated_units(name: str, seed: int, monkeypatch: pytest.MonkeyPatch, shuffled: random.Random) -> None:
    model, rule_set = model_of(seed), CLAIMED[name]
    assert rule_set.confluent
    found = results(model, rule_set)
    monkeypatch.undo()
    assert found == {bytes_of(rewriter.apply(model, rule_set))}


def test_they_have_something_to_order() -> None:
    """Most of those models have several rewrites."""
    counts = [len(rewriter.run(model_of(seed), PLAIN).report.rewrites) for seed in range(20)]
    assert sum(count >= 3 for count in counts) >= 15


@needs_shared
@pytest.mark.parametrize("file", ["digits_cnn.real", "gtcrn_simple", "mnist_cntk.real", "yunet_n_320.real"])
def test_real_models(file: str, shuffled: random.Random) -> None:
    model = onnx.load(SHARED / "actqdq" / f"{file}.onnx")
    assert len(results(model, PLAIN)) == 1
    assert len(results(model, rules.uint8_activations)) == 1
    made = ir.from_proto(model)
    assert len({bytes_of(rewriter.apply(made, PLAIN)) for _ in range(2)}) == 1


def test_a_set_that_is_not_confluent_is_found_out(shuffled: random.Random) -> None:
    both = rewriter.rewrite(any_relu, a_tanh, name="one") + rewriter.rewrite(any_relu, an_abs, name="other")
    assert not both.confluent
    assert len({bytes_of(rewriter.apply(parse(CHAIN), both)) for _ in range(20)}) > 1
