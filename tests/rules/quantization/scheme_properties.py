"""What must hold under every scheme: functions that judge an implementation given to them, as in `properties`.

The judge is exact arithmetic. A quantizer is a function (w, axis, scheme, moments) -> QuantizedTensor; w is [C, K],
or has a kernel, with its output channels along axis; blocks lie along axis 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rules.quantization import InputMoments, QuantizedTensor, Scheme, balanced_bound, dequantize, element_bound
from rules.quantization.scales import smallest_scale
from tests.rules.quantization.exact import fixed, integers
from tests.rules.quantization.properties import same_codes_as_the_kernel

Array = NDArray[Any]
Quantizer = Callable[[Array, int | None, Scheme, InputMoments | None], QuantizedTensor]

BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
HALF_OF_LEAST = {"float16": fixed(2.0**-25).item()}


def steps(q: QuantizedTensor) -> Array:
    """Codes less their zero points, as Python integers, of the codes' shape."""
    return integers(q.codes.astype(np.int64) - q.spread(q.zero_point).astype(np.int64))


def scales(q: QuantizedTensor) -> Array:
    """The scale of each element, exactly."""
    return np.broadcast_to(q.spread(fixed(q.scale)), q.codes.shape)


def ends(q: QuantizedTensor, scheme: Scheme) -> tuple[Array, Array]:
    """The smallest and the largest step of each element."""
    zero = integers(np.broadcast_to(q.spread(q.zero_point), q.codes.shape))
    return scheme.code_range[0] - zero, scheme.code_range[1] - zero


def is_balanced(scheme: Scheme, moments: InputMoments | None) -> bool:
    return moments is not None and scheme.rounding == "balanced"


def elements_are_near(
    quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None
) -> None:
    """Items 1 to 4, 6 and 16: codes in range, one of the two neighbours (the nearer one without moments), zero exact.

    |w - w'| <= s (s/2 for nearest) + u |w| + v |q| s with u the rounding of the division and v that of the scale's
    type; beyond the last code, which only a search allows, w' is that code. The bounds of `bounds` are as good.
    """
    q = quantize(w, axis, scheme, moments)
    low, high = scheme.code_range
    assert q.codes.dtype == scheme.dtype
    assert q.codes.shape == w.shape
    assert q.codes.size == 0 or (low <= int(q.codes.min()) and int(q.codes.max()) <= high)
    assert np.all(q.scale.astype(float) >= smallest_scale(scheme.scale_dtype))
    back = dequantize(q)
    assert np.isfinite(back.astype(np.float64)).all()
    value, got, step, s = fixed(w), fixed(back), steps(q), scales(q)
    allowed = reach_of(value, step, s, scheme, moments)
    off = np.abs(value - got)
    clipped = np.zeros(w.shape, bool)
    if scheme.search == "mse":
        first, last = ends(q, scheme)
        clipped = ((step == first) & (value < first * s)) | ((step == last) & (value > last * s))
        beyond = np.abs(value - step * s) + rounding_of(step, s, scheme)
        allowed = np.where(clipped, np.maximum(allowed, beyond), allowed)
    assert np.all(off <= allowed)
    zero = value == 0
    assert not step[zero].any()
    bound = fixed((balanced_bound if is_balanced(scheme, moments) else element_bound)(w, q))
    assert np.all((off <= bound) | clipped)


def reach_of(value: Array, step: Array, s: Array, scheme: Scheme, moments: InputMoments | None) -> Any:
    """How far an element may be off: one step or half of one, and the roundings of quotient and product."""
    whole = s if is_balanced(scheme, moments) else s // 2
    return whole + (np.abs(value) >> 24) + 1 + rounding_of(step, s, scheme)


def rounding_of(step: Array, s: Array, scheme: Scheme) -> Any:
    """Of DequantizeLinear: the product is off by v |q| s, and |q| itself too where it has more bits than the type."""
    bits = BITS[scheme.scale_type]
    wide = np.abs(step) > 2**bits
    product = np.abs(step) * s
    once = (product >> bits) + 1
    return once + np.where(wide, once + (product >> 2 * bits), 0) + HALF_OF_LEAST.get(scheme.scale_type, 0)


