"""Balanced rounding: a few codes go to their second nearest neighbour, so that the errors of a channel cancel.

Rounding to nearest makes each error small and forgets that a unit adds them up: with inputs of mean m and deviation
d the expected square of the output's error is d^2 sum e^2 + m^2 (sum e)^2 (`moments`), and after a Relu the second
term rules. Moving an element to its other neighbour changes the sum by one step and costs 1 - 2|e| in the squares:
almost nothing near a tie. So in each kernel slice (`slices`), then in each channel, the elements nearest to a tie are
flipped while that lowers the expected error. This is the scheme of SQuant (Guo et al., ICLR 2022, arXiv 2202.07471)
with its two fixed orders of precedence replaced by what the terms weigh.

Both stages are convex: the k-th best flip gains less than the one before, so taking flips while they gain is the
optimum of a stage. A channel whose objective did not fall by more than float32 can tell goes back to nearest, so that
balanced is never worse. Only what may flip is ever sorted: the few elements above a threshold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..moments import InputMoments
from .slices import NEVER, Slices

_SAMPLE = 512
_EPS = {4: 2.0**-22, 8: 2.0**-50}
_PRICE_BITS = 32

Floats = NDArray[Any]
Limit = Floats | float | None


def balance(
    steps: Floats,
    codes: Floats,
    moments: InputMoments,
    low: Limit = None,
    high: Limit = None,
    largest: float | None = None,
) -> None:
    """Improves `codes`, the nearest integers of `steps`, in place.

    steps, codes: [R, L, k], contiguous, float32 or float64: R output channels of L kernel slices of k elements, in
    units of the scale. low, high: the smallest and the largest code, a number or [R, 1, 1]; None where every step lies
    within them. Each element stays on the floor or the ceiling of its step, and an integer on itself. largest: a
    bound on |steps|, looked for where it is None.

    Per channel, d^2 sum e^2 + m^2 (sum e)^2 does not grow, with d^2, m^2 = moments.weights and e = steps - codes.
    """
    if not codes.flags.c_contiguous:
        raise ValueError("codes must be contiguous, since they are changed in place")
    rows, slices, width = steps.shape
    low, high = (v if v is None else np.broadcast_to(np.reshape(v, -1), (rows,)) for v in (low, high))
    if width == 1:
        flat = (1, rows, slices)
        balance_elements(steps.reshape(flat), codes.reshape(flat), moments, low, high, largest)
        return
    own, common = moments.weights
    alike = own * moments.correlation
    if steps.size == 0 or (common == 0 and alike == 0):
        return
    errors = steps - codes
    free = None
    if low is not None and high is not None:
        inside = (steps > low[:, None, None]) & (steps < high[:, None, None])
        free = np.where(inside, errors, 0).astype(errors.dtype)
    before = np.einsum("ij->i", errors.reshape(rows, -1)).astype(np.float64)
    flips = Slices(errors, free, codes)
    flips.even(own - alike, alike + common)
    if common > 0:
        sums = before - flips.moved_per_row()
        sign = np.sign(sums)
        chosen = _cheapest(flips.prices(sign, own - alike, alike), np.abs(sums), common)
        flips.flip(chosen)
    after = before - flips.moved_per_row()
    lost = _lost(own * flips.spent, common, before, after, own, _noise(codes, slices * width, largest))
    if lost.any():
        codes[lost] = _nearest(steps[lost], *(v if v is None else v[lost, None, None] for v in (low, high)))


def balance_elements(
    steps: Floats,
    codes: Floats,
    moments: InputMoments,
    low: Floats | None = None,
    high: Floats | None = None,
    largest: float | None = None,
) -> None:
    """`balance` where every element is its own slice: steps, codes [d, c, i] with the channels in the middle.

    low, high: [c], or None.
    """
    own, common = moments.weights
    if steps.size == 0 or common == 0:
        return
    channels, inner = steps.shape[1:]
    depth = steps.size // channels
    errors = steps - codes
    before = np.einsum("dci->c", errors).astype(np.float64)
    sign = np.sign(before)
    wanted = np.minimum(np.floor(np.abs(before) + 0.5), depth)
    if not wanted.any():
        return
    key = np.multiply(errors, sign.astype(errors.dtype)[:, None], out=errors)
    # Errors are spread evenly over a step, mostly: so this lets through somewhat more than are wanted.
    threshold = np.where(wanted > 0, np.maximum(0.5 - (1.5 * wanted + 10) / depth, 0), np.inf)
    while True:
        picked = np.flatnonzero(key > threshold.astype(key.dtype)[:, None])
        row = picked // inner % channels
        error = key.reshape(-1)[picked]
        if low is not None and high is not None:
            code = codes.reshape(-1)[picked] + sign[row]
            fits = (code >= low[row]) & (code <= high[row])
            picked, row, error = picked[fits], row[fits], error[fits]
        pays, short = _paying(-error, 2 * own, own, row, np.abs(before), wanted, common)
        short &= (threshold > 0) & (wanted > 0)
        if not short.any():
            break
        threshold[short] = 0
    picked, row, error = picked[pays], row[pays], error[pays].astype(np.float64)
    codes.reshape(-1)[picked] += sign[row]
    spent = own * np.bincount(row, 1 - 2 * error, channels)
    after = before - np.bincount(row, sign[row], channels)
    lost = _lost(spent, common, before, after, own, _noise(codes, depth, largest))
    if lost.any():
        codes[:, lost] = _nearest(steps[:, lost], *(v if v is None else v[lost, None] for v in (low, high)))


def _noise(codes: Floats, depth: int, largest: float | None) -> float:
    """How much of an objective the type cannot tell: EPS of a code for each element."""
    if largest is None:
        largest = max(float(codes.max()), -float(codes.min()))
    return _EPS[codes.dtype.itemsize] * max(largest, 1.0) * depth


def _lost(spent: Floats, common: float, before: Floats, after: Floats, own: float, noise: float) -> NDArray[np.bool_]:
    """The channels whose objective did not fall for certain.

    spent: what the flips added to own * sum e^2; before, after: sum e without and with them. Each of shape [R].
    """
    gained = spent + common * (after**2 - before**2)
    return np.asarray(gained > -noise * (own + common * (np.abs(before) + np.abs(after) + noise)))


def _nearest(steps: Floats, low: Floats | None, high: Floats | None) -> Floats:
    nearest = np.rint(steps)
    return nearest if low is None else np.clip(nearest, low, high)


def _cheapest(price: Floats, sums: Floats, common: float) -> Floats:
    """Flat indices into price [R, L] of what to flip: in each row the cheapest first, while each pays.

    The n-th flip changes common * sum^2 by common * (1 - 2 (sum - n + 1)): it pays only for n <= round(sum). So a
    threshold from a sample of all rows leaves a few candidates to sort; a row that runs out of them is done again in
    full.
    """
    slices = price.shape[1]
    wanted = np.minimum(np.floor(sums + 0.5), slices)
    if not wanted.any():
        return np.zeros(0, np.intp)
    most = NEVER / 2
    sample = np.sort(price.reshape(-1)[:: max(1, price.size // _SAMPLE)])
    place = (len(sample) * (1.5 * wanted + 10) / slices).astype(int)
    threshold = np.where(place < len(sample), sample[np.minimum(place, len(sample) - 1)], most)
    threshold = np.where(wanted > 0, np.minimum(threshold, most), -most).astype(price.dtype)
    while True:
        picked = np.flatnonzero(price <= threshold[:, None])
        row = picked // slices
        pays, short = _paying(price.reshape(-1)[picked], 1.0, 0.0, row, sums, wanted, common)
        short &= (threshold < most) & (wanted > 0)
        if not short.any():
            return np.asarray(picked[pays])
        threshold[short] = most


def _paying(
    price: Floats, factor: float, base: float, row: Floats, sums: Floats, wanted: Floats, common: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """Which of these flips pay, each at base + factor * price, the cheapest of each row first; and the rows where all
    of too few did."""
    rows = len(sums)
    order = _sorted(price, row, rows)
    ordered = row[order]
    counts = np.bincount(row, minlength=rows)
    rank = np.arange(len(row)) - (np.cumsum(counts) - counts)[ordered]
    pays = base + factor * price[order].astype(np.float64) + common * (1 - 2 * (sums[ordered] - rank)) < 0
    flips = np.bincount(ordered[pays], minlength=rows)
    return order[pays], (flips == counts) & (flips < wanted)


def _sorted(price: Floats, row: Floats, rows: int) -> Floats:
    """The order by row, then price, then place: from one sort of integers that hold all three, where they fit."""
    place_bits = len(price).bit_length()
    if rows.bit_length() + _PRICE_BITS + place_bits > 63 or price.dtype != np.float32:
        return np.lexsort((price, row))
    bits = price.view(np.int32).astype(np.int64)
    bits = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits) + 2**31  # floats in the order of their bits
    key = (row << (_PRICE_BITS + place_bits)) | (bits << place_bits) | np.arange(len(price))
    key.sort()
    return np.asarray(key & ((1 << place_bits) - 1))
