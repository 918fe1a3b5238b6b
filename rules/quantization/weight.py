"""Weights to integer codes: the range or the grid, the scales, the codes, balanced where asked.

What varies is the shape of a scale's reach: the tensor, an output channel, or a block of the axis that is summed
over. Each becomes rows of a matrix for the search, and comes back as scales of the form that DequantizeLinear takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .codes import nearest_codes, value_range, working_type
from .errors import NotQuantizable, check_finite
from .layout import Rows, channel_rows
from .moments import InputMoments
from .rounding import balance, balance_elements
from .scales import QMAX, idle_scale, symmetric_scale
from .scheme import Scheme
from .search import Scales, find_scales
from .tensor import QuantizedTensor

_CHUNK = 1 << 22

Range = tuple[NDArray[np.float64], NDArray[np.float64]]


def abs_max(w: NDArray[Any], axis: int | None) -> NDArray[np.float64]:
    """max|w| for each entry of `axis`, shape [C], or of the whole tensor, shape []; 0 where there are no
    elements.

    Raises NotQuantizable, naming the element, if w has a NaN or an infinity.
    """
    low, high = finite_range(w, axis)
    return np.maximum(-low, high)


def finite_range(w: NDArray[Any], axis: int | None) -> Range:
    """`codes.value_range`. Raises NotQuantizable, naming the element, if w has a NaN or an infinity."""
    low, high = value_range(w, axis)
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        check_finite("weight", w)
    return low, high


def quantize_symmetric(w: NDArray[Any], axis: int | None) -> QuantizedTensor:
    """int8 codes in [-127, 127] of float weights of any shape, with a scale for each entry of `axis` or one
    in all: min-max, nearest.

    The scale is `symmetric_scale(max|w|)`; a channel of zeros gets `idle_scale`. Each element comes back
    within `bounds.element_bound`, and 0 as 0. Extra memory: the codes, and a few hundred KiB.

    Raises NotQuantizable if w has a NaN or infinity or is too large to come back finite.
    """
    absmax = abs_max(w, axis)
    scale = symmetric_scale(absmax)
    scale = np.asarray(np.where(absmax > 0, scale, idle_scale(scale, absmax)), np.float32)
    codes = nearest_codes(w, scale, np.zeros(scale.shape, np.int8), axis, (-QMAX, QMAX), np.int8, clip=False)
    return QuantizedTensor(codes, scale, np.zeros(scale.shape, np.int8), axis)


def quantize_with_scale(w: NDArray[Any], scale: ArrayLike, axis: int | None, *, alpha: float = 1.0) -> QuantizedTensor:
    """int8 codes `clip(rint(alpha * w / scale), -127, 127)` with zero point 0, for a given scale.

    w: finite floats of any shape. scale: float32, positive and finite, shape [] or [C] along `axis`. A factor
    alpha other than 1 (Gemm's) is multiplied in float64, where the product of two float32 is exact; it needs
    no copy of w.

    Raises ValueError for a scale that is not positive and finite or has the wrong shape, NotQuantizable for a
    w that is not finite.
    """
    scale = np.asarray(scale, np.float32)
    if not np.all((scale > 0) & np.isfinite(scale)):
        raise ValueError("a scale must be positive and finite")
    if scale.shape != (() if axis is None else (w.shape[axis],)):
        raise ValueError(f"a scale of shape {list(scale.shape)} does not fit")
    check_finite("weight", w)
    zero = np.zeros(scale.shape, np.int8)
    return QuantizedTensor(nearest_codes(w, scale, zero, axis, (-QMAX, QMAX), np.int8, alpha), scale, zero, axis)


def scales_of(w: NDArray[Any], axis: int | None, scheme: Scheme, alpha: float = 1.0) -> tuple[Scales, Range]:
    """Scales along axis (shape [C], or [] for None) for alpha * w, and the largest magnitudes.

    Raises NotQuantizable as `finite_range`, and if a range does not come back finite.
    """
    low, high = finite_range(w, axis)
    low, high = (low * alpha, high * alpha) if alpha >= 0 else (high * alpha, low * alpha)
    shape = low.shape
    pieces: list[Scales] = []
    low, high = low.reshape(-1), high.reshape(-1)
    if scheme.search == "minmax":
        pieces.append(find_scales(low, high, scheme, None))
    else:
        for part, rows in [(slice(0, 1), w.reshape(1, -1))] if axis is None else channel_rows(w, axis, _CHUNK):
            rows = rows if alpha == 1 else rows.astype(np.float64) * alpha
            pieces.append(find_scales(low[part], high[part], scheme, rows))
    scales = Scales(
        *(
            np.concatenate([getattr(p, name) for p in pieces]).reshape(shape) if pieces else np.zeros(shape, kind)
            for name, kind in (("scale", scheme.scale_dtype), ("zero_point", scheme.dtype), ("on_grid", bool))
        )
    )
    return scales, (low.reshape(shape), high.reshape(shape))


def codes_of(
    w: NDArray[Any],
    scale: NDArray[Any],
    zero_point: NDArray[Any],
    axis: int | None,
    scheme: Scheme,
    *,
    alpha: float = 1.0,
    channel_axis: int | None = None,
    repeat: int = 1,
    moments: InputMoments | None = None,
    fixed: NDArray[np.bool_] | None = None,
) -> QuantizedTensor:
    """Codes of alpha * w for given scales and zero points, as QuantizedTensor along axis.

    They are the nearest ones without moments or channel_axis (that of the output channels; repeat as in `Rows`), and
    balanced with both. fixed: [C], channels which stay at nearest.
    """
    four_bit = scheme.weight_type if scheme.weight_type.endswith("int4") else None
    # A symmetric scale that was not searched holds every weight: both neighbours of a weight are codes.
    bounded = not (scheme.symmetric and scheme.search in ("minmax", "grid", "auto"))
    if moments is None or channel_axis is None or scheme.rounding == "nearest" or w.size == 0:
        codes = nearest_codes(w, scale, zero_point, axis, scheme.code_range, scheme.dtype, alpha, clip=bounded)
        return QuantizedTensor(codes, scale, zero_point, axis, four_bit=four_bit)
    w, codes = np.ascontiguousarray(w), np.empty(w.shape, scheme.dtype)
    rows = Rows(w.shape, channel_axis, repeat)
    work = working_type(w, alpha)
    for block in rows.blocks():
        part = rows.part(w, block)
        of_block = slice(None) if axis is None else block[1]
        step, zero = (np.asarray(v.reshape(-1)[of_block], work)[:, None] for v in (scale, zero_point))
        with np.errstate(over="ignore", under="ignore"):
            steps = np.divide(part if alpha == 1 else part.astype(work) * alpha, step, dtype=work)
        found = np.rint(steps)
        low = high = None
        if bounded:
            low, high = (np.broadcast_to(limit - zero[:, 0], found.shape[1]) for limit in scheme.code_range)
            np.clip(found, low[:, None], high[:, None], out=found)
        free = None if fixed is None or not fixed.any() else ~fixed[block[1]]
        _balance(steps, found, moments, rows.width, float(scheme.span), low, high, free)
        if zero.any():
            found += zero
        rows.put(found, codes, block)
    return QuantizedTensor(codes, scale, zero_point, axis, four_bit=four_bit)


def _balance(
    steps: NDArray[Any],
    found: NDArray[Any],
    moments: InputMoments,
    width: int,
    largest: float,
    low: NDArray[Any] | None,
    high: NDArray[Any] | None,
    free: NDArray[np.bool_] | None,
) -> None:
    """Balances the free channels of a block [d, c, i], in place; low, high: [c]."""
    if free is not None and not free.any():
        return
    if free is not None and not free.all():
        part = np.ascontiguousarray(found[:, free])
        low, high = (None if limit is None else limit[free] for limit in (low, high))
        _balance(np.ascontiguousarray(steps[:, free]), part, moments, width, largest, low, high, None)
        found[:, free] = part
    elif width == 1:
        balance_elements(steps, found, moments, low, high, largest)
    else:
        shape = (found.shape[1], -1, width)
        balance(steps.reshape(shape), found.reshape(shape), moments, low, high, largest)


def quantize_weight(
    w: NDArray[Any],
    axis: int | None,
    scheme: Scheme = Scheme(),  # noqa: B008
    *,
    block_axis: int | None = None,
    repeat: int = 1,
    moments: InputMoments | None = None,
) -> QuantizedTensor:
    """Codes and scales of a float weight, without a bias to care for.

    axis: the output channels (may be negative), None where there are none. block_axis: with blocks, the axis that they
    divide.

    Raises NotQuantizable as `quantize_symmetric`, ValueError if a block axis is missing.
    """
    if scheme.granularity == "block":
        return _quantize_blocks(w, scheme, block_axis, moments)
    axis = None if axis is None else axis % w.ndim
    along_axis = axis if scheme.granularity == "channel" else None
    scales, (low, high) = scales_of(w, along_axis, scheme)
    absmax = np.maximum(-low, high)
    scale = np.where(absmax > 0, scales.scale, idle_scale(scales.scale, absmax)).astype(scheme.scale_dtype)
    fixed = None if axis is None else np.broadcast_to(scales.on_grid, (w.shape[axis],))
    return codes_of(
        w, scale, scales.zero_point, along_axis, scheme, channel_axis=axis, repeat=repeat, moments=moments, fixed=fixed
    )


def _quantize_blocks(
    w: NDArray[Any], scheme: Scheme, block_axis: int | None, moments: InputMoments | None
) -> QuantizedTensor:
    """One scale for each block of block_size elements along block_axis, the last one shorter; each balanced by
    itself."""
    if block_axis is None or w.ndim < 2:
        raise NotQuantizable("blocks need an axis that is summed over")
    block_axis %= w.ndim
    check_finite("weight", w)
    size = w.shape[block_axis]
    blocks = -(-size // scheme.block_size)
    padded = np.moveaxis(w, block_axis, -1)
    lead = padded.shape[:-1]
    if blocks * scheme.block_size != size:
        padded = np.pad(padded, [(0, 0)] * len(lead) + [(0, blocks * scheme.block_size - size)])
    rows = padded.reshape(-1, scheme.block_size)
    low, high = value_range(rows, 0)
    absmax = np.maximum(-low, high)
    scales = find_scales(low, high, scheme, None if scheme.search == "minmax" else rows)
    scale = np.where(absmax > 0, scales.scale, idle_scale(scales.scale, absmax)).astype(scheme.scale_dtype)
    flat = codes_of(
        rows, scale, scales.zero_point, 0, scheme, channel_axis=0, moments=moments, fixed=scales.on_grid
    ).codes
    codes = np.moveaxis(flat.reshape(padded.shape)[..., :size], -1, block_axis)
    scale, zero_point = (
        np.ascontiguousarray(np.moveaxis(v.reshape(*lead, blocks), -1, block_axis)) for v in (scale, scales.zero_point)
    )
    four_bit = scheme.weight_type if scheme.weight_type.endswith("int4") else None
    return QuantizedTensor(np.ascontiguousarray(codes), scale, zero_point, block_axis, scheme.block_size, four_bit)
