"""Each property of `scheme_properties` fails on an implementation whose guard is taken out.

As in `test_properties_can_fail`: the right implementation passes all examples, the wrong one fails at least one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import InputMoments, QuantizedTensor, Scheme
from tests.rules.quantization import scheme_properties as prop
from tests.rules.quantization.test_properties_can_fail import Fault, passes

Array = NDArray[Any]
F = np.float32
_rng = np.random.default_rng(1)
RULES, EQUAL = InputMoments(30.0, 1.0), InputMoments(1.0, 1.0, 0.5)


def right(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    return qu.quantize_weight(w, axis, scheme, moments=moments)


def with_codes(change: Any) -> prop.Quantizer:
    def quantize(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
        q = right(w, axis, scheme, moments)
        return replace(q, codes=change(q.codes.astype(int), w).astype(q.codes.dtype))

    return quantize


def lowest(codes: Array, w: Array) -> Array:
    return np.where(codes == codes.min(), -128, codes)


def narrower(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    q = right(w, axis, scheme, moments)
    return replace(q, scale=np.asarray(q.scale.astype(float) * 0.97).astype(q.scale.dtype))


def with_scheme(**options: Any) -> prop.Quantizer:
    """As if the scheme had said something else."""
    return lambda w, axis, scheme, moments: right(w, axis, replace(scheme, **options), moments)


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


def always_mse_half(w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None) -> QuantizedTensor:
    q = right(w, axis, replace(scheme, search="minmax"), moments)
    if scheme.search == "minmax":
        return q
    halved = np.asarray(q.scale / F(2))
    return replace(
        qu.quantize_with_scale(w, halved, axis), codes=np.clip(q.codes.astype(int) * 2, -127, 127).astype(np.int8)
    )


weights: list[Array] = [_rng.normal(size=(3, 30)).astype(F) for _ in range(5)]
skewed: list[Array] = [w + F(2) for w in weights]
near = [(w, 0, Scheme(search="minmax"), None) for w in weights]
near += [(w, 0, Scheme(search="minmax", symmetric=False), None) for w in skewed]
half = [(w, 0, Scheme(search="minmax", scale_type=kind), None) for w in weights for kind in ("float16", "bfloat16")]
balanced = [(w, 0, Scheme(search="minmax"), RULES) for w in weights]
held = [
    (w[:, :, None], np.asarray(qu.symmetric_scale(np.abs(w).max(axis=1))), m)
    for w in weights
    for m in (RULES, EQUAL, InputMoments(0.1, 1.0))
]
positions = [(_rng.uniform(-100, 100, size=(4, 200, 1)).astype(F), RULES)]
grids = [(_rng.integers(-90, 91, size=(5, 40)), F(s), 127, None) for s in _rng.lognormal(-3, size=20)]
loose = [(_rng.normal(size=(50, 20)).astype(F), 127, None)]
searched = [
    (w, 0, Scheme(search="mse", rounding="nearest"), Scheme(search="minmax", rounding="nearest")) for w in weights
]
reduced = [(w, 0, Scheme(reduce_range=True)) for w in weights]
again = [(w, 0, Scheme()) for w in weights]
signs = [(w, 0, None) for w in weights]


FAULTS = [
    Fault("truncated", prop.elements_are_near, right, with_codes(lambda c, w: np.trunc(c * 0.99)), near),
    Fault("codes out of range", prop.elements_are_near, right, with_codes(lowest), near[:5]),
    Fault("zero point moved", prop.elements_are_near, right, with_codes(lambda c, w: np.clip(c + 1, -127, 127)), near),
    Fault(
        "clipped under a smaller scale",
        prop.elements_are_near,
        right,
        narrower,
        half,
    ),
    Fault(
        "two codes away",
        prop.elements_are_near,
        right,
        with_codes(lambda c, w: np.clip(c + 2 * (np.arange(c.shape[1]) == 3), -127, 127)),
        balanced,
    ),
    Fault("flips that do not pay", prop.balanced_is_no_worse, qu.balance, unguarded, held),
    Fault("beyond the neighbours", prop.balanced_is_no_worse, qu.balance, two_away, held),
    Fault("sums left", prop.sums_come_near, qu.balance, idle, positions),
    Fault("grid from min-max", prop.grid_is_found, qu.grid_scales, min_max_grid, grids),
    Fault("grid from the smallest difference", prop.grid_is_found, qu.grid_scales, smallest_magnitude_grid, grids),
    Fault("a grid everywhere", prop.no_grid_is_seen, qu.grid_scales, min_max_grid, loose),
    Fault("half the range", prop.search_is_no_worse, right, always_mse_half, searched),
    Fault("range not reduced", prop.pairs_do_not_saturate, right, with_scheme(reduce_range=False), reduced),
    Fault("not the same twice", prop.codes_come_back, right, with_codes(lambda c, w: np.trunc(c * 0.9)), again),
    Fault(
        "unsigned by 127",
        prop.signs_differ_by_the_middle,
        right,
        lambda w, a, s, m: (
            q if (q := right(w, a, s, m)).codes.dtype == np.int8 else replace(q, codes=q.codes - np.uint8(1))
        ),
        signs,
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fault_is_found(fault: Fault) -> None:
    examples = list(fault.examples)
    assert all(passes(fault, fault.right, example) for example in examples)
    assert not all(passes(fault, fault.wrong, example) for example in examples)