def scales_are_the_smallest(quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme) -> None:
    """Items 2, 4 and 5: the smallest scale of its type (or power of two) that holds the range exactly, and no zero.

    The last code comes back finite, and where all is zero every code is the zero point.
    """
    q = quantize(w, axis, scheme, None)
    least = fixed(smallest_scale(scheme.scale_dtype)).item()
    assert np.isfinite((q.scale.astype(float) * scheme.span).astype(scheme.scale_dtype).astype(float)).all()
    value, spread = fixed(w), np.broadcast_to(q.spread(np.arange(q.scale.size).reshape(q.scale.shape)), w.shape)
    for i, s in enumerate(q.scale.reshape(-1)):
        own = value[spread == i]
        low, high = min(own.min(initial=0), 0), max(own.max(initial=0), 0)
        extent = max(-low, high) if scheme.symmetric else high - low
        assert fixed(s).item() >= least
        if extent == 0:
            assert not steps(q)[spread == i].any()
            continue
        below = s / 2 if scheme.power_of_two else np.nextafter(s, s.dtype.type(0))
        assert fixed(s).item() * scheme.span >= extent
        assert fixed(below).item() < least or fixed(below).item() * scheme.span < extent
        assert not scheme.power_of_two or np.frexp(float(s))[0] == 0.5


def codes_are_those_of_the_kernel(quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme) -> None:
    """Item 11: the nearest codes are those of ONNX Runtime's QuantizeLinear at the same scale and zero point."""
    same_codes_as_the_kernel(quantize(w, axis, scheme, None), w)


def finer_scales_are_no_larger(quantize: Quantizer, w: Array, scheme: Scheme, block_size: int) -> None:
    """Item 12, w [C, K]: a block's scale is at most its channel's, and that at most the tensor's."""
    of_tensor, of_channel, of_block = (
        np.broadcast_to(q.spread(q.scale.astype(np.float64)), w.shape)
        for q in (
            quantize(w, 0, _granularity(scheme, "tensor"), None),
            quantize(w, 0, _granularity(scheme, "channel"), None),
            quantize(w, 0, _granularity(scheme, "block", block_size), None),
        )
    )
    used = w != 0
    assert np.all((of_block <= of_channel)[used])
    assert np.all((of_channel <= of_tensor)[used])


def _granularity(scheme: Scheme, granularity: str, block_size: int = 0) -> Scheme:
    return replace(scheme, granularity=granularity, block_size=block_size)


def search_is_no_worse(quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme, plain: Scheme) -> None:
    """Item 13: the squared error of a search is at most that of min-max, per scale.

    To within float32's rounding of the weights, which is what a grid is off by that gives them back bit for bit.
    """
    found, base = squared_errors(quantize, w, axis, scheme), squared_errors(quantize, w, axis, plain)
    assert np.all(found <= base + (base >> 30) + (sum(fixed(w).reshape(-1) ** 2) >> 46))


def squared_errors(quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme) -> Array:
    """The exact sum of squares for each scale."""
    q = quantize(w, axis, scheme, None)
    squares = (fixed(w) - steps(q) * scales(q)) ** 2
    of = np.broadcast_to(q.spread(np.arange(q.scale.size).reshape(q.scale.shape)), w.shape)
    total = np.zeros(q.scale.size, object)
    np.add.at(total, of.reshape(-1), squares.reshape(-1))
    return total


def codes_come_back(quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme) -> None:
    """Item 7: what was quantized is on a grid, so quantizing it again loses nothing."""
    values = dequantize(quantize(w, axis, scheme, None))
    again = dequantize(quantize(values, axis, scheme, None))
    np.testing.assert_array_equal(again, values)


def codes_survive(requantize: Callable[[Array, QuantizedTensor], Array], q: QuantizedTensor) -> None:
    """Item 7: Q(DQ(q)) = q, at any scale and zero point of its own."""
    np.testing.assert_array_equal(requantize(dequantize(q), q), q.codes)


def signs_differ_by_the_middle(
    quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None
) -> None:
    """Item 15: the unsigned form is the signed one plus half of the codes, code for code, at the same scale."""
    signed = quantize(w, axis, scheme, moments)
    unsigned = quantize(w, axis, replace(scheme, weight_type=f"u{scheme.weight_type}"), moments)
    middle = 2 ** (int(scheme.weight_type[3:]) - 1)
    np.testing.assert_array_equal(unsigned.codes.astype(int), signed.codes.astype(int) + middle)
    np.testing.assert_array_equal(unsigned.zero_point.astype(int), signed.zero_point.astype(int) + middle)
    np.testing.assert_array_equal(unsigned.scale, signed.scale)


