"""Each property of units and guards fails on an implementation whose guard is taken out, as in
`test_properties_can_fail`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rules.quantization as qu
from rules.quantization import BiasValues, InputMoments, NotQuantizable, PowerOfTwoBias, Scheme
from rules.quantization.bias import quantize_bias_values
from tests.rules.quantization import guard_properties as guard
from tests.rules.quantization import unit_properties as prop
from tests.rules.quantization.faults import Fault
from tests.rules.quantization.schemes import CENTRED, COMMON, RELU

Array = NDArray[Any]
F = np.float32
_rng = np.random.default_rng(2)
PLAIN = Scheme()
NEAREST = Scheme(search="minmax", rounding="nearest")
LIMIT = 2**31 - 1


def unit_with(**change: Callable[[Any], Any]) -> prop.Quantize:
    """The right unit with its weight or its bias changed."""

    def quantize(*args: Any, **keywords: Any) -> qu.QuantizedUnit:
        unit = qu.quantize_unit(*args, **keywords)
        return replace(unit, **{name: f(getattr(unit, name)) for name, f in change.items()})

    return quantize


def bias_from(values: Callable[[Any, float], BiasValues], limit: int = LIMIT) -> prop.Quantize:
    """The right weight, and a bias made of other values, or up to another limit, at its scale."""

    def quantize(w: Array, b: Any, x_scale: Any, *, beta: float = 1.0, **keywords: Any) -> qu.QuantizedUnit:
        unit = qu.quantize_unit(w, b, x_scale, beta=beta, **keywords)
        made = quantize_bias_values(values(b, beta), x_scale, unit.weight.scale, axis=unit.weight.axis, limit=limit)
        return replace(unit, bias=made)

    return quantize


def as_floats(b: Any, beta: float, kind: Any) -> BiasValues:
    """Rounded to floats before it is quantized."""
    if isinstance(b, BiasValues):
        return BiasValues.of_floats((b.number * b.unit).astype(kind).astype(float) * beta)
    return BiasValues.of_floats(b).times(beta)


def with_scheme(**options: Any) -> prop.Quantize:
    """As if the scheme had said something else."""

    def quantize(*args: Any, scheme: Scheme, **keywords: Any) -> qu.QuantizedUnit:
        return qu.quantize_unit(*args, scheme=replace(scheme, **options), **keywords)

    return quantize


def unraised(w: Array, b: Array, x_scale: Any, *, axis: int, scheme: Scheme, **keywords: Any) -> qu.QuantizedUnit:
    """The weight's scale as it is without a bias, which gets all of int32."""
    unit = qu.quantize_unit(w, None, x_scale, axis=axis, scheme=scheme, **keywords)
    steps = np.rint(b / qu.bias_scale(x_scale, unit.weight.scale).astype(float))
    codes = np.clip(steps, -LIMIT, LIMIT).astype(np.int32)
    scale = qu.bias_scale(x_scale, unit.weight.scale)
    return replace(unit, bias=qu.QuantizedTensor(codes, scale, np.zeros(scale.shape, np.int32), unit.weight.axis))


def without_moments(*args: Any, inputs: Any, **keywords: Any) -> qu.QuantizedUnit:
    return qu.quantize_unit(*args, inputs=None, **keywords)


def with_moments(moments: InputMoments) -> prop.Quantize:
    """Balanced for another input."""
    return lambda *args, inputs, **keywords: qu.quantize_unit(*args, inputs=moments, **keywords)


# Examples.


def biases(count: int, low: float, high: float) -> list[tuple[Any, ...]]:
    found = []
    for _ in range(count):
        w, x_scale = _rng.normal(size=(3, 6)).astype(F), F(_rng.lognormal(-4))
        steps = _rng.uniform(low, high, size=3) * _rng.choice([-1, 1], size=3)
        found.append((w, (steps * float(x_scale) / 127).astype(F), x_scale, 0, NEAREST))
    return found


def coded_biases(count: int, beta: float = 1.0) -> list[tuple[Any, ...]]:
    found = []
    for _ in range(count):
        codes = _rng.integers(2**29, 2**30, size=3).astype(np.int32)
        old = F(_rng.uniform(1, 2) * 2.0**-9)
        values = BiasValues.of_codes(codes, old, np.int32(_rng.integers(2**20)), axis=None)
        found.append((_rng.normal(size=(3, 6)).astype(F) * F(127), values, F(1 / 64), 0, NEAREST, beta))
    return found


