"""The properties of every scheme, type and granularity over hostile weights. What they say is in
`scheme_properties`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import InputMoments, QuantizedTensor, Scheme
from tests.rules.quantization import scheme_properties as prop
from tests.rules.quantization.hostile import moderate, weights
from tests.rules.quantization.properties import exact

Array = NDArray[Any]
hostile = settings(max_examples=150, deadline=None)
axes = st.sampled_from([None, 0, 1])
FORMS = [(t, s) for t in ("int8", "uint8", "int4", "uint4", "int16") for s in (True, False)]


def quantize(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    if scheme.granularity == "block":
        return qu.quantize_weight(w, axis, scheme, block_axis=1, moments=moments)
    return qu.quantize_weight(w, axis, scheme, moments=moments)


@st.composite
def moments(draw: st.DrawFn) -> InputMoments:
    mean, deviation = draw(st.sampled_from([(0.0, 1.0), (1.0, 1.0), (3.0, 1.0), (-2.0, 0.5), (1.0, 0.0)]))
    return InputMoments(mean, deviation, draw(st.sampled_from([0.0, 0.5, 1.0])))


@st.composite
def schemes(draw: st.DrawFn) -> Scheme:
    kind, symmetric = draw(st.sampled_from(FORMS))
    block = draw(st.booleans())
    return Scheme(
        weight_type=kind,
        symmetric=symmetric,
        granularity="block" if block else draw(st.sampled_from(["tensor", "channel"])),
        block_size=draw(st.integers(2, 5)) if block else 0,
        reduce_range=kind.endswith("int8") and draw(st.booleans()),
        search=draw(st.sampled_from(["minmax", "grid", "auto"])),
        rounding=draw(st.sampled_from(["nearest", "balanced"])),
        scale_type=draw(st.sampled_from(["float32", "float32", "float16", "bfloat16"])),
    )


@hostile
@given(weights(moderate), axes, schemes(), moments() | st.none())
def test_elements(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> None:
    if scheme.scale_type == "float16" and np.abs(w).max() > 32000:  # float16 ends at 65504, and so may a range
        return
    prop.elements_are_near(quantize, w, axis, scheme, moments)


@hostile
@given(weights(), axes, st.sampled_from([Scheme(), Scheme(rounding="nearest"), Scheme(symmetric=False)]))
def test_elements_at_the_ends_of_float32(w: Array, axis: int | None, scheme: Scheme) -> None:
    prop.elements_are_near(quantize, w, axis, scheme, InputMoments(1, 1))


@hostile
@given(weights(moderate), axes)
def test_powers_of_two(w: Array, axis: int | None) -> None:
    scheme = Scheme(power_of_two=True, search="minmax")
    prop.elements_are_near(quantize, w, axis, scheme, None)
    q = quantize(w, axis, scheme, None)
    assert np.all(np.frexp(q.scale)[0] == 0.5)


@hostile
@given(weights(moderate), st.integers(1, 3), moments())
def test_balanced(w: Array, width: int, moments: InputMoments) -> None:
    w = np.repeat(w[:, :, None], width, axis=2) * np.linspace(1, 0.3, width, dtype=np.float32)
    scale = qu.symmetric_scale(np.abs(w).max(axis=(1, 2)))
    prop.balanced_is_no_worse(qu.balance, w, scale, moments)


@pytest.mark.parametrize("shape", [(8, 3, 9), (5, 700, 1), (3, 2000, 1), (40, 1, 25), (4, 64, 3)])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 10.0])
def test_balanced_on_many_elements(shape: tuple[int, ...], ratio: float) -> None:
    rng = np.random.default_rng(3)
    w: Array = rng.normal(size=shape).astype(np.float32)
    scale = qu.symmetric_scale(np.abs(w).max(axis=(1, 2)))
    prop.balanced_is_no_worse(qu.balance, w, scale, InputMoments(ratio, 1.0, 0.5))


@pytest.mark.parametrize("shape", [(8, 30, 9), (5, 700, 1), (6, 1, 49)])
def test_sums(shape: tuple[int, ...]) -> None:
    position: Array = np.random.default_rng(4).uniform(-100, 100, size=shape).astype(np.float32)
    prop.sums_come_near(qu.balance, position, InputMoments(100.0, 1.0))


def test_a_mean_of_zero_leaves_nearest() -> None:
    position: Array = np.random.default_rng(5).uniform(-100, 100, size=(4, 50, 1)).astype(np.float32)
    codes = np.rint(position)
    qu.balance(position, codes, InputMoments(0.0, 1.0))
    np.testing.assert_array_equal(codes, np.rint(position))


def objectives(w: Array, q: QuantizedTensor, moments: InputMoments) -> list[Fraction]:
    per = np.broadcast_to(q.scale, len(w)).astype(np.float64)
    codes = np.array(prop.steps(q)).reshape(w.shape)
    return [
        prop.objective(exact(w[row]), codes[row].tolist(), Fraction(float(per[row])), moments) for row in range(len(w))
    ]


@hostile
@given(weights(moderate), moments())
def test_objective_against_onnxruntime_per_channel(w: Array, moments: InputMoments) -> None:
    """The form that we give too, int8 symmetric per channel, at the same scale: never worse, whatever the weights."""
    scheme = Scheme(search="minmax")
    ours = objectives(w, quantize(w, 0, scheme, moments), moments)
    theirs = objectives(w, quantize(w, 0, Scheme(search="minmax", rounding="nearest"), None), moments)
    assert all(mine <= other for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("spread", [0, 3])
def test_objective_against_every_scheme_of_onnxruntime(seed: int, spread: int) -> None:
    """Forms that we do not give can be lucky in one channel, since they have other scales; over the channels never."""
    rng = np.random.default_rng(seed)
    w = (rng.normal(size=(6, 300)) * np.exp2(rng.uniform(-spread, spread, size=(6, 1)))).astype(np.float32)
    moments = InputMoments.of_range(0.1, 0, 0, 255)
    ours = sum(objectives(w, quantize(w, 0, Scheme(), moments), moments))
    for q in (qu.ort_weight(w), qu.quantize_symmetric(w, 0), qu.quantize_symmetric(w, None)):
        assert ours <= sum(objectives(w, q, moments))


@hostile
@given(weights(moderate), axes, st.sampled_from(FORMS), st.booleans())
def test_search(w: Array, axis: int | None, form: tuple[str, bool], power: bool) -> None:
    kind, symmetric = form
    made = [
        Scheme(
            weight_type=kind, symmetric=symmetric, search=search, rounding="nearest", power_of_two=power,
            granularity="tensor" if axis is None else "channel",
        )
        for search in ("mse", "minmax")
    ]  # fmt: skip
    prop.search_is_no_worse(quantize, w, axis, *made)


qat_codes = st.integers(9, 60).flatmap(lambda n: st.lists(st.integers(-127, 127), min_size=n, max_size=n))


@hostile
@given(qat_codes, st.floats(2.0**-40, 2.0**10, width=32))
def test_grid(codes: list[int], scale: float) -> None:
    assume(any(codes))
    prop.grid_is_found(qu.grid_scales, np.array([codes], np.int64), np.float32(scale), 127, None)


@hostile
@given(qat_codes, st.integers(-128, 127), st.floats(2.0**-40, 2.0**10, width=32))
def test_grid_with_an_offset(codes: list[int], zero: int, scale: float) -> None:
    steps = np.array([codes], np.int64) - zero
    assume(steps.any() and max(steps.max(), 0) - min(steps.min(), 0) <= 255)
    prop.grid_is_found(qu.grid_scales, steps, np.float32(scale), 255, 255)


@pytest.mark.parametrize("size", [9, 12, 27, 100, 1000])
@pytest.mark.parametrize(("reach", "span"), [(127, None), (255, 255)])
def test_no_grid_in_random_weights(size: int, reach: int, span: int | None) -> None:
    rng = np.random.default_rng(size)
    for draw in (rng.normal, rng.uniform, rng.laplace):
        prop.no_grid_is_seen(qu.grid_scales, draw(size=(3000, size)).astype(np.float32), reach, span)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_qat_weights_are_recovered(axis: int | None, kind: str, symmetric: bool) -> None:
    """10,000 weights would take long here: 300 of them, of which every one comes back bit for bit, balanced or not."""
    rng = np.random.default_rng(7)
    scheme = Scheme(weight_type=kind, symmetric=symmetric, granularity="tensor" if axis is None else "channel")
    for _ in range(300):
        shape = (int(rng.integers(1, 6)), int(rng.integers(9, 40)))
        low = -127 if symmetric else int(rng.integers(-255, 1))
        codes = rng.integers(low, 128 if symmetric else low + 256, size=shape)
        scale = rng.lognormal(-4, 2, size=() if axis is None else (shape[0], 1) if axis == 0 else (1, shape[1]))
        w = codes.astype(np.float32) * scale.astype(np.float32)
        q = quantize(w, axis, scheme, InputMoments(1.0, 1.0))
        np.testing.assert_array_equal(qu.dequantize(q), w)


@hostile
@given(weights(moderate), axes, moments() | st.none())
def test_signs(w: Array, axis: int | None, moments: InputMoments | None) -> None:
    prop.signs_differ_by_the_middle(quantize, w, axis, moments)


@hostile
@given(weights(moderate), st.sampled_from([None, 0]), st.sampled_from(["int8", "uint8"]), st.booleans())
def test_twice_is_once(w: Array, axis: int | None, kind: str, symmetric: bool) -> None:
    prop.codes_come_back(quantize, w, axis, Scheme(weight_type=kind, symmetric=symmetric))


@hostile
@given(weights(moderate), axes, st.sampled_from(["int8", "uint8"]), st.booleans())
def test_reduced_range(w: Array, axis: int | None, kind: str, symmetric: bool) -> None:
    scheme = Scheme(weight_type=kind, symmetric=symmetric, reduce_range=True, rounding="nearest")
    if kind == "int8" or symmetric:
        prop.pairs_do_not_saturate(quantize, w, axis, scheme)
    q = quantize(w, axis, scheme, None)
    if kind == "int8":
        assert qu.pair_sums_fit_int16(q.codes)


def test_64_is_the_largest_code_whose_pairs_fit() -> None:
    assert qu.pair_sums_fit_int16(np.array([-64, 64], np.int8))
    assert not qu.pair_sums_fit_int16(np.array([65, 0], np.int8))
    assert not qu.pair_sums_fit_int16(np.array([-128], np.int8))


@hostile
@given(weights(moderate))
def test_auto_takes_the_least_error_of_those_allowed(w: Array) -> None:
    w = w + np.abs(w).max(initial=0)  # skewed
    q = qu.quantize_weight(w, 0, Scheme(), allowed=(Scheme(symmetric=False),))
    fixed = qu.quantize_weight(w, 0, Scheme(rounding="nearest"))
    error = [
        sum((v - s * c) ** 2 for v, c, s in zip(exact(w), prop.steps(t), prop.scales(t), strict=True))
        for t in (q, fixed)
    ]
    assert error[0] <= error[1] * (1 + Fraction(1, 2**20))
