"""Each property of `scheme_properties` fails on an implementation whose guard is taken out, as in
`test_properties_can_fail`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import InputMoments, QuantizedTensor, Scheme
from tests.rules.quantization import hostile
from tests.rules.quantization import scheme_properties as prop
from tests.rules.quantization.faults import Fault
from tests.rules.quantization.schemes import BLOCK, FORMS, of_weight

Array = NDArray[Any]
F = np.float32
_rng = np.random.default_rng(1)
RULES, EQUAL = InputMoments(30.0, 1.0), InputMoments(1.0, 1.0, 0.5)
NEAREST = Scheme(search="minmax", rounding="nearest")
BLOCKS = Scheme(granularity="block", block_size=BLOCK, search="minmax")


def with_codes(change: Any) -> prop.Quantizer:
    def quantize(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
        q = of_weight(w, axis, scheme, moments)
        return replace(q, codes=change(q.codes.astype(int), w).astype(q.codes.dtype))

    return quantize


def with_scale(change: Any) -> prop.Quantizer:
    """The codes left as they are, the scale changed."""

    def quantize(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
        q = of_weight(w, axis, scheme, moments)
        return replace(q, scale=np.asarray(change(q.scale.astype(float))).astype(q.scale.dtype))

    return quantize


def with_scheme(**options: Any) -> prop.Quantizer:
    """As if the scheme had said something else."""
    return lambda w, axis, scheme, moments: of_weight(w, axis, replace(scheme, **options), moments)


def with_weight(change: Any) -> prop.Quantizer:
    """As if the weight had been another."""
    return lambda w, axis, scheme, moments: of_weight(change(w), axis, scheme, moments)


def lowest(codes: Array, w: Array) -> Array:
    return np.where(codes == codes.min(), -128, codes)


def first_block_for_all(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    q = of_weight(w, axis, scheme, moments)
    return replace(q, scale=np.repeat(q.scale[:, :1], q.scale.shape[1], axis=1)) if q.block_size else q


def blocks_from_the_end(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    """The short block is the first one."""
    q = of_weight(w[:, ::-1], axis, scheme, moments)
    return replace(q, codes=q.codes[:, ::-1], scale=q.scale[:, ::-1], zero_point=q.zero_point[:, ::-1])


def subnormal_scale(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    """Scales below the smallest normal, as division alone gives them."""
    q = of_weight(w, axis, scheme, moments)
    small = np.abs(w).max(axis=1).astype(float) / scheme.span
    return replace(q, scale=np.where(small < 2.0**-126, small, q.scale).astype(F))


def scale_to_nearest(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    q = of_weight(w, axis, scheme, moments)
    low, high = w.min(axis=1, initial=0).astype(float), w.max(axis=1, initial=0).astype(float)
    extent = np.maximum(-low, high) if scheme.symmetric else high - low
    return replace(q, scale=np.maximum((extent / scheme.span).astype(q.scale.dtype), q.scale.dtype.type(2.0**-24)))


def clipped_to_half(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    """A search that clips, and codes that stop short of the last."""
    q = of_weight(w, axis, scheme, moments)
    return replace(q, codes=np.clip(q.codes, -scheme.reach // 2, scheme.reach // 2))


def half_up(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    q = of_weight(w, axis, scheme, moments)
    steps = np.floor(w / q.spread(q.scale) + F(0.5)) + q.spread(q.zero_point)
    return replace(q, codes=np.clip(steps, *scheme.code_range).astype(q.codes.dtype))


def zero_point_before_rounding(
    w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None
) -> QuantizedTensor:
    q = of_weight(w, axis, scheme, moments)
    steps = np.rint(w / q.spread(q.scale) + q.spread(q.zero_point))
    return replace(q, codes=np.clip(steps, *scheme.code_range).astype(q.codes.dtype))


def with_epsilon(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    """An absolute epsilon in the scale."""
    q = of_weight(w, axis, scheme, moments)
    return qu.QuantizedTensor(
        np.rint(w / (q.spread(q.scale) + F(1e-3))).astype(np.int8), q.scale + F(1e-3), q.zero_point, q.axis
    )


def by_position(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    """What a channel gets depends on where it stands."""
    q = of_weight(w, axis, scheme, moments)
    return replace(q, codes=np.where(np.arange(len(w))[:, None] == 0, 0, q.codes).astype(q.codes.dtype))


def unguarded(steps: Array, codes: Array, moments: InputMoments, *_: Any) -> None:
    """Slices first, whatever that does to the channel; twice over a tie, whatever that costs."""
    errors = steps - codes
    codes += np.where(np.abs(errors) > 0.2, np.sign(errors), 0)


def two_away(steps: Array, codes: Array, moments: InputMoments, *_: Any) -> None:
    """All of the sum put on one element."""
    flat = codes.reshape(len(codes), -1)
    flat[:, 0] += np.rint((steps - codes).reshape(len(codes), -1).sum(axis=1))


def idle(steps: Array, codes: Array, moments: InputMoments, *_: Any) -> None:
    """Nearest."""


def as_if_mean(mean: float) -> Any:
    """Balanced for another input."""
    return lambda steps, codes, moments, *_: qu.balance(steps, codes, InputMoments(mean, 1.0))


def smallest_magnitude_grid(rows: Array, reach: int, span: int | None) -> Array:
    """The scale from the smallest difference of two values."""
    found = []
    for row in rows:
        values = np.unique(np.abs(row))
        gaps = np.diff(values)
        found.append(gaps[gaps > 0].min(initial=values.max()))
    return np.array(found, F)


def min_max_grid(rows: Array, reach: int, span: int | None) -> Array:
    return np.asarray(qu.symmetric_scale(np.abs(rows).max(axis=1)))


def rounded_grid(rows: Array, reach: int, span: int | None) -> Array:
    """The right number of steps, but max / N just as it is rounded: not always the float that it was."""
    found = qu.grid_scales(rows, reach, span)
    largest = np.abs(rows).max(axis=1).astype(float)
    return np.asarray(largest / np.rint(largest / found), F)


def always_mse_half(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    q = of_weight(w, axis, replace(scheme, search="minmax"), moments)
    if scheme.search == "minmax":
        return q
    halved = np.asarray(q.scale / F(2))
    codes = np.clip(q.codes.astype(int) * 2, *scheme.code_range).astype(q.codes.dtype)
    return replace(q, codes=codes, scale=halved)


weights: list[Array] = [_rng.normal(size=(3, 30)).astype(F) for _ in range(5)]
skewed: list[Array] = [w + F(2) for w in weights]
zoo: Array = hostile.zoo()
near = [(w, 0, Scheme(search="minmax"), None) for w in weights]
near += [(w, 0, Scheme(search="minmax", symmetric=False), None) for w in skewed]
half = [(w, 0, Scheme(search="minmax", scale_type=kind), None) for w in weights for kind in ("float16", "bfloat16")]
balanced = [(w, 0, Scheme(search="minmax"), RULES) for w in weights]
tiny = [(zoo, 0, NEAREST, None)]
blocks = [(w, 0, BLOCKS, RULES) for w in (*weights, zoo)]
uneven = [(w[:, :13] * F(1.5) ** np.arange(13, dtype=F), 0, BLOCKS, None) for w in weights]
clipping = [(w, 0, Scheme("int4", search="mse", rounding="nearest"), None) for w in weights]
plain = [(w, 0, replace(NEAREST, weight_type=kind, symmetric=s)) for w in (*weights, zoo) for kind, s in FORMS]
powers = [(w, 0, replace(scheme, power_of_two=True)) for w, _, scheme in plain]
kernel = [(np.append(np.arange(-253, 254) / 2, 127)[None].astype(F) * F(s), 0, NEAREST) for s in (1, 0.1)]
shifted = [(np.arange(-14, 497)[None].astype(F) / 2, 0, replace(NEAREST, symmetric=False))]  # zero point -121
granular = [(w * F(2) ** np.arange(-1, 2, dtype=F)[:, None], NEAREST, BLOCK) for w in weights]
follow = [(w, Scheme(search="minmax"), RULES, 3, [2, 0, 1]) for w in weights]
held = [
    (w[:, :, None], np.asarray(qu.symmetric_scale(np.abs(w).max(axis=1))), m)
    for w in weights
    for m in (RULES, EQUAL, InputMoments(0.1, 1.0))
]
positions = [(_rng.uniform(-100, 100, size=(4, 200, 1)).astype(F), RULES)]
grids = [(_rng.integers(-90, 91, size=(5, 40)), np.asarray(s, F), 127, None) for s in _rng.lognormal(-3, size=20)]
loose = [(_rng.normal(size=(50, 20)).astype(F), 127, None)]
searched = [
    (w, 0, replace(NEAREST, search="mse", weight_type=t, symmetric=s), replace(NEAREST, weight_type=t, symmetric=s))
    for w in weights
    for t, s in (("int8", True), ("int4", True), ("uint4", False))
]
reduced = [(w, 0, Scheme(reduce_range=True, rounding=r), RULES) for w in weights for r in ("nearest", "balanced")]
again = [(w, 0, Scheme()) for w in weights]
signs = [(w, 0, Scheme(), None) for w in weights]
all_codes: Array = np.arange(-128, 128, dtype=np.int8)
codes = [
    (qu.QuantizedTensor(all_codes, np.asarray(0.1, kind), np.asarray(-7, np.int8), None),) for kind in (F, np.float16)
]


FAULTS = [
    # elements
    Fault("truncated", prop.elements_are_near, of_weight, with_codes(lambda c, w: np.trunc(c * 0.99)), near),
    Fault("codes out of range", prop.elements_are_near, of_weight, with_codes(lowest), near[:5]),
    Fault(
        "zero point moved", prop.elements_are_near, of_weight,
        with_codes(lambda c, w: np.clip(c + 1, -127, 127)), near,
    ),
    Fault("under a smaller scale", prop.elements_are_near, of_weight, with_scale(lambda s: s * 0.97), half),
    Fault(
        "two codes away", prop.elements_are_near, of_weight,
        with_codes(lambda c, w: np.clip(c + 2 * (np.arange(c.shape[1]) == 3), -127, 127)), balanced,
    ),
    Fault("balanced where nearest is meant", prop.elements_are_near, of_weight,
          lambda w, a, s, m: of_weight(w, a, s, RULES), near),
    Fault("scale below the smallest normal", prop.elements_are_near, of_weight, subnormal_scale, tiny),
    Fault("zero is moved", prop.elements_are_near, of_weight, with_codes(lambda c, w: np.where(w == 0, 1, c)), tiny),
    Fault("clipped short of the last code", prop.elements_are_near, of_weight, clipped_to_half, clipping),
    # blocks
    Fault("one block's scale for all", prop.elements_are_near, of_weight, first_block_for_all, blocks),
    Fault("blocks counted from the end", prop.elements_are_near, of_weight, blocks_from_the_end, uneven),
    Fault("balanced two codes away in a block", prop.elements_are_near, of_weight,
          with_codes(lambda c, w: np.clip(c + 2 * (np.arange(c.shape[1]) == 7), -127, 127)), blocks),
    # scales
    Fault("scale to nearest", prop.scales_are_the_smallest, of_weight, scale_to_nearest, plain),
    Fault("scale a hair too large", prop.scales_are_the_smallest, of_weight,
          with_scale(lambda s: s * (1 + 2.0**-20)), plain),
    Fault("twice the power of two", prop.scales_are_the_smallest, of_weight, with_scale(lambda s: s * 2), powers),
    Fault("half the power of two", prop.scales_are_the_smallest, of_weight,
          with_scale(lambda s: np.maximum(s / 2, 2.0**-126)), powers),
    Fault("no power of two", prop.scales_are_the_smallest, of_weight, with_scheme(power_of_two=False), powers),
    # kernels
    Fault("half up", prop.codes_are_those_of_the_kernel, of_weight, half_up, kernel),
    Fault("zero point added before rounding", prop.codes_are_those_of_the_kernel, of_weight,
          zero_point_before_rounding, shifted),
    Fault("codes truncated on the way back", prop.codes_survive,
          lambda v, q: (np.rint(v.astype(float) / q.scale.astype(float)) + q.zero_point).astype(np.int8),
          lambda v, q: (np.trunc(v.astype(float) / q.scale.astype(float)) + q.zero_point).astype(np.int8), codes),
    Fault("not the same twice", prop.codes_come_back, of_weight, with_codes(lambda c, w: np.trunc(c * 0.9)), again),
    # granularity
    Fault("a block's scale for the channel", prop.finer_scales_are_no_larger, of_weight,
          lambda w, a, s, m: of_weight(w, a, s, m) if s.granularity != "channel"
          else replace(of_weight(w, a, s, m), scale=of_weight(w[:, :BLOCK], a, s, m).scale), granular),
    Fault("a channel's scale for the tensor", prop.finer_scales_are_no_larger, of_weight,
          lambda w, a, s, m: of_weight(w, a, s, m) if s.granularity != "tensor"
          else replace(of_weight(w, a, s, m), scale=of_weight(w[:1], a, s, m).scale), granular),
    # searches
    Fault("half the range", prop.search_is_no_worse, of_weight, always_mse_half, searched),
    # metamorphic
    Fault("half up is not odd", prop.follows_its_input, of_weight, half_up,
          [(kernel[0][0], NEAREST, None, 1, [0])]),
    Fault("an epsilon in the scale", prop.follows_its_input, of_weight, with_epsilon, follow),
    Fault("by position", prop.follows_its_input, of_weight, by_position, follow),
    Fault(
        "unsigned by 127", prop.signs_differ_by_the_middle, of_weight,
        lambda w, a, s, m: (
            q if (q := of_weight(w, a, s, m)).codes.dtype == np.int8 else replace(q, codes=q.codes - np.uint8(1))
        ),
        signs,
    ),
    # reduced range
    Fault("range not reduced", prop.pairs_do_not_saturate, of_weight, with_scheme(reduce_range=False), reduced),
    Fault("65 is one too many", prop.pairs_do_not_saturate, of_weight,
          with_codes(lambda c, w: np.where(np.abs(c) == 64, np.sign(c) * 65, c)),
          [(w[:1].repeat(2, axis=0), *rest) for w, *rest in reduced]),
    # balanced
    Fault("flips that do not pay", prop.balanced_is_no_worse, qu.balance, unguarded, held),
    Fault("beyond the neighbours", prop.balanced_is_no_worse, qu.balance, two_away, held),
    Fault("balanced for another mean", prop.balanced_is_no_worse, qu.balance, as_if_mean(30.0), held),
    Fault("sums left", prop.sums_come_near, qu.balance, idle, positions),
    Fault("sums of another mean", prop.sums_come_near, qu.balance, as_if_mean(0.01), positions),
    # grids
    Fault("grid from min-max", prop.grid_is_found, qu.grid_scales, min_max_grid, grids),
    Fault("grid from the smallest difference", prop.grid_is_found, qu.grid_scales, smallest_magnitude_grid, grids),
    Fault("grid of another float", prop.grid_is_found, qu.grid_scales, rounded_grid, grids),
    Fault("a grid everywhere", prop.no_grid_is_seen, qu.grid_scales, min_max_grid, loose),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fault_is_found(fault: Fault) -> None:
    fault.check()