def near_ties(count: int) -> list[tuple[Any, ...]]:
    """code * old = n + 1/2 + 2^-25 steps, n even: 55 bits, of which float64 drops the last, and with it makes a tie."""
    found: list[tuple[Any, ...]] = []
    while len(found) < count:
        mantissa = int(_rng.integers(2**23, 2**24)) | 1
        code = (2**24 + 1) * pow(mantissa, -1, 2**25) % 2**25 + int(_rng.integers(40, 64)) * 2**25
        if (code * mantissa) >> 25 & 1 == 0 and code * mantissa >= 2**54:
            values = BiasValues.of_codes(np.full(3, code, np.int64), F(np.ldexp(mantissa, -31)), axis=None)
            found.append((np.full((3, 2), 127, F), values, F(2.0**-6), 0, NEAREST))
    return found


overflowing = [(_rng.normal(size=(3, 6)).astype(F) * F(1e-6), np.array([1e3, -1e4, 1], F), F(2.0**-10), 0, PLAIN)]
zeros = [(np.zeros((2, 4), F), np.array([0.3, -1e-7], F), F(0.02), 0, PLAIN)]


some_codes: Array = np.array([2**31 - 1, 123456789, -(2**31), -5], np.int32)
coded = [(some_codes, F(0.1), np.int32(zero), None) for zero in (-(2**31), 12345)]


