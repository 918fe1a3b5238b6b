"""What must hold of a unit: its bias, its accumulator, its output, and what ONNX Runtime would have made of it.

As in `scheme_properties` the implementation is an argument and the judge exact arithmetic. A unit is quantized by a
function with the arguments of `quantize_unit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto
from onnxruntime.quantization.quant_utils import quantize_data

import rules.quantization as qu
from rules.quantization import BiasOverflow, BiasValues, InputMoments, QuantizedTensor, QuantizedUnit, Scheme
from rules.quantization.scales import smallest_scale
from tests.rules.quantization.exact import Array, fixed, fractions, integers
from tests.rules.quantization.scheme_properties import objectives, scales, steps

Quantize = Callable[..., QuantizedUnit]
LIMIT = 2**31 - 1


# -- items 5, 8 and 10: the bias and the accumulator -----------------------------------------------


def bias_belongs_to_its_unit(
    quantize: Quantize, w: Array, b: Array | BiasValues, x_scale: Any, axis: int, scheme: Scheme, beta: float = 1.0
) -> None:
    """Item 8: s_b = the product of the scales in their type, normal; the code is rounded once, from the exact value.

    So |b - q s_b| <= s_b / 2. Of a channel without weights the bias comes back within 2^-21, where normal scales allow.
    """
    unit = quantize(w, b, x_scale, axis=axis, scheme=scheme, inputs=InputMoments(1.0, 1.0), beta=beta)
    weight, bias = unit.weight, unit.bias
    assert bias is not None
    product = [Fraction(float(s)) * Fraction(float(x_scale)) for s in weight.scale.reshape(-1)]
    in_type = np.array([float(p) for p in product]).astype(weight.scale.dtype)
    np.testing.assert_array_equal(bias.scale.reshape(-1), in_type)
    assert np.all(bias.scale.astype(float) >= smallest_scale(bias.scale.dtype))
    assert bias.codes.dtype == np.int32
    values = b if isinstance(b, BiasValues) else BiasValues.of_floats(b)
    unit_of = np.broadcast_to(values.unit, values.number.shape)
    exact = [n * u * Fraction(beta) for n, u in zip(fractions(values.number), fractions(unit_of), strict=True)]
    step = fractions(np.broadcast_to(bias.scale.astype(float), bias.codes.shape))
    for value, code, s in zip(exact, bias.codes.reshape(-1), step, strict=True):
        assert int(code) == round(value / s)
        assert abs(value - int(code) * s) <= s / 2
    idle = np.atleast_1d(~np.asarray(w != 0).any(axis=tuple(i for i in range(w.ndim) if i != axis)))
    if scheme.granularity == "channel" and scheme.scale_type == "float32" and not scheme.power_of_two:
        least = Fraction(2) ** -126 / 2 * max(Fraction(1), Fraction(float(x_scale)))
        for value, code, s, of_zeros in zip(exact, bias.codes.reshape(-1), step, idle, strict=True):
            assert not of_zeros or abs(value - int(code) * s) <= max(abs(value) / 2**21, least)


def accumulator_has_room(quantize: Quantize, w: Array, b: Array, x_scale: Any, axis: int, scheme: Scheme) -> None:
    """Item 10: 255 sum |q - z| + |bias| fits int32 in every channel; codes of 8 bits at most."""
    unit = quantize(w, b, x_scale, axis=axis, scheme=scheme, inputs=InputMoments(1.0, 1.0))
    assert unit.bias is not None
    rows = np.moveaxis(steps(unit.weight), axis, 0).reshape(w.shape[axis], -1)
    largest = 255 * np.abs(rows).sum(axis=1) + np.abs(integers(unit.bias.codes))
    assert np.all(largest <= LIMIT)


def coded_values_are_exact(
    of_codes: Callable[..., BiasValues], codes: Array, scale: Array, zero: Array, axis: int | None
) -> None:
    """Item 8: number * unit is (code - zero point) * scale, to the last bit."""
    values = of_codes(codes, scale, zero, axis=axis)
    spread = [
        v if np.ndim(v) == 0 else v.reshape([-1 if i == axis else 1 for i in range(codes.ndim)]) for v in (scale, zero)
    ]
    wanted = (integers(codes) - integers(spread[1])) * fixed(spread[0])
    one = fixed(1.0).item()
    assert np.all(fixed(values.number) * fixed(values.unit) == wanted * one)


def refused_without_room(
    quantize: Callable[..., QuantizedTensor], bias: Array, codes: Array, zero: Any, axis: int, repeat: int
) -> None:
    """Item 10: bias codes [M] of a weight that is there already are refused exactly if the accumulator may overflow.

    codes: of the weight, with its output channels along axis, in repeat groups along axis 0 where that is 1.
    """
    values = BiasValues.of_codes(bias, np.float32(1), axis=None)
    steps = integers(codes) - int(zero)
    grouped = steps.reshape(repeat, -1, *codes.shape[1:]) if axis == 1 else steps[None]
    sums = np.abs(grouped).sum(axis=tuple(i for i in range(grouped.ndim) if i not in (0, axis + 1))).reshape(-1)
    fits = bool(np.all(255 * sums + np.abs(integers(bias)) <= LIMIT))
    scale = np.ones(codes.shape[axis], np.float32)
    try:
        made = quantize(values, np.float32(1), scale, codes=codes, zero_point=zero, axis=axis, repeat=repeat)
    except BiasOverflow:
        assert not fits
    else:
        assert fits
        np.testing.assert_array_equal(made.codes, bias)


# -- item 9: the output ----------------------------------------------------------------------------


def output_is_near(
    quantize: Quantize,
    w: Array,
    b: Array,
    x_codes: Array,
    x_scale: Any,
    x_zero: int,
    scheme: Scheme,
    moments: InputMoments | None,
) -> None:
    """Item 9: w [C, K], b [C], uint8 codes of x [K]: |y - y'| <= the bound for that x <= the bound for any x.

    A search that clips adds what lies beyond the last code.
    """
    unit = quantize(w, b, x_scale, axis=0, scheme=scheme, inputs=moments)
    assert unit.bias is not None
    balanced = moments is not None and scheme.rounding == "balanced"
    element = (qu.balanced_bound if balanced else qu.element_bound)(w, unit.weight)
    if scheme.search == "mse":
        element = element + beyond(w, unit.weight, scheme)
    bias = qu.bias_bound(unit.bias)
    x = (x_codes.astype(np.int32) - x_zero).astype(np.float32) * x_scale
    given = qu.output_bound(element, bias, np.abs(x))
    free = qu.output_bound_any_input(element, bias, x_scale=float(x_scale), x_zero_point=x_zero, x_min=0, x_max=255)
    one = fixed(1.0).item()
    y = fixed(w) @ fixed(x) + fixed(b) * one
    z = fixed(qu.dequantize(unit.weight)) @ fixed(x) + fixed(qu.dequantize(unit.bias)) * one
    assert np.all(np.abs(y - z) <= fixed(given) * one)
    assert np.all(given <= free)


def beyond(w: Array, q: QuantizedTensor, scheme: Scheme) -> NDArray[np.float64]:
    """How far each weight lies outside of what the codes reach, a hair upwards."""
    first, last = (limit - q.spread(q.zero_point).astype(float) for limit in scheme.code_range)
    s, value = q.spread(q.scale).astype(float), w.astype(float)
    return np.asarray(np.maximum(np.maximum(value - last * s, first * s - value), 0) * (1 + 2.0**-49))


# -- item 16: no worse than ONNX Runtime -----------------------------------------------------------


def peers(w: Array, *, per_tensor: bool, reduced: bool) -> Iterator[tuple[str, QuantizedTensor]]:
    """What ONNX Runtime makes of float32 w [C, L, k]: its optimizer, and its quantizer in every form of 8 bits."""
    if not reduced:
        yield "optimizer", qu.ort_weight(w)
    for kind, signed in ((TensorProto.INT8, True), (TensorProto.UINT8, False)):
        for symmetric in (True, False):
            for less in (True,) if reduced else (False, True):
                name = f"{'int8' if signed else 'uint8'}, symmetric {symmetric}, reduced {less}"
                zero, scale, codes = quantize_data(w.reshape(-1), kind, symmetric, less)
                yield name, _tensor(codes.reshape(w.shape), scale, zero, None)
                if not per_tensor:
                    parts = [quantize_data(row.reshape(-1), kind, symmetric, less) for row in w]
                    zeros, of, rows = (np.array([p[i] for p in parts]) for i in range(3))
                    yield f"{name}, per channel", _tensor(rows.reshape(w.shape), of, zeros, 0)


def _tensor(codes: Array, scale: Array, zero: Array, axis: int | None) -> QuantizedTensor:
    shape = () if axis is None else (len(codes),)
    return QuantizedTensor(
        codes, np.asarray(scale, np.float32).reshape(shape), np.asarray(zero, codes.dtype).reshape(shape), axis
    )


def no_worse_than_peers(quantize: Quantize, w: Array, scheme: Scheme, moments: InputMoments) -> None:
    """Item 16: w [C, L, k]: per channel the objective is at most that of each scheme whose codes ours can hold.

    A symmetric weight holds those whose distance from the zero point is no more than its own reach, one with zero
    points those that span no more than its own. With one scale for all channels, the sum of their objectives counts. To
    within what float32 knows of the sums: K max|w| 2^-22.
    """
    q = quantize(w, None, np.float32(1), axis=0, scheme=scheme, inputs=moments).weight
    whole = scheme.granularity == "tensor"
    ours = measured(w, q, moments, whole)
    depth = w[0].size if len(w) else 0
    slack = depth * np.abs(w.astype(np.float64)).max(axis=(1, 2), initial=0) * 2.0**-22
    slack = np.array([np.sqrt(np.square(slack).sum())]) if whole else slack
    for name, peer in peers(w, per_tensor=whole, reduced=scheme.reduce_range):
        taken = steps(peer).reshape(1 if whole else len(w), -1)
        low, high = taken.min(axis=1, initial=0), taken.max(axis=1, initial=0)
        held = np.asarray(np.maximum(-low, high) <= scheme.reach if scheme.symmetric else high - low <= scheme.span)
        theirs = measured(w, peer, moments, whole)
        worse = ours > theirs * (1 + 2.0**-30) + slack
        assert not np.any(worse & held), name


def measured(w: Array, q: QuantizedTensor, moments: InputMoments, whole: bool) -> NDArray[np.float64]:
    """The square root of the exact objective of each channel, or of the sum of all."""
    found = objectives(fixed(w) - steps(q) * scales(q), moments)[1]
    one = fixed(1.0).item() ** 4
    return np.sqrt([float(Fraction(v, one)) for v in ([sum(found)] if whole else found)])
