"""What a unit tells a report: counts against a count by hand, and channels against slices written out for each op."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rewriter
import rules
from rules.qdq_unit.unit_report import Measured, Weight
from rules.quantization import QuantizedTensor
from tests.rules.test_unit_report import random_units, reported

Array = npt.NDArray[np.generic]
WEIGHT: dict[str, Any] = {"alpha": 1.0, "dtype": "float32", "search": "minmax", "rounding": "nearest"}


class Held:
    def __init__(self, array: Array) -> None:
        self.array, self.nbytes = array, array.nbytes

    def numpy(self) -> Array:
        return self.array


def spoilt(shape: tuple[int, ...], where: Any, axis: int | None, groups: int = 1, scale: float = 1.0) -> Weight:
    """Whole numbers that lose nothing, but for the elements at `where`, which are 0.25 off."""
    codes = (np.arange(math.prod(shape)) % 11 - 5).reshape(shape).astype(np.int8)
    w = codes.astype(np.float32)
    w[where] += np.float32(0.25)
    count = () if axis is None else (shape[axis],)
    q = QuantizedTensor(codes, np.full(count, 1, np.float32), np.zeros(count, np.int8), axis)
    return Weight(
        "w", Held(w / np.float32(scale)), q, axis, groups, code_range=(-127, 127), **{**WEIGHT, "alpha": scale}
    )


CASES: dict[str, tuple[tuple[int, ...], Any, int | None, int, int]] = {  # shape, elements, axis, groups, channel
    "Conv": ((6, 3, 2, 2), np.s_[4], 0, 1, 4),
    "Gemm": ((5, 7), np.s_[:, 3], 1, 1, 3),
    "Gemm with transB": ((5, 7), np.s_[2], 0, 1, 2),
    "ConvTranspose": ((4, 3, 2, 2), np.s_[:, 1], 1, 1, 1),
    "ConvTranspose in groups": ((4, 3, 2, 2), np.s_[2:, 1], 1, 2, 3 + 1),
    "MatMul of a stack": ((2, 4, 3), np.s_[1, :, 2], None, 1, 3 + 2),
}


@pytest.mark.parametrize("name", CASES)
def test_the_worst_channel(name: str) -> None:
    shape, where, axis, groups, channel = CASES[name]
    weight = spoilt(shape, where, axis, groups, scale=0.5)
    unit = rules.UnitReport("n", name, "y", weight, None, None, None)
    assert unit.worst_channel is not None
    assert unit.worst_channel[0] == channel
    whole, worst = unit.histograms().values()
    w = (weight.before.numpy() * 0.5).astype(np.float64)
    for series, before, after in ((whole, w, weight.after.codes), (worst, w[where], weight.after.codes[where])):
        for key, values in (("before", before), ("after", after)):
            counts, edges = series[key]
            assert list(counts) == counted(values, edges), key
            assert sum(counts) == values.size


def counted(values: Array, edges: Array) -> list[int]:
    """How many lie in each bin, the last of which holds its upper edge."""
    bins = list(pairwise(edges))
    last = len(bins) - 1
    return [
        sum(low <= v < high or (k == last and v == high) for v in values.reshape(-1).tolist())
        for k, (low, high) in enumerate(bins)
    ]


def test_figures_of_random_units() -> None:
    """Whatever the unit, a report can be made of it."""
    for _, model in random_units(12, 5):
        result = rewriter.run(model, rules.weight_bias)
        for unit in rules.unit_reports(result.report):
            told = unit.as_dict()
            figures = list(unit.figures().values())
            worst = told["worst_channel"]
            assert figures == [told["snr"], worst and worst[1], told["bias_error"], told["bound_in_steps"]]
            assert unit.sizes() == (told["bytes_before"], told["bytes_after"])
            error = unit.error()
            assert (error is None) == (unit.weight is None)
            if error:
                assert -20 * math.log10(error) == pytest.approx(told["snr"])
        assert rewriter.html_report(result, model, drawn=0)


def test_a_unit_without_a_weight_or_a_loss() -> None:
    bare = rules.UnitReport("n", "Conv", "y", None, None, None, None)
    assert (bare.error(), bare.histograms()) == (None, {})
    exact = rules.UnitReport("n", "Conv", "y", spoilt((2, 3), np.s_[:0], 0), None, None, None)
    assert exact.error() == 0
    assert list(exact.histograms()) == ["weight w"]  # no channel is the worst
    zeros = QuantizedTensor(np.zeros((2, 2), np.int8), np.ones((), np.float32), np.zeros((), np.int8), None)
    nothing = Weight("w", Held(np.zeros((2, 2), np.float32)), zeros, None, 1, code_range=(-127, 127), **WEIGHT)
    (series,) = rules.UnitReport("n", "MatMul", "y", nothing, None, None, None).histograms().values()
    assert [sum(counts) for counts, _ in series.values()] == [4, 4]


def test_measured_units_show_that() -> None:
    _, unit = reported(random_units(1, 3)[0][1])
    assert len(unit.figures()) == 4
    assert replace(unit, measured=Measured(0.1, 33.5)).figures()["measured SNR of the output [dB]"] == 33.5