def follows_its_input(
    quantize: Quantizer, w: Array, scheme: Scheme, moments: InputMoments | None, exponent: int, order: list[int]
) -> None:
    """Item 15, w [C, K], axis 0: 2^k w keeps the codes, permuted channels permute them, -w negates symmetric ones."""
    q = quantize(w, 0, scheme, moments)
    scaled = quantize(np.ldexp(w, exponent), 0, scheme, moments)
    np.testing.assert_array_equal(scaled.codes, q.codes)
    np.testing.assert_array_equal(scaled.scale.astype(float), np.ldexp(q.scale.astype(float), exponent))
    permuted = quantize(w[order], 0, scheme, moments)
    whole = scheme.granularity == "tensor"
    np.testing.assert_array_equal(permuted.codes, q.codes[order])
    np.testing.assert_array_equal(permuted.scale, q.scale if whole else q.scale[order])
    if scheme.symmetric:
        negated = quantize(-w, 0, scheme, moments)
        np.testing.assert_array_equal(steps(negated), -steps(q))
        np.testing.assert_array_equal(negated.scale, q.scale)


def pairs_do_not_saturate(
    quantize: Quantizer, w: Array, axis: int | None, scheme: Scheme, moments: InputMoments | None = None
) -> None:
    """Reduced range: no two products of 255 and a code (of signed storage) leave int16."""
    q = quantize(w, axis, scheme, moments)
    factors = steps(q) if not scheme.is_signed else integers(q.codes)
    largest = sorted((abs(f) for f in factors.reshape(-1)), reverse=True)[:2]
    assert 255 * sum(largest) <= 2**15 - 1


# -- balanced rounding -----------------------------------------------------------------------------


def objectives(errors: Array, moments: InputMoments) -> tuple[list[int], list[int]]:
    """Of exact errors [R, L, k] per row: d^2 sum e^2 + m^2 (sum e)^2, and with the middle term of `moments` too."""
    own, common = (fixed(v).item() for v in moments.weights)
    alike = fixed(moments.correlation).item()
    one = fixed(1.0).item()
    rows = errors.reshape(len(errors), -1)
    squares, total = (rows**2).sum(axis=1), rows.sum(axis=1) ** 2
    in_slices = (errors.sum(axis=2) ** 2).sum(axis=1)
    two = own * squares + common * total
    three = (one - alike) * own * squares + alike * own * in_slices + one * common * total
    return list(two), list(three)


def balanced_is_no_worse(balance: Callable[..., None], w: Array, scale: Array, moments: InputMoments) -> None:
    """Item 16, w [R, L, k] held by scale [R]: per channel no worse than nearest, and only the two neighbours."""
    position = w / scale[:, None, None]
    codes = np.rint(position)
    balance(position, codes, moments)
    assert np.all(np.abs(fixed(position) - fixed(codes)) < fixed(1.0).item())
    assert np.abs(codes).max(initial=0) <= 127
    s = fixed(scale)[:, None, None]
    found, nearest = (objectives(fixed(w) - integers(c) * s, moments) for c in (codes, np.rint(position)))
    for ours, theirs in zip(found, nearest, strict=True):
        assert all(mine <= other for mine, other in zip(ours, theirs, strict=True))


def sums_come_near(balance: Callable[..., None], position: Array, moments: InputMoments) -> None:
    """Item 16: with a mean that rules, the sum of errors of a channel comes to within half a step."""
    codes = np.rint(position)
    balance(position, codes, moments)
    sums = (position.astype(np.float64) - codes).reshape(len(position), -1).sum(axis=1)
    assert np.abs(sums).max() <= 0.5 + 1e-3


# -- grids -----------------------------------------------------------------------------------------


def grid_is_found(find: Callable[..., Array], codes: Array, scale: Array, reach: int, span: int | None) -> None:
    """Item 14: rows of float32(code * scale) come back bit for bit from the scale that is found. scale: [] or [R]."""
    rows = codes.astype(np.float32) * np.asarray(scale, np.float32).reshape(-1, 1)
    found = find(rows, reach, span)
    assert found.dtype == np.float32
    assert np.all(found > 0)
    steps = np.rint(rows / found[:, None])
    np.testing.assert_array_equal(steps * found[:, None], rows)
    assert np.abs(steps).max() <= reach
    if span is not None:
        assert np.all(np.maximum(steps.max(axis=1), 0) - np.minimum(steps.min(axis=1), 0) <= span)


def no_grid_is_seen(find: Callable[..., Array], rows: Array, reach: int, span: int | None) -> None:
    """Item 14: on weights that lie on none."""
    assert not find(rows, reach, span).any()