def room(kind: type, zero: int, sums: list[int], repeat: int, aside: int) -> tuple[Any, ...]:
    """A ConvTranspose [4, 1, 2] whose outputs have these sums; the last one's bias fills the accumulator, but for so
    much."""
    codes: Array = np.full((4, 1, 2), zero, kind)
    for group, total in enumerate(sums):
        codes[group * 4 // repeat, 0, 0] = zero + total
    bias = np.zeros(repeat, np.int64)
    bias[-1] = 2**31 - 1 - 255 * sums[-1] - aside
    return bias, codes, kind(zero), 1, repeat


rooms = [
    room(kind, zero, sums, len(sums), aside)
    for kind, zero in ((np.int8, 0), (np.uint8, 100), (np.int8, -20))
    for sums in ([90], [5, 120])
    for aside in (0, -1)
]


def outputs(count: int, scheme: Scheme, moments: InputMoments | None) -> list[tuple[Any, ...]]:
    """Inputs of one element at a time: nothing makes up for the error of a weight."""
    found: list[tuple[Any, ...]] = []
    for i in range(count):
        w, b = _rng.normal(size=(3, 6)).astype(F), _rng.normal(size=3).astype(F)
        x = np.where(np.arange(6) == i % 6, 255, 0).astype(np.uint8)
        found.append((w, b, x, F(0.02), 0, scheme, moments))
    return found


nearest_outputs, balanced_outputs = outputs(40, NEAREST, None), outputs(40, PLAIN, COMMON)
clipped_outputs = outputs(40, replace(NEAREST, weight_type="int4", search="mse"), None)
small = [(_rng.normal(size=(40, 9, 1)).astype(F), PLAIN, m) for m in (RELU, CENTRED, COMMON)]
kernels = [(_rng.normal(size=(40, 2, 4)).astype(F), PLAIN, RELU)]
several: Array = np.random.default_rng(3).normal(size=(60, 2, 5, 1)).astype(F)
one_scale = [(w, Scheme(granularity="tensor"), RELU) for w in several]
skewed = [((_rng.random(size=(8, 20, 1)) + 1).astype(F), Scheme(symmetric=False), m) for m in (CENTRED, COMMON)]

ratio = (F(2.0**-14), np.asarray([2.0**-10], F), 1.0, 0, None)
small_scale = (F(2.0**-100), np.asarray([2.0**-40], F), 2.0**-130, 0, None)
folded = (F(2.0**-12), np.asarray([2.0**-11], F), 1.0, 255, np.array([-(2**31) + 5]))
fine = (F(0.02), np.asarray([0.01, 0.02], F), 0.05, 128, np.array([1000, -3]))
wide = (F(0.02), np.asarray([0.01], F), 0.05, 0, np.array([2**31 + 1]))
guarded = [ratio, small_scale, folded, fine, wide]


def guards(**change: Any) -> Callable[..., str | None]:
    """The right guard, looking at something else."""

    def refuses(x: Any, w: Array, y: float, zero: int, codes: Any) -> str | None:
        given = {"x": x, "w": w, "y": y, "zero": zero, "codes": codes}
        given |= {name: f(given) for name, f in change.items()}
        return qu.htp_refuses(given["x"], given["w"], given["y"], given["zero"], given["codes"])

    return refuses


def shifted(change: Callable[[PowerOfTwoBias], PowerOfTwoBias]) -> Callable[..., PowerOfTwoBias]:
    return lambda *args: change(qu.power_of_two_bias(*args))


def doubled(made: PowerOfTwoBias) -> PowerOfTwoBias:
    bias = made.bias
    halved = np.rint(bias.codes / 2).astype(np.int8)
    return replace(made, bias=replace(bias, codes=halved, scale=bias.scale * F(2)), shift_bias=made.shift_bias + 1)


def unlimited(b: Array, x: float, w: float, y: float) -> PowerOfTwoBias:
    """Whatever shift the bias wants."""
    cut = int(np.log2(y / (x * w)))
    largest = float(np.abs(b).max(initial=0))
    scale = 2.0 ** np.ceil(np.log2(largest / 127)) if largest else x * w
    codes = np.rint(b / scale).astype(np.int8)
    bias = qu.QuantizedTensor(codes, np.asarray(scale, F), np.zeros((), np.int8), None)
    return PowerOfTwoBias(bias, cut, int(np.log2(scale / (x * w))))


def never_refused(*args: Any) -> PowerOfTwoBias:
    try:
        return qu.power_of_two_bias(*args)
    except NotQuantizable:
        return qu.power_of_two_bias(args[0] * 0, 1.0, 1.0, 1.0)


shifts = [
    (np.array(b, F), *p) for b in ([0.3, -1.7], [100.0], [1e-9], [0.0]) for p in ((5, 7, 4), (3, 3, 2), (6, 6, 0))
]
out_of_range = [(np.array([1e9], F), 0, 0, 0), (np.ones(1, F), 0, 0, 3), (np.ones(1, F), 10, 10, 0)]

FAULTS = [
    # bias
    Fault("float32 in between", prop.bias_belongs_to_its_unit, qu.quantize_unit,
          bias_from(lambda b, beta: as_floats(b, beta, F)), coded_biases(20)),
    Fault("float64 in between", prop.bias_belongs_to_its_unit, qu.quantize_unit,
            bias_from(lambda b, beta: as_floats(b, beta, float)), near_ties(20)),
    Fault("beta forgotten", prop.bias_belongs_to_its_unit, qu.quantize_unit,
          bias_from(lambda b, beta: b), coded_biases(2, 0.5)),
    Fault("beta's rounding", prop.bias_belongs_to_its_unit, qu.quantize_unit,
          bias_from(lambda b, beta: b.times(float(np.float16(beta)))), coded_biases(5, float(F(0.1)))),
    Fault("bias of another scale", prop.bias_belongs_to_its_unit, qu.quantize_unit,
          unit_with(bias=lambda q: replace(q, scale=q.scale * F(2))), biases(5, 0, 1e6)),
    Fault("bias truncated", prop.bias_belongs_to_its_unit, qu.quantize_unit,
          unit_with(bias=lambda q: replace(q, codes=q.codes - np.sign(q.codes))), biases(5, 5, 1e6)),
    Fault("zero channel at a scale of no bias", prop.bias_belongs_to_its_unit, qu.quantize_unit,
          lambda w, b, x, **k: qu.quantize_unit(np.where(np.arange(4) == 3, F(1), w), b, x, **k), zeros),
    Fault("the zero point of a bias forgotten", prop.coded_values_are_exact, BiasValues.of_codes,
          lambda c, s, z, axis: BiasValues.of_codes(c, s, axis=axis), coded),
    Fault("a bias multiplied in float32", prop.coded_values_are_exact, BiasValues.of_codes,
          lambda c, s, z, axis: BiasValues.of_floats((c.astype(np.int64) - z).astype(F) * s), coded),
    Fault("a bias multiplied in float64", prop.coded_values_are_exact, BiasValues.of_codes,
          lambda c, s, z, axis: BiasValues.of_floats((c.astype(np.int64) - z) * s.astype(float)), coded),
    Fault("int32 subtraction wraps", prop.coded_values_are_exact, BiasValues.of_codes,
          lambda c, s, z, axis: BiasValues.of_codes(c - z, s, axis=axis), coded),
    # accumulator
    Fault("the products forgotten", prop.refused_without_room, qu.quantize_bias_for,
          lambda *a, codes, **k: qu.quantize_bias_for(*a, **k), rooms),
    Fault("the products' zero point forgotten", prop.refused_without_room, qu.quantize_bias_for,
          lambda *a, zero_point, **k: qu.quantize_bias_for(*a, **k), rooms),
    Fault("the groups forgotten", prop.refused_without_room, qu.quantize_bias_for,
          lambda *a, codes, repeat, **k: qu.quantize_bias_for(*a, codes=codes[:2], repeat=repeat, **k), rooms),
    Fault("a bias of all int32", prop.accumulator_has_room, qu.quantize_unit, unraised, overflowing),
    # output
    Fault("weight clipped by a smaller scale", prop.output_is_near, qu.quantize_unit,
          unit_with(weight=lambda q: replace(q, codes=np.clip(q.codes, -110, 110))), nearest_outputs),
    Fault("bias moved", prop.output_is_near, qu.quantize_unit,
          unit_with(bias=lambda q: replace(q, codes=q.codes * 2)), nearest_outputs),
    Fault("channels exchanged", prop.output_is_near, qu.quantize_unit,
          unit_with(weight=lambda q: replace(q, scale=q.scale[::-1])), nearest_outputs),
    Fault("balanced where the bound is nearest's", prop.output_is_near, qu.quantize_unit,
          lambda *a, inputs, scheme, **k: qu.quantize_unit(*a, inputs=COMMON, scheme=PLAIN, **k), nearest_outputs),
    Fault("two codes away", prop.output_is_near, qu.quantize_unit,
          unit_with(weight=lambda q: replace(q, codes=np.clip(q.codes + 2, -127, 127))), balanced_outputs),
    Fault("clipped further than the search says", prop.output_is_near, qu.quantize_unit,
          unit_with(weight=lambda q: replace(q, codes=np.clip(q.codes, -5, 5))), clipped_outputs),
    # no worse than ONNX Runtime
    Fault("scales not fitted", prop.no_worse_than_peers, qu.quantize_unit, with_scheme(search="grid"), small),
    Fault("scales not fitted to kernels", prop.no_worse_than_peers, qu.quantize_unit,
          with_scheme(search="grid"), kernels),
    Fault("nearest", prop.no_worse_than_peers, qu.quantize_unit, with_scheme(rounding="nearest"), small),
    Fault("nothing known of the input", prop.no_worse_than_peers, qu.quantize_unit, without_moments, small),
    Fault("another input", prop.no_worse_than_peers, qu.quantize_unit, with_moments(CENTRED), small),
    Fault("one scale, not fitted", prop.no_worse_than_peers, qu.quantize_unit, with_scheme(search="grid"), one_scale),
    Fault("no zero points", prop.no_worse_than_peers, qu.quantize_unit,
          lambda *a, scheme, **k: qu.quantize_unit(*a, scheme=replace(scheme, symmetric=True), **k), skewed),
    # guards
    Fault("subnormal scales overlooked", guard.refuses_exactly, qu.htp_refuses,
          guards(x=lambda g: g["x"] if g["x"] > 2.0**-90 else F(2.0**-20)), guarded),
    Fault("the ratio to the output's scale overlooked", guard.refuses_exactly, qu.htp_refuses,
          guards(y=lambda g: min(g["y"], float(g["x"]) * 4)), guarded),
    Fault("2^-24 itself allowed", guard.refuses_exactly, qu.htp_refuses,
          guards(y=lambda g: g["y"] * (1 - 2.0**-30)), guarded),
    Fault("the output's zero point overlooked", guard.refuses_exactly, qu.htp_refuses,
          guards(zero=lambda g: 0), guarded),
    Fault("the bias overlooked", guard.refuses_exactly, qu.htp_refuses, guards(codes=lambda g: None), guarded),
    Fault("the first channel for all", guard.refuses_exactly, qu.htp_refuses, guards(w=lambda g: g["w"][:1]),
          [(F(2.0**-14), np.array([1, 2.0**-10], F), 1.0, 0, None), *guarded]),
    # powers of two
    Fault("twice the scale", guard.shifts_exactly, qu.power_of_two_bias, shifted(doubled), shifts),
    Fault("codes truncated", guard.shifts_exactly, qu.power_of_two_bias,
          shifted(lambda m: replace(m, bias=replace(m.bias, codes=m.bias.codes - np.sign(m.bias.codes)))), shifts),
    Fault("any shift", guard.shifts_exactly, qu.power_of_two_bias, unlimited, shifts),
    Fault("no shift refused", guard.shifts_exactly, qu.power_of_two_bias, never_refused, out_of_range),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fault_is_found(fault: Fault) -> None:
    fault.check()
