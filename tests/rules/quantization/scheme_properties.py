"""What must hold under every scheme: functions that judge an implementation given to them, as in `properties`.

The judge is exact arithmetic. A quantizer is a function (w, axis, scheme, moments) -> QuantizedTensor; w is [C, K],
or has a kernel, with its output channels along axis.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rules.quantization import InputMoments, QuantizedTensor, Scheme, dequantize, element_bound
from tests.rules.quantization.properties import TINY, exact

Array = NDArray[Any]
Quantizer = Callable[[Array, int | None, Scheme, InputMoments | None], QuantizedTensor]

UNIT = {"float32": Fraction(1, 2**24), "float16": Fraction(1, 2**11), "bfloat16": Fraction(1, 2**8)}


def steps(q: QuantizedTensor) -> list[int]:
    return [int(s) for s in (q.codes.astype(int) - q.spread(q.zero_point).astype(int)).reshape(-1)]


def scales(q: QuantizedTensor) -> list[Fraction]:
    return exact(np.broadcast_to(q.spread(q.scale), q.codes.shape).astype(np.float64))


def elements_are_near(
    quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None
) -> None:
    """Items 1 to 6 and 16: codes in range, one of the two neighbours (the nearer one without moments), zero exact.

    |w - w'| <= s (s/2 for nearest) + u |w| + v |q| s with u the rounding of the division and v that of the scale's
    type.
    """
    q = quantize(w, axis, scheme, moments)
    low, high = scheme.code_range
    assert q.codes.dtype == scheme.dtype
    assert q.codes.size == 0 or (low <= int(q.codes.min()) and int(q.codes.max()) <= high)
    reach = Fraction(1, 2) if moments is None or scheme.rounding == "nearest" else 1
    u, v = UNIT["float32"], UNIT[scheme.scale_type]
    least = Fraction(1, 2**25) if scheme.scale_type == "float16" else 0
    back = exact(dequantize(q).astype(np.float64))
    for value, got, step, s in zip(exact(w), back, steps(q), scales(q), strict=True):
        assert s >= (TINY if scheme.scale_type != "float16" else Fraction(1, 2**24))
        rounded = v if abs(step) <= 1 / v else 2 * v + v * v  # the integer is rounded to the type too
        assert abs(value - got) <= reach * s + u * abs(value) + rounded * abs(step) * s + least
        assert value != 0 or (got == 0 and step == 0)
    if reach != 1:
        for value, got, bound in zip(exact(w), back, exact(element_bound(w, q)), strict=True):
            assert abs(value - got) <= bound


def objective(values: list[Fraction], codes: list[int], s: Fraction, moments: InputMoments) -> Fraction:
    """d^2 sum e^2 + m^2 (sum e)^2 of one channel, in the units of the weights."""
    errors = [value - code * s for value, code in zip(values, codes, strict=True)]
    d, m = Fraction(moments.deviation), Fraction(moments.mean)
    return d**2 * sum((e * e for e in errors), Fraction(0)) + m**2 * sum(errors, Fraction(0)) ** 2


def balanced_is_no_worse(balance: Callable[..., None], w: Array, scale: Array, moments: InputMoments) -> None:
    """Item 16, w [R, L, k] held by scale [R]: per channel no worse than nearest, and only the two neighbours."""
    position = w / scale[:, None, None]
    codes = np.rint(position)
    balance(position, codes, moments)
    for row, s, found, places in zip(w, exact(scale), codes, position, strict=True):
        nearest = [int(c) for c in np.rint(places).reshape(-1)]
        taken = [int(c) for c in found.reshape(-1)]
        for place, code in zip(exact(places), taken, strict=True):
            assert abs(place - code) < 1
            assert abs(code) <= 127
        assert objective(exact(row), taken, s, moments) <= objective(exact(row), nearest, s, moments)


def sums_come_near(balance: Callable[..., None], position: Array, moments: InputMoments) -> None:
    """Item 16: with a mean that rules, the sum of errors of a channel comes to within half a step."""
    codes = np.rint(position)
    balance(position, codes, moments)
    sums = (position.astype(np.float64) - codes).reshape(len(position), -1).sum(axis=1)
    assert np.abs(sums).max() <= 0.5 + 1e-3


def search_is_no_worse(quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme, plain: Scheme) -> None:
    """Item 13: the squared error of a search is at most that of min-max, per scale."""
    found, base = quantize(w, axis, scheme, None), quantize(w, axis, plain, None)
    errors = []
    for q in (found, base):
        per = np.zeros(q.codes.shape, object)
        flat = [(value - step * s) ** 2 for value, step, s in zip(exact(w), steps(q), scales(q), strict=True)]
        per.reshape(-1)[:] = flat
        others = tuple(i for i in range(w.ndim) if axis is None or i != axis)
        errors.append(np.atleast_1d(per.sum(axis=others)))
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= theirs * (1 + Fraction(1, 2**30))


def grid_is_found(find: Callable[..., Array], codes: Array, scale: np.float32, reach: int, span: int | None) -> None:
    """Item 14: rows of float32(code * scale) come back bit for bit from the scale that is found."""
    rows = codes.astype(np.float32) * scale
    found = find(rows, reach, span)
    assert found.dtype == np.float32
    assert np.all(found > 0)
    back = np.rint(rows / found[:, None]).astype(np.float32) * found[:, None]
    np.testing.assert_array_equal(back, rows)
    assert np.abs(np.rint(rows / found[:, None])).max() <= reach


def no_grid_is_seen(find: Callable[..., Array], rows: Array, reach: int, span: int | None) -> None:
    """Item 14: on weights that lie on none."""
    assert not find(rows, reach, span).any()


def signs_differ_by_the_middle(quantize: Quantizer, w: Array, axis: int | None, moments: InputMoments | None) -> None:
    """Item 15: the uint8 form is the int8 form plus 128, code for code, at the same scale."""
    signed = quantize(w, axis, Scheme(), moments)
    unsigned = quantize(w, axis, Scheme(weight_type="uint8"), moments)
    np.testing.assert_array_equal(unsigned.codes.astype(int), signed.codes.astype(int) + 128)
    np.testing.assert_array_equal(unsigned.zero_point, 128)
    np.testing.assert_array_equal(unsigned.scale, signed.scale)


def codes_come_back(quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme) -> None:
    """Item 7: what was quantized is on a grid, so quantizing it again loses nothing."""
    values = dequantize(quantize(w, axis, scheme, None))
    again = dequantize(quantize(values, axis, scheme, None))
    np.testing.assert_array_equal(again, values)


def pairs_do_not_saturate(quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme) -> None:
    """Reduced range: no two products of 255 and a code (of signed storage) leave int16."""
    q = quantize(w, axis, scheme, None)
    codes = (
        sorted((abs(int(c)) for c in q.codes.reshape(-1)), reverse=True)[:2]
        if scheme.is_signed
        else [max((abs(s) for s in steps(q)), default=0)] * 2
    )
    assert 255 * sum(codes) <= 2**15 - 1
