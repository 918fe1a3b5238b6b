"""Each property fails on an implementation with the fault that it is there to find.

A property that cannot fail proves nothing. So for every fault that was seen in the wild (or is one keystroke
away) there is a row: the property, the right implementation, the wrong one, and examples. The right one
passes them all and the wrong one fails at least one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rules.quantization as qu
from tests.rules.quantization import properties as prop
from tests.rules.quantization.faults import Fault

Array = NDArray[Any]
_rng = np.random.default_rng(0)
F = np.float32


def quantizer(
    steps: Callable[[Array, Array], Array] = lambda w, s: w / s,
    rint: Callable[[Array], Array] = np.rint,
    scale: Callable[[Array], Array] = qu.symmetric_scale,
    limit: int = 127,
) -> prop.Quantize:
    """Symmetric quantization with one part exchanged."""

    def quantize(w: Array, axis: int | None) -> qu.QuantizedTensor:
        right = qu.quantize_symmetric(w, axis)
        others = None if axis is None else tuple(i for i in range(w.ndim) if i != axis)
        s = np.asarray(scale(np.abs(w).max(axis=others)), F)
        wide = s if axis is None else s.reshape([-1 if i == axis else 1 for i in range(w.ndim)])
        with np.errstate(all="ignore"):
            codes = np.clip(rint(steps(w, wide)), -limit - 1, limit).astype(np.int8)
        return replace(right, codes=codes, scale=s)

    return quantize


def half_away(steps: Array) -> Array:
    return np.sign(steps) * np.floor(np.abs(steps) + 0.5)


def biaser(
    steps: Callable[[Array, Array], Array] = lambda b, s: b.astype(float) / s.astype(float),
    rint: Callable[[Array], Array] = np.rint,
    scale: Callable[..., Array] = qu.bias_scale,
) -> Callable[..., qu.QuantizedTensor]:
    """Bias quantization with one part exchanged."""

    def quantize(b: Array, x_scale: Any, w_scale: Array, *, axis: int | None) -> qu.QuantizedTensor:
        s = scale(x_scale, w_scale)
        codes = rint(steps(b, s)).astype(np.int64).astype(np.int32)
        s = np.asarray(s, F)
        return qu.QuantizedTensor(codes, s, np.zeros(s.shape, np.int32), axis)

    return quantize


def unit_with(**change: Callable[[Any], Any]) -> Callable[..., qu.QuantizedUnit]:
    """The right unit with its weight or its bias changed."""

    def quantize(*args: Any, **keywords: Any) -> qu.QuantizedUnit:
        unit = qu.quantize_unit(*args, **keywords)
        return replace(unit, **{name: f(getattr(unit, name)) for name, f in change.items()})

    return quantize


def zero_point_before_rounding(w: Array, axis: int | None) -> qu.QuantizedTensor:
    q = qu.ort_weight(w)
    steps = np.clip(np.rint(w / q.scale + q.zero_point), -128, 127)
    return replace(q, codes=steps.astype(np.int8))


def affine(w: Array, axis: int | None) -> qu.QuantizedTensor:
    """The grid starts at the minimum, min + s q, so that 0 is not on it."""
    right = qu.quantize_symmetric(w, None)
    scale = np.asarray((w.max() - w.min()) / 254, F)
    values = np.rint((w - w.min()) / scale) - 127
    return replace(right, codes=values.astype(np.int8), scale=scale)


def raised_once(w_scale: Any, b: Any, x_scale: Any) -> Array:
    """The formula that is one count short half of the time: |b| / (s_x (2^31 - 1)), rounded up to a float."""
    need = F(abs(b) / (float(x_scale) * (2**31 - 1)))
    need = need if float(need) * float(x_scale) * (2**31 - 1) >= abs(b) else np.nextafter(need, F(np.inf))
    return np.asarray(np.maximum(w_scale, need))


def doubled_when_raised(w_scale: Any, b: Any, x_scale: Any) -> Array:
    raised = qu.raise_for_bias(w_scale, b, x_scale)
    return np.asarray(raised * 2 if raised > w_scale else raised)


# Examples.

weights = [(_rng.normal(size=(3, 40)).astype(F), axis) for axis in (None, 0, 1) for _ in range(10)]
halves: Array = np.arange(-253, 254, dtype=F) / 2
ties = [(np.append(halves, F(127)) * s, None) for s in (F(1), F(2.0**-20), F(0.1), F(0.3), F(1 / 3))]
skewed = [(np.append(halves * F(1 / 3), F(150)).astype(F), None), ((halves + F(30.25)).astype(F), None)]
skewed += [(np.abs(w) + F(0.1), None) for w, _ in weights] + [(np.append(halves - F(7), 0).astype(F), None)]
with_zero = [(np.array([[0.0, -1.0, 2.0, 0.37]], F), None)]
tiny = [(np.array([[3e-44, -2.66e-43, 1e-44]], F), 0)]
largest = [(float(v),) for v in _rng.lognormal(size=200).astype(F)]
smallest = [(8.9e-44,), (1e-40,), (0.0,), (2.0**-126,), (100 * 2.0**-126,)]
channels = [(w, e, [2, 0, 1]) for w, axis in weights[:10] for e in (-7, 3)]


def biases(count: int, low: float, high: float) -> list[tuple[Array, Any, Array]]:
    found = []
    for _ in range(count):
        x, w = F(_rng.lognormal(-4)), np.asarray(_rng.lognormal(-5), F)
        codes = _rng.uniform(low, high, size=50) * _rng.choice([-1, 1], size=50)
        found.append(((codes * float(x * w)).astype(F), x, w))
    return found


def doubtful_biases() -> list[tuple[Array, Any, Array]]:
    """Quotients beside a tie by less than float64 can tell: 2^31 B / S = n + 1/2 + 1/(2S), solved for B."""
    found = []
    for _ in range(200):
        divisor = int(_rng.integers(2**23, 2**24)) | 1
        b = pow(2**31, -1, divisor) % divisor  # 2^31 B = 1 (mod S): beside a half
        if b >= 2**23:
            found.append((np.array([float(b) * 2.0**30], F), F(1), np.asarray(divisor, F)))
    return found


bias_ties = [(np.array([(n + 0.5) for n in range(-9, 9)], F), F(1), np.asarray(1, F))]
overflowing = [(F(1e-8), float(b), F(x)) for b, x in _rng.lognormal(3, size=(400, 2)).astype(F)]
underflowing = [(F(2.0**-100), 0.0, F(2.0**-40))]
fitting = [(F(0.01), 1.0, F(0.01))]
zero_channels = [(b, F(x)) for b in (0.5, -3.0, 1e-12, 1e9) for x in (0.02, 1e-4)]


int8_codes = [(qu.quantize_symmetric(w, axis), w) for w, axis in weights]
wide_codes = [
    (qu.QuantizedTensor(codes, s, np.zeros((), np.int32), None),)
    for codes in [_rng.integers(-(2**31), 2**31, size=100).astype(np.int32)]
    for s in [np.asarray(0.1, F), np.asarray(0.003, F)]
]
shifted_codes = [(replace(qu.ort_weight(w), codes=qu.ort_weight(w).codes),) for w, _ in skewed]
products = [(F(x), np.asarray([w], F)) for x, w in _rng.lognormal(size=(50, 2))]

symmetric = qu.quantize_symmetric


def q_again(back: Array, q: qu.QuantizedTensor) -> Array:
    return qu.quantize_with_scale(back, q.scale, q.axis).codes


def truncated(back: Array, q: qu.QuantizedTensor) -> Array:
    s = q.scale if q.axis is None else q.scale.reshape([-1 if i == q.axis else 1 for i in range(back.ndim)])
    return np.asarray(np.trunc(back / s), np.int8)


def coarser(q: qu.QuantizedTensor) -> qu.QuantizedTensor:
    """A bias at a scale that nobody chose for it."""
    return replace(q, codes=np.rint(q.codes / 3e6).astype(np.int32), scale=q.scale * F(3e6))


def first_for_all(w: Array, axis: int | None) -> qu.QuantizedTensor:
    return qu.quantize_with_scale(w, np.full(len(w), qu.symmetric_scale(np.abs(w[0]).max())), 0)


def never_raised(w_scale: Any, b: Any, x_scale: Any) -> Array:
    return np.asarray(w_scale)


FAULTS = [
    # scale
    Fault(
        "scale rounded to nearest",
        prop.scale_holds_the_largest,
        qu.symmetric_scale,
        lambda m: F(m / 127),
        largest,
    ),
    Fault(
        "scale rounded down",
        prop.scale_holds_the_largest,
        qu.symmetric_scale,
        lambda m: np.nextafter(qu.symmetric_scale(m), F(0)),
        largest,
    ),
    Fault(
        "scale rounded up always",
        prop.scale_holds_the_largest,
        qu.symmetric_scale,
        lambda m: np.nextafter(F(m / 127), F(np.inf)),
        largest,
    ),
    Fault(
        "scale of zero or subnormal",
        prop.scale_holds_the_largest,
        qu.symmetric_scale,
        lambda m: F(m / 127) if float(F(m / 127)) * 127 >= m else np.nextafter(F(m / 127), F(1)),
        smallest,
    ),
    # element
    Fault("truncation", prop.element_is_near, symmetric, quantizer(rint=np.trunc), weights),
    Fault(
        "subnormal scale to nearest",
        prop.element_is_near,
        symmetric,
        quantizer(scale=lambda m: np.maximum(F(m / F(127)), F(2.0**-149))),
        tiny,
    ),
    Fault(
        "code -128",
        prop.element_is_near,
        symmetric,
        quantizer(scale=lambda m: qu.symmetric_scale(m) * F(0.99)),
        weights,
    ),
    Fault("grid without zero", prop.element_is_near, symmetric, affine, with_zero),
    # ties
    Fault(
        "reciprocal",
        prop.same_codes_as_quantize_linear,
        symmetric,
        quantizer(steps=lambda w, s: w * (F(1) / s)),
        ties,
    ),
    Fault("half away from zero", prop.same_codes_as_quantize_linear, symmetric, quantizer(rint=half_away), ties),
    Fault(
        "half up",
        prop.same_codes_as_quantize_linear,
        symmetric,
        quantizer(rint=lambda steps: np.floor(steps + F(0.5))),
        ties,
    ),
    Fault(
        "zero point added before rounding",
        prop.same_codes_as_quantize_linear,
        lambda w, axis: qu.ort_weight(w),
        zero_point_before_rounding,
        skewed,
    ),
    # dequantize
    Fault(
        "product in float64",
        prop.same_values_as_dequantize_linear,
        qu.dequantize,
        lambda q: qu.dequantize(q, np.float64).astype(F),
        wide_codes,
    ),
    Fault(
        "zero point forgotten",
        prop.same_values_as_dequantize_linear,
        qu.dequantize,
        lambda q: q.codes.astype(F) * q.scale,
        shifted_codes,
    ),
    Fault(
        "zero point scaled apart",
        prop.same_values_as_dequantize_linear,
        qu.dequantize,
        lambda q: q.codes.astype(F) * q.scale - q.zero_point.astype(F) * q.scale,
        shifted_codes,
    ),
    # idempotence
    Fault("truncated again", prop.codes_are_stable, q_again, truncated, int8_codes),
    # bias
    Fault(
        "float32 division",
        prop.bias_is_nearest,
        qu.quantize_bias,
        biaser(steps=lambda b, s: b / s),
        biases(20, 2**24, 2**30),
    ),
    Fault(
        "float64 division alone",
        prop.bias_is_nearest,
        qu.quantize_bias,
        biaser(),
        doubtful_biases(),
    ),
    Fault(
        "exact product for a scale",
        prop.bias_is_nearest,
        qu.quantize_bias,
        biaser(steps=lambda b, s: b / s, scale=lambda x, w: np.asarray(float(x) * w.astype(float))),
        biases(20, 2**24, 2**30),
    ),
    Fault("bias half away", prop.bias_is_nearest, qu.quantize_bias, biaser(rint=half_away), bias_ties),
    Fault("bias truncated", prop.bias_is_nearest, qu.quantize_bias, biaser(rint=np.trunc), biases(1, 0, 100)),
    # overflow
    Fault("one count short", prop.bias_fits, qu.raise_for_bias, raised_once, overflowing),
    Fault("not raised", prop.bias_fits, qu.raise_for_bias, never_raised, overflowing),
    Fault("bias scale subnormal", prop.bias_fits, qu.raise_for_bias, never_raised, underflowing),
    Fault("raised too far", prop.bias_fits, qu.raise_for_bias, doubled_when_raised, overflowing),
    Fault("raised without need", prop.bias_fits, qu.raise_for_bias, lambda w, b, x: w * F(1.0001), fitting),
    # zero channel
    Fault(
        "zero channel at scale 1",
        prop.zero_channel_serves_its_bias,
        qu.quantize_unit,
        unit_with(bias=coarser),
        zero_channels,
    ),
    # accumulator
    Fault(
        "2^31",
        prop.depth_is_the_largest,
        qu.accumulator_depth,
        lambda x, w: 2**31 // (x * w),
        [(255, 127), (255, 128), (128, 128)],
    ),
    Fault(
        "codes to -128 overlooked",
        prop.depth_is_the_largest,
        qu.accumulator_depth,
        lambda x, w: qu.accumulator_depth(x, 127),
        [(255, 128)],
    ),
    # metamorphic
    Fault(
        "half up is not odd",
        prop.follows_its_input,
        symmetric,
        quantizer(rint=lambda steps: np.floor(steps + F(0.5))),
        [(np.append(halves, F(127))[None], 1, [0])],
    ),
    Fault("one scale for all", prop.follows_its_input, symmetric, first_for_all, channels),
    Fault(
        "epsilon added to the scale",
        prop.follows_its_input,
        symmetric,
        quantizer(scale=lambda m: qu.symmetric_scale(m) + F(1e-3)),
        channels,
    ),
    # existing scales
    Fault("any scale is right", prop.right_bias_scale, qu.bias_is_right, lambda s, x, w: True, products),
    Fault(
        "the runtime's tolerance of 1 %",
        prop.right_bias_scale,
        qu.bias_is_right,
        lambda s, x, w: bool(np.all(np.abs(s - x * w) <= 1e-6 + 0.01 * x * w)),
        products,
    ),
    Fault(
        "equal to the exact product only",
        prop.right_bias_scale,
        qu.bias_is_right,
        lambda s, x, w: bool(np.all(s.astype(float) == float(x) * w.astype(float))),
        products,
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fault_is_found(fault: Fault) -> None:
    fault.check()
