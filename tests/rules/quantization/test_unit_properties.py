"""The properties of a unit under every scheme, over hostile values. What they say is in `unit_properties`."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import BiasOverflow, BiasValues, InputMoments, NotQuantizable, Scheme
from tests.rules.quantization import hostile
from tests.rules.quantization import unit_properties as prop
from tests.rules.quantization.exact import fractions
from tests.rules.quantization.hostile import moderate, weights
from tests.rules.quantization.schemes import CENTRED, COMMON, FORMS, RELU, every_scheme, moments, schemes

Array = NDArray[Any]
F = np.float32
drawn = settings(max_examples=100, deadline=None)
form = pytest.mark.parametrize(("kind", "symmetric"), FORMS)
OF_A_UNIT = ["tensor", "channel"]


def biases(count: int) -> Array:
    """float32 [count]: zeros, ordinary ones, and such as do not fit int32 at the scale that small weights dictate."""
    return np.resize(np.array([0, 0.1, -3, 1e-6, 40, -1e4, 0.7, -2e-3], F), count)


# -- items 8 and 10 --------------------------------------------------------------------------------


@form
def test_bias_of_every_scheme(kind: str, symmetric: bool) -> None:
    for scheme in every_scheme([(kind, symmetric)], OF_A_UNIT, roundings=["balanced"], searches=["minmax", "auto"]):
        if (kind, symmetric, scheme.scale_type) == ("int16", False, "float16"):
            continue
        x_scale = np.asarray(2.0**-5 if scheme.power_of_two else 0.02).astype(scheme.scale_dtype)
        w = hostile.zoo(size=5)
        prop.bias_belongs_to_its_unit(qu.quantize_unit, w, biases(len(w)), x_scale, 0, scheme)


@form
def test_accumulators_of_every_scheme(kind: str, symmetric: bool) -> None:
    if kind == "int16":
        assert qu.accumulator_depth(255, Scheme(kind, symmetric).span) < 300  # no int32 accumulator is deep enough
        return
    w = np.concatenate([hostile.zoo(), hostile.zoo() * F(1e-6)])
    for scheme in every_scheme([(kind, symmetric)], OF_A_UNIT, ["float32"], ["auto"]):
        prop.accumulator_has_room(qu.quantize_unit, w, biases(len(w)) * F(1e4), F(2.0**-10), 0, scheme)


@drawn
@given(
    weights(moderate), st.lists(moderate, min_size=4, max_size=4), st.sampled_from([F(0.02), F(1e-4), F(3)]),
    st.builds(lambda g: g, st.sampled_from(OF_A_UNIT)).flatmap(lambda g: schemes(granularity=g, scale_type="float32")),
)  # fmt: skip
def test_bias(w: Array, b: list[float], x_scale: np.float32, scheme: Scheme) -> None:
    held = np.array(b[: len(w)], F)
    x_scale = F(2.0**-5) if scheme.power_of_two else x_scale
    prop.bias_belongs_to_its_unit(qu.quantize_unit, w, held, x_scale, 0, scheme)
    if scheme.weight_type != "int16":
        prop.accumulator_has_room(qu.quantize_unit, w, held, x_scale, 0, scheme)


@drawn
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2), st.integers(-(2**31), 2**31 - 1),
    st.floats(2.0**-40, 2.0**20, width=32), st.sampled_from([1.0, 0.5, 3.0, 0.1]), schemes(granularity="channel"),
)  # fmt: skip
def test_quantized_bias(codes: list[int], zero: int, old: float, beta: float, scheme: Scheme) -> None:
    """From its integers: the value has up to 80 bits, and is rounded once."""
    values = BiasValues.of_codes(np.array(codes, np.int32), np.array(old, F), np.int32(zero), axis=None)
    beta = float(F(beta))
    exact = [(c - zero) * Fraction(old) for c in codes]
    held = [n * u for n, u in zip(fractions(values.number), fractions([float(values.unit)] * 2), strict=True)]
    assert held == exact
    w, x_scale = np.array([[1.0, -2.0], [0.5, 0.25]], F), np.asarray(2.0**-7).astype(scheme.scale_dtype)
    try:
        prop.bias_belongs_to_its_unit(qu.quantize_unit, w, values, x_scale, 0, scheme, beta)
    except NotQuantizable:
        assume(False)


@drawn
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4), st.sampled_from([None, 0, 1]),
    st.lists(hostile.positive.map(F), min_size=2, max_size=2),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2),
)  # fmt: skip
def test_coded_values(codes: list[int], axis: int | None, scale: list[np.float32], zero: list[int]) -> None:
    count = slice(None) if axis is not None else 0
    args = np.array(scale, F)[count], np.array(zero, np.int32)[count]
    prop.coded_values_are_exact(BiasValues.of_codes, np.array(codes, np.int32).reshape(2, 2), *args, axis)


@drawn
@given(
    st.sampled_from([np.int8, np.uint8]), st.integers(0, 2**32 - 1), st.sampled_from([(0, 1), (1, 1), (1, 2)]),
    st.integers(-3, 3), st.booleans(),
)  # fmt: skip
def test_room(kind: type, seed: int, form: tuple[int, int], aside: int, negative: bool) -> None:
    """At the very edge of int32, and beside it."""
    (axis, repeat), rng = form, np.random.default_rng(seed)
    info = np.iinfo(kind)
    codes: Array = rng.integers(info.min, info.max + 1, size=(4, 3, 2)).astype(kind)
    zero = int(rng.integers(info.min, info.max + 1)) * int(rng.integers(2))
    steps = np.abs(codes.astype(int) - zero)
    sums = steps.sum(axis=(1, 2)) if axis == 0 else steps.reshape(repeat, -1, 3, 2).sum(axis=(1, 3)).reshape(-1)
    bias = np.zeros(len(sums), np.int64)
    at = int(rng.integers(len(sums)))
    bias[at] = (2**31 - 1 - 255 * int(sums[at]) + aside) * (-1 if negative else 1)
    prop.refused_without_room(qu.quantize_bias_for, bias, codes, kind(zero), axis, repeat)


def test_a_bias_without_room_beside_the_products_is_refused() -> None:
    """Added to eight products of 255 and 127 it would wrap around; one step less, and it does not."""
    codes = np.full((2, 8), 127, np.int8)
    codes[1] = 1
    room = 2**31 - 1 - 8 * 255 * 127
    for repeat, axis, held in ((1, 0, codes), (1, 1, codes.T)):
        b = BiasValues.of_codes(np.array([room, room + 1], np.int64), F(1), axis=None)
        args: dict[str, Any] = {"codes": held, "axis": axis, "repeat": repeat}
        assert qu.quantize_bias_for(b, F(1), np.ones(2, F), **args).codes.tolist() == [room, room + 1]
        assert qu.quantize_bias_for(b, F(1), F(1), **args).codes.tolist() == [room, room + 1]
        over = BiasValues.of_codes(np.array([-room - 1, 0], np.int64), F(1), axis=None)
        with pytest.raises(BiasOverflow, match=r"output channel 0: a bias of .* and 8 products") as caught:
            qu.quantize_bias_for(over, F(1), np.ones(2, F), **args)
        assert caught.value.index == (0,)
        assert qu.quantize_bias_for(over, F(1), np.ones(2, F)).codes[0] == -room - 1  # nothing known of the weight


@pytest.mark.parametrize("shape", [(2, 70_000), (70_000, 2)])
def test_products_that_leave_int32_by_themselves_are_refused(shape: tuple[int, int]) -> None:
    """70,000 weights at the end of the range: some image would wrap around. Of random ones none does."""
    axis = shape.index(2)
    with pytest.raises(NotQuantizable, match="output channel 0: a bias of 0 steps and 70000 products"):
        qu.quantize_unit(np.ones(shape, F), None, F(0.1), axis=axis)
    w = np.random.default_rng(10).normal(size=shape).astype(F)
    assert qu.quantize_unit(w, None, F(0.1), axis=axis).weight.codes.shape == shape


# -- item 9 ----------------------------------------------------------------------------------------


def one_of(scheme: Scheme) -> bool:
    return (scheme.weight_type, scheme.symmetric) != ("int16", False) or scheme.scale_type == "float32"


@form
def test_output_of_every_scheme(kind: str, symmetric: bool) -> None:
    rng = np.random.default_rng(9)
    for scheme in every_scheme([(kind, symmetric)], OF_A_UNIT):
        if not one_of(scheme) or scheme.scale_type == "float16":  # a bias code is beyond float16, which kernels avoid
            continue
        w = hostile.zoo(size=5)
        x = rng.integers(0, 256, size=5).astype(np.uint8)
        x_scale = np.asarray(2.0**-5 if scheme.power_of_two else 0.02).astype(scheme.scale_dtype).astype(F)
        prop.output_is_near(qu.quantize_unit, w, biases(len(w)), x, x_scale, 3, scheme, RELU)


@drawn
@given(
    weights(moderate), st.data(), hostile.scales, st.integers(0, 255), moments() | st.none(),
    schemes(granularity="channel", scale_type="float32", power_of_two=False),
)  # fmt: skip
def test_output(
    w: Array, data: st.DataObject, x_scale: np.float32, x_zero: int, moments: InputMoments | None, scheme: Scheme
) -> None:
    channels, depth = w.shape
    b: Array = np.array(data.draw(st.lists(moderate, min_size=channels, max_size=channels)), F)
    x = np.array(data.draw(st.lists(st.integers(0, 255), min_size=depth, max_size=depth)), np.uint8)
    prop.output_is_near(qu.quantize_unit, w, b, x, x_scale, x_zero, scheme, moments)


# -- item 16 ---------------------------------------------------------------------------------------


BYTES = [(kind, symmetric) for kind, symmetric in FORMS if kind.endswith("int8")]


@pytest.mark.parametrize("moments", [RELU, CENTRED, COMMON], ids=["relu", "centred", "common"])
@pytest.mark.parametrize(("kind", "symmetric"), BYTES)
def test_no_worse_than_onnxruntime(kind: str, symmetric: bool, moments: InputMoments) -> None:
    rng = np.random.default_rng(16)
    tensors = [
        hostile.zoo(size=8)[:, :, None], hostile.ratios(6).reshape(5, 2, 3), np.full((1, 1, 1), 0.3, F),
        (rng.normal(size=(6, 8, 3)) + 1).astype(F),
    ]  # fmt: skip
    for scheme in every_scheme([(kind, symmetric)], OF_A_UNIT, ["float32"], ["auto"], ["balanced"], [False]):
        for w in tensors:
            prop.no_worse_than_peers(qu.quantize_unit, w, scheme, moments)


@settings(max_examples=40, deadline=None)
@given(weights(moderate), st.integers(1, 2), moments(), st.sampled_from(BYTES), st.booleans())
@example(np.array([[0, 0, 1.5e30], [0, 0.24999999, 63.5]], F), 1, CENTRED, ("int8", True), False)
@example(np.array([[-2, 6.4999995, -122.50001, -122.50001, 127]], F), 1, InputMoments(3, 1), ("int8", False), False)
@example(np.array([[1.0, 1.0]], F), 2, CENTRED, ("int8", True), False)
def test_drawn_weights_are_no_worse_than_onnxruntime(
    w: Array, width: int, moments: InputMoments, form: tuple[str, bool], reduced: bool
) -> None:
    rows = np.repeat(w[:, :, None], width, axis=2) * np.linspace(1, 0.3, width, dtype=F)
    prop.no_worse_than_peers(qu.quantize_unit, rows, Scheme(*form, reduce_range=reduced), moments)


@pytest.mark.parametrize("shape", [(24, 40, 1), (16, 4, 9), (4, 600, 1)])
@pytest.mark.parametrize("moments", [InputMoments.of_range(0.1, z, 0, 255, spatial=True) for z in (0, 90, 128)])
def test_random_weights_are_no_worse_than_onnxruntime(shape: tuple[int, int, int], moments: InputMoments) -> None:
    w = np.random.default_rng(61).normal(size=shape).astype(F)
    for symmetric in (True, False):
        prop.no_worse_than_peers(qu.quantize_unit, w, Scheme(symmetric=symmetric), moments)


def test_weights_of_one_sign_gain_by_zero_points() -> None:
    """Why the property has to say "whose codes ours can hold": half a step is half a step, where no sum helps."""
    w = (np.random.default_rng(62).random(size=(4, 400, 1)) + 1).astype(F)
    symmetric = qu.quantize_unit(w, None, F(1), axis=0, scheme=Scheme(), inputs=CENTRED).weight
    peer = qu.ort_weight(w)
    assert np.all(prop.measured(w, symmetric, CENTRED, False) > 1.5 * prop.measured(w, peer, CENTRED, False))
    skewed = qu.quantize_unit(w, None, F(1), axis=0, scheme=replace(Scheme(), symmetric=False), inputs=CENTRED).weight
    assert np.all(prop.measured(w, skewed, CENTRED, False) <= prop.measured(w, peer, CENTRED, False))
