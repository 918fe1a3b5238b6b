"""The properties of the weight's codes under every scheme, over hostile weights. What they say is in
`scheme_properties`."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import InputMoments, NotQuantizable, Scheme
from tests.rules.quantization import hostile
from tests.rules.quantization import scheme_properties as prop
from tests.rules.quantization.hostile import moderate, weights
from tests.rules.quantization.properties import same_values_as_dequantize_linear
from tests.rules.quantization.schemes import (
    BLOCK,
    COMMON,
    FORMS,
    RELU,
    SCALE_TYPES,
    every_scheme,
    moments,
    of_unit,
    of_weight,
    schemes,
)

Array = NDArray[Any]
drawn = settings(max_examples=100, deadline=None)
axes = st.sampled_from([None, 0, 1])
form = pytest.mark.parametrize(("kind", "symmetric"), FORMS)


def fits(w: Array, scheme: Scheme) -> bool:
    """Whether float16, which ends at 65504, has room for twice the range, and for the codes."""
    if scheme.scale_type == "float16" and scheme.span > 65504:
        return False
    return scheme.scale_type != "float16" or bool(np.abs(w.astype(float)).max(initial=0) < 32000)


# -- items 1 to 6 and 16: elements, scales, zeros --------------------------------------------------


@form
def test_elements_of_every_scheme(kind: str, symmetric: bool) -> None:
    shapes = itertools.cycle([(hostile.zoo(), 0), (hostile.zoo().T, 1), (hostile.zoo().reshape(-1, 3, 2, 2), 0)])
    for scheme, (w, axis) in zip(every_scheme([(kind, symmetric)]), shapes, strict=False):
        if kind == "int16" and not symmetric and scheme.scale_type == "float16":
            with pytest.raises(NotQuantizable, match="float16"):  # which has no 65535
                of_unit(w, axis, scheme, RELU)
        else:
            prop.elements_are_near(of_unit, w, axis, scheme, RELU)


@pytest.mark.parametrize("dtype", hostile.FLOATS)
def test_elements_of_every_float_type(dtype: str) -> None:
    w = hostile.zoo(hostile.FLOATS[dtype], size=7)
    for scheme in every_scheme(searches=["auto"], roundings=["balanced"], powers=[False]):
        if (scheme.weight_type, scheme.symmetric, scheme.scale_type) != ("int16", False, "float16"):
            prop.elements_are_near(of_unit, w, 0, scheme, COMMON)


@pytest.mark.parametrize("dtype", hostile.FLOATS)
def test_the_ends_of_every_float_type(dtype: str) -> None:
    """What is too large to come back is declined; everything else comes back near."""
    w = hostile.ends(hostile.FLOATS[dtype])
    declined = 0
    for scheme in every_scheme(searches=["auto"], roundings=["balanced"], powers=[False]):
        for one in (w, w[:, :1], (w.astype(np.float64) / 4).astype(w.dtype)):
            try:
                prop.elements_are_near(of_unit, one, 0, scheme, RELU)
            except NotQuantizable:
                declined += 1
    assert declined > 0


@drawn
@given(weights(moderate), axes, schemes(), moments() | st.none())
def test_elements(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> None:
    if fits(w, scheme):
        prop.elements_are_near(of_weight, w, axis, scheme, moments)


@drawn
@given(weights(), axes, st.sampled_from([Scheme(), Scheme(rounding="nearest"), Scheme(symmetric=False)]))
@example(np.array([[2.6793887e36]], np.float32), None, Scheme())
def test_elements_at_the_ends_of_float32(w: Array, axis: int | None, scheme: Scheme) -> None:
    prop.elements_are_near(of_unit, w, axis, scheme, InputMoments(1, 1))


@form
def test_scales_of_every_scheme(kind: str, symmetric: bool) -> None:
    for scheme in every_scheme([(kind, symmetric)], searches=["minmax"], roundings=["nearest"]):
        if (kind, symmetric, scheme.scale_type) != ("int16", False, "float16"):
            prop.scales_are_the_smallest(of_weight, hostile.zoo(size=7), 0, scheme)
        if scheme.scale_type != "float16":
            prop.scales_are_the_smallest(of_weight, hostile.ratios(7), 0, scheme)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1), (2, 1), (1, 6)])
def test_empty_and_tiny(shape: tuple[int, int]) -> None:
    for scheme in every_scheme(scale_types=["float32"], searches=["auto"], powers=[False]):
        for value in (0.3, -(2.0**-140), 0.0)[: math.prod(shape) + 1]:
            w = np.full(shape, value, np.float32)
            prop.elements_are_near(of_unit, w, 0, scheme, RELU)


# -- items 7 and 11: what QuantizeLinear and DequantizeLinear make of it ---------------------------


@form
def test_codes_are_those_of_the_kernel(kind: str, symmetric: bool) -> None:
    ties = np.append(np.arange(-253, 254) / 2, 127)
    halves = np.stack([ties, ties * 0.1, np.nextafter(ties, np.inf), ties / 3, ties + 30.25]).astype(np.float32)
    for scheme in every_scheme(
        [(kind, symmetric)], scale_types=["float32"], roundings=["nearest"], searches=["minmax"]
    ):
        for w in (hostile.zoo(), hostile.ratios(), halves):
            prop.codes_are_those_of_the_kernel(of_weight, w, 0, scheme)
            same_values_as_dequantize_linear(qu.dequantize, of_weight(w, 0, scheme, None))


def again(values: Array, q: qu.QuantizedTensor) -> Array:
    """Codes of values at the scale and zero point of q: true division, half to even."""
    steps = np.rint(values.astype(np.float64) / q.spread(q.scale).astype(np.float64)) + q.spread(q.zero_point)
    return np.asarray(steps.astype(q.codes.dtype))


def tells_steps_apart(scheme: Scheme) -> bool:
    """Whether the type of the scales does: not 16-bit codes in 16 bits, nor 255 in bfloat16."""
    return scheme.span * 2.0 ** -prop.BITS[scheme.scale_type] < 0.5


TOLD_APART = [
    scheme
    for scheme in every_scheme(granularities=["channel"], searches=["minmax"], roundings=["nearest"], powers=[False])
    if tells_steps_apart(scheme)
]


@pytest.mark.parametrize(
    "scheme", TOLD_APART, ids=lambda s: f"{s.weight_type}-{s.symmetric}-{s.reduce_range}-{s.scale_type}"
)
def test_codes_survive(scheme: Scheme) -> None:
    rng = np.random.default_rng(7)
    low, high = scheme.code_range
    codes = rng.integers(low, high + 1, size=(40, 64)).astype(scheme.dtype)
    scale = np.maximum(rng.lognormal(-3, 3, size=40), 2.0**-24).astype(scheme.scale_dtype)
    zero = np.full(40, scheme.middle) if scheme.symmetric else rng.integers(low, high + 1, size=40)
    prop.codes_survive(again, qu.QuantizedTensor(codes, scale, zero.astype(scheme.dtype), 0))


def test_codes_of_255_do_not_survive_bfloat16() -> None:
    q = qu.QuantizedTensor(
        np.arange(256, dtype=np.uint8), np.asarray(0.1).astype(Scheme(scale_type="bfloat16").scale_dtype),
        np.zeros((), np.uint8), None,
    )  # fmt: skip
    assert np.any(again(qu.dequantize(q), q) != q.codes)


@drawn
@given(weights(moderate), st.sampled_from([None, 0]), st.sampled_from(["int8", "uint8"]), st.booleans())
def test_twice_is_once(w: Array, axis: int | None, kind: str, symmetric: bool) -> None:
    prop.codes_come_back(of_weight, w, axis, Scheme(weight_type=kind, symmetric=symmetric))


# -- item 12: granularity --------------------------------------------------------------------------


@form
@pytest.mark.parametrize("power", [False, True])
def test_finer_scales_are_no_larger(kind: str, symmetric: bool, power: bool) -> None:
    for scale_type in SCALE_TYPES:
        if (kind, symmetric, scale_type) != ("int16", False, "float16"):
            scheme = Scheme(
                kind, symmetric, search="minmax", rounding="nearest", power_of_two=power, scale_type=scale_type
            )
            prop.finer_scales_are_no_larger(of_weight, hostile.zoo(), scheme, BLOCK)


def worst_snr(w: Array, scheme: Scheme) -> float:
    q = of_weight(w, 0, scheme, None)
    noise = np.square(w.astype(float) - qu.dequantize(q, np.float64)).sum(axis=1)
    return float((10 * np.log10(np.square(w.astype(float)).sum(axis=1) / noise)).min())


@pytest.mark.parametrize("ratio", [16, 64, 256])
def test_what_granularity_is_worth(ratio: int) -> None:
    """The worst channel of normal weights whose ranges differ by a ratio, in dB, beside the ratio itself in dB: one
    scale loses most of that, one per channel nothing, and zero points gain at most 2 dB."""
    rng = np.random.default_rng(12)
    w: Array = (rng.normal(size=(32, 576)) * np.geomspace(1, 1 / ratio, 32)[:, None]).astype(np.float32)
    plain = Scheme(search="minmax", rounding="nearest")
    per_tensor = worst_snr(w, replace(plain, granularity="tensor"))
    assert per_tensor < max(42 - 20 * np.log10(ratio), 0) + 2
    assert worst_snr(w, plain) > 40
    assert worst_snr(w, replace(plain, granularity="tensor", symmetric=False)) < per_tensor + 2


# -- item 13: searches -----------------------------------------------------------------------------


@form
def test_searches_are_no_worse(kind: str, symmetric: bool) -> None:
    for scheme in every_scheme([(kind, symmetric)], searches=["mse", "grid", "auto"], roundings=["nearest"]):
        if (kind, symmetric, scheme.scale_type) != ("int16", False, "float16"):
            prop.search_is_no_worse(of_weight, hostile.zoo(size=7), 0, scheme, replace(scheme, search="minmax"))


@drawn
@given(weights(moderate), axes, schemes(rounding="nearest", scale_type="float32"))
@example(np.array([[0.15625, 1024]], np.float32), None, Scheme("int16", search="grid", rounding="nearest"))
def test_search(w: Array, axis: int | None, scheme: Scheme) -> None:
    prop.search_is_no_worse(of_weight, w, axis, scheme, replace(scheme, search="minmax"))


@pytest.mark.parametrize(("kind", "least"), [("int8", 0.0), ("int4", 2.0)])
def test_what_a_search_is_worth(kind: str, least: float) -> None:
    """Next to nothing for 8 bits, 2 dB and more for 4, on tensors with an outlier of 30 sigma, in dB."""
    w: Array = np.random.default_rng(13).normal(size=(8, 4096)).astype(np.float32)
    w[:, 7] = 30
    noise = [
        np.square(w - qu.dequantize(of_weight(w, 0, Scheme(kind, search=search, rounding="nearest"), None))).sum()
        for search in ("minmax", "mse")
    ]
    assert 10 * np.log10(noise[0] / noise[1]) >= least


# -- item 15: metamorphic --------------------------------------------------------------------------


@form
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_codes_follow_their_input(kind: str, symmetric: bool, granularity: str) -> None:
    w = np.abs(hostile.zoo()).max(axis=1)
    w = hostile.zoo()[(w == 0) | (w > 2.0**-60)]
    order = [int(i) for i in np.random.default_rng(15).permutation(len(w))]
    for scheme in every_scheme([(kind, symmetric)], [granularity], ["float32"]):
        prop.follows_its_input(of_unit, w, scheme, RELU, -7 if scheme.reduce_range else 5, order)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_signs(kind: str) -> None:
    for scheme in every_scheme([(kind, True), (kind, False)], scale_types=["float32"], searches=["minmax", "auto"]):
        if not scheme.reduce_range:  # [-64, 64] and [0, 127] are not of one length
            prop.signs_differ_by_the_middle(of_unit, hostile.zoo(), 0, scheme, RELU)


@drawn
@given(weights(moderate), axes, moments() | st.none())
def test_signs_of_drawn_weights(w: Array, axis: int | None, moments: InputMoments | None) -> None:
    prop.signs_differ_by_the_middle(of_unit, w, axis, Scheme(), moments)


# -- reduced range ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_pairs_do_not_saturate(kind: str, symmetric: bool) -> None:
    """Under every scheme of 7 bits; that of uint8 with zero points is no int8 in storage, and u8 kernels take it."""
    for w in (hostile.zoo(), hostile.ratios(), hostile.ends(np.float16)):
        for scheme in every_scheme([(kind, symmetric)], scale_types=["float32"]):
            if not scheme.reduce_range:
                continue
            if kind == "int8" or symmetric:
                prop.pairs_do_not_saturate(of_unit, w, 0, scheme, RELU)
            q = of_unit(w, 0, scheme, RELU)
            assert qu.pair_sums_fit_int16(q.codes) or kind == "uint8"
            assert int(q.codes.max()) <= 127


@drawn
@given(weights(moderate), axes, schemes(weight_type="int8", reduce_range=True, scale_type="float32"), moments())
def test_pairs_of_drawn_weights(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments) -> None:
    prop.pairs_do_not_saturate(of_unit, w, axis, scheme, moments)


def test_64_is_the_largest_code_whose_pairs_fit() -> None:
    assert qu.pair_sums_fit_int16(np.array([-64, 64], np.int8))
    assert not qu.pair_sums_fit_int16(np.array([65, 0], np.int8))
    assert not qu.pair_sums_fit_int16(np.array([-128], np.int8))
