"""The figures of a unit report, judged by exact arithmetic: ratios, the worst channel, and what is the worst output.

Every expected value is a sum of fractions over the definition, and the weights are hostile ones: subnormals, ends of
the range, ties, outliers, zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qm
from rules.quantization import Scheme
from rules.quantization.channel_errors import boxes
from tests.rules.quantization.exact import fractions as exact
from tests.rules.quantization.hostile import moderate, weights

Array = NDArray[Any]
hostile = settings(max_examples=60, deadline=None, database=None)
SCHEMES = (
    Scheme(search="minmax", rounding="nearest"),
    Scheme(symmetric=False, search="minmax", rounding="nearest"),
    Scheme(weight_type="int4", search="mse", rounding="nearest"),
    Scheme(granularity="tensor", search="minmax", rounding="nearest"),
)


def outputs(shape: tuple[int, ...], op: str, groups: int = 1) -> Iterator[list[tuple[int, ...]]]:
    """The places of each output channel's weights, in the order of the channels, from the operators' definitions."""
    every = list(product(*map(range, shape)))
    if op == "Conv" or op == "Gemm, transB":
        yield from ([p for p in every if p[0] == c] for c in range(shape[0]))
    elif op == "Gemm":
        yield from ([p for p in every if p[1] == c] for c in range(shape[1]))
    elif op == "ConvTranspose":
        deep = shape[0] // groups
        for g, c in product(range(groups), range(shape[1])):
            yield [p for p in every if p[1] == c and p[0] // deep == g]
    else:  # MatMul: every matrix by itself
        leads = product(*map(range, shape[:-2]))
        yield from ([(*lead, k, n) for k in range(shape[-2])] for lead in leads for n in range(shape[-1]))


AXES = {"Conv": 0, "Gemm, transB": 0, "Gemm": 1, "ConvTranspose": 1, "MatMul": None}


def values_of(q: qm.QuantizedTensor) -> Array:
    """What ONNX DequantizeLinear gives, from its definition: (code - zero point) * scale, rounded to float32."""
    back = np.empty(q.codes.shape, np.float32)
    for place in np.ndindex(*q.codes.shape):
        at: Any = () if q.axis is None else place[q.axis]
        back[place] = np.float32(int(q.codes[place]) - int(q.zero_point[at])) * np.float32(q.scale[at])
    return back


def ratio(signal: Fraction, noise: Fraction) -> float:
    """In dB. Logarithms of whole numbers of any size are exact enough."""
    if noise == 0:
        return math.inf
    if signal == 0:
        return -math.inf
    found = signal / noise
    return 10 * (math.log10(found.numerator) - math.log10(found.denominator))


def check(w: Array, q: qm.QuantizedTensor, op: str, groups: int = 1, alpha: float = 1.0) -> None:
    found = qm.channel_errors(w, q, axis=AXES[op], groups=groups, alpha=alpha)
    back = values_of(q)
    ratios, totals = [], [Fraction(0), Fraction(0)]
    for c, places in enumerate(outputs(w.shape, op, groups)):
        before = [Fraction(alpha) * Fraction(float(w[p])) for p in places]
        errors = [v - Fraction(float(back[p])) for v, p in zip(before, places, strict=True)]
        signal, noise = sum(v * v for v in before), sum(e * e for e in errors)
        ratios.append(ratio(Fraction(signal), Fraction(noise)))
        totals = [totals[0] + signal, totals[1] + noise]
        for sums, sign in ((found.above, 1), (found.below, -1)):
            true = sum((max(sign * e, Fraction(0)) for e in errors), Fraction(0))
            assert (
                true
                <= Fraction(float(sums[c]))
                <= true * (1 + Fraction(1, 2**30)) + Fraction(float(sum(abs(v) for v in before))) / 2**45
            )
    assert found.depth == len(places)
    np.testing.assert_allclose(found.channel_snr, ratios, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(found.snr, ratio(*totals), rtol=1e-9, atol=1e-7)
    lossy = [r for r in ratios if r != math.inf]
    assert (found.worst is None) == (not lossy)
    if found.worst is not None:
        assert ratios[found.worst] <= min(lossy) + 1e-6


@hostile
@given(weights(moderate), st.sampled_from(SCHEMES), st.sampled_from([1.0, 0.3, -1.7]))
def test_rows(w: Array, scheme: Scheme, alpha: float) -> None:
    check(w, qm.quantize_unit(w, None, 1.0, axis=0, scheme=scheme, alpha=alpha).weight, "Gemm, transB", alpha=alpha)
    turned = np.ascontiguousarray(w.T)
    check(turned, qm.quantize_unit(turned, None, 1.0, axis=1, scheme=scheme, alpha=alpha).weight, "Gemm", alpha=alpha)


@pytest.mark.parametrize(
    ("op", "shape", "groups"),
    [
        ("Conv", (3, 2, 2, 3), 1),
        ("ConvTranspose", (4, 3, 2, 2), 1),
        ("ConvTranspose", (6, 2, 3), 3),
        ("MatMul", (2, 3, 4), 1),
        ("MatMul", (2, 2, 3, 2), 1),
        ("MatMul", (5, 2), 1),
    ],
)
def test_channels_of_every_op(op: str, shape: tuple[int, ...], groups: int) -> None:
    w = np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)
    w *= np.exp2(np.arange(w.size).reshape(shape) % 7)
    axis = AXES[op]
    for scheme in SCHEMES:
        q = qm.quantize_unit(w, None, 1.0, axis=axis, scheme=scheme, repeat=groups).weight
        check(w, q, op, groups)


def test_blocks() -> None:
    w = np.random.default_rng(1).normal(size=(3, 10)).astype(np.float32)
    scheme = Scheme(granularity="block", block_size=4, weight_type="int4")
    q = qm.quantize_weight(w, 0, scheme, block_axis=1)
    found = qm.channel_errors(w, q, axis=0)
    for c in range(3):
        back = [np.float32(int(q.codes[c, k])) * np.float32(q.scale[c, k // 4]) for k in range(10)]
        noise = sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(w[c], back, strict=True))
        signal = sum(Fraction(float(a)) ** 2 for a in w[c])
        assert found.channel_snr[c] == pytest.approx(ratio(Fraction(signal), Fraction(noise)), abs=1e-9)


@hostile
@given(weights(moderate), st.integers(0, 255), st.floats(2.0**-20, 2.0**10, width=32), st.booleans())
def test_the_worst_output_is_attained_and_never_passed(w: Array, zero: int, scale: float, one_sign: bool) -> None:
    zero = 0 if one_sign else zero
    low, high = qm.input_range(np.float32(scale), zero, 0, 255)
    ends = [np.float32(code - zero) * np.float32(scale) for code in (0, 255)]
    assert (low, high) == (float(ends[0]), float(ends[1]))
    unit = qm.quantize_unit(w, None, 1.0, axis=0, scheme=SCHEMES[0])
    found = qm.channel_errors(w, unit.weight, axis=0)
    bound = qm.worst_output(found.above, found.below, 0.0, low, high)
    back = values_of(unit.weight)
    for c in range(len(w)):
        errors = [a - b for a, b in zip(exact(w[c]), exact(back[c]), strict=True)]
        most = sum((max(e * Fraction(low), e * Fraction(high)) for e in errors), Fraction(0))
        least = sum((min(e * Fraction(low), e * Fraction(high)) for e in errors), Fraction(0))
        true = max(most, -least)
        assert true <= Fraction(float(bound[c])) <= true * (1 + Fraction(1, 2**40))


@hostile
@given(weights(moderate), st.sampled_from(SCHEMES), st.booleans())
def test_the_bound_by_scale_holds_and_is_the_wider_one(w: Array, scheme: Scheme, balanced: bool) -> None:
    """Also where a search made the scale smaller than the weights: what is clipped has its own term."""
    moments = qm.InputMoments(1.0, 0.5) if balanced else None
    scheme = Scheme(**{**vars(scheme), "rounding": "balanced" if balanced else "nearest"})
    q = qm.quantize_unit(w, None, 1.0, axis=0, scheme=scheme, inputs=moments).weight
    steps, beyond = qm.clipping(w, q, scheme.code_range, axis=0)
    bound = qm.summed_element_bound(steps, beyond, w.shape[1], scheme.span, balanced=balanced)
    back = values_of(q)
    for c in range(len(w)):
        errors = [abs(a - b) for a, b in zip(exact(w[c]), exact(back[c]), strict=True)]
        assert sum(errors, Fraction(0)) <= Fraction(float(bound[c]))
        if not beyond[c]:  # not wider than half a step (a step) for each, and rounding
            step = Fraction(float(q.scale[c if q.axis is not None else ()]))
            assert Fraction(float(bound[c])) <= len(errors) * step * (
                Fraction(2 if balanced else 1, 2) + Fraction(1, 1000)
            )


def test_balanced_rounding_may_move_every_weight_by_a_step() -> None:
    scale = np.full(2, 0.25, np.float32)
    codes = np.arange(-20, 20, dtype=np.int8).reshape(2, 20)
    w = ((codes + 0.99) * 0.25).astype(np.float32)  # each went to the second nearest code
    q = qm.QuantizedTensor(codes, scale, np.zeros(2, np.int8), 0)
    steps, _ = qm.clipping(w, q, (-127, 127), axis=0)
    errors = np.abs(w - values_of(q).astype(np.float64)).sum(axis=1)
    assert (errors <= qm.summed_element_bound(steps, 0.0, 20, 127, balanced=True)).all()
    assert (errors > qm.summed_element_bound(steps, 0.0, 20, 127)).all()


def test_what_is_clipped_has_its_own_term() -> None:
    w = np.random.default_rng(3).uniform(-1, 1, (4, 50)).astype(np.float32)
    q = qm.quantize_with_scale(w, np.full(4, 1 / 300, np.float32), 0)
    steps, beyond = qm.clipping(w, q, (-127, 127), axis=0)
    errors = np.abs(w - values_of(q).astype(np.float64)).sum(axis=1)
    largest = q.scale.astype(np.float64) * 127
    np.testing.assert_allclose(beyond, np.maximum(np.abs(w) - largest[:, None], 0).sum(axis=1), rtol=1e-12)
    assert (errors > qm.summed_element_bound(steps, 0.0, 50, 127)).all()
    assert (errors <= qm.summed_element_bound(steps, beyond, 50, 127)).all()


@hostile
@given(
    st.lists(moderate, min_size=1, max_size=4),
    st.floats(2.0**-20, 2.0**10, width=32),
    st.sampled_from([1.0, 0.5, -3.0]),
)
def test_bias_errors(values: list[float], scale: float, beta: float) -> None:
    b, x_scale = np.array(values, np.float32), np.float32(scale)
    w_scale = qm.raise_for_bias(np.ones(len(b)), np.abs(b.astype(np.float64) * beta), x_scale)
    before = qm.BiasValues.of_floats(b).times(beta)
    q = qm.quantize_bias_for(b, x_scale, w_scale, beta=beta)
    steps, most = qm.bias_errors(before, q)
    true = [abs(Fraction(beta) * v - int(c) * s) / s for v, c, s in zip(exact(b), q.codes, exact(q.scale), strict=True)]
    assert steps == pytest.approx(float(max(true)), abs=2.0**-20)
    assert steps <= 0.5 + 2.0**-20
    for v, c, s, m in zip(exact(b), q.codes, q.scale, most, strict=True):
        integer = abs(Fraction(beta) * v - int(c) * Fraction(float(s)))
        floating = abs(Fraction(beta) * v - Fraction(float(np.float32(c) * s)))
        assert max(integer, floating) <= Fraction(float(m)) <= max(integer, floating) + abs(Fraction(beta) * v) / 2**48


def test_a_bias_of_rows_has_the_largest_of_each_channel() -> None:
    b = np.array([[0.1, 0.2, 0.3], [1.13, 2.27, 3.31]], np.float32)
    q = qm.quantize_bias_for(b, np.float32(0.5), np.array([0.1, 0.2, 0.3], np.float32))
    _, most = qm.bias_errors(qm.BiasValues.of_floats(b), q)
    assert most.shape == (3,)
    back = q.codes.astype(np.float64) * q.scale.astype(np.float64)
    np.testing.assert_allclose(most, np.abs(b - back).max(axis=0), rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4), (2, 3, 4), (7, 1, 5), (1, 1, 9)])
@pytest.mark.parametrize("most", [1, 2, 5, 12, 100])
def test_boxes_cover_everything_once(shape: tuple[int, ...], most: int) -> None:
    seen = np.zeros(shape, int)
    for box in boxes(shape, most):
        seen[box] += 1
        assert seen[box].size <= most
    assert (seen == 1).all()
