"""Balanced rounding: a few codes go to their second nearest neighbour, so that the errors of a channel cancel.

Rounding to nearest makes each error small and forgets that a unit adds them up: with inputs of mean m and deviation
d the expected square of the output's error is d^2 sum e^2 + m^2 (sum e)^2 (`moments`), and after a Relu the second
term rules. Moving an element to its other neighbour changes the sum by one step and costs 1 - 2|e| in the squares:
almost nothing near a tie. So in each kernel slice, then in each channel, the elements nearest to a tie are flipped
while that lowers the expected error. This is the scheme of SQuant (Guo et al., ICLR 2022, arXiv 2202.07471) with its
two fixed orders of precedence replaced by what the terms weigh.

Both stages are convex: the k-th best flip gains less than the one before, so taking flips while they gain is the
optimum of a stage. A channel whose two-term objective did not fall by more than float32 can tell goes back to
nearest, so that balanced is never worse. Everything is arithmetic on whole blocks: columns are slices, and a sort
sees only the candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..moments import InputMoments

_SAMPLE = 512
_EPS = {4: 2.0**-22, 8: 2.0**-50}

Floats = NDArray[Any]


def balance(
    steps: Floats,
    codes: Floats,
    moments: InputMoments,
    low: Floats | float | None = None,
    high: Floats | float | None = None,
) -> None:
    """Improves `codes`, the nearest integers of `steps`, in place.

    steps, codes: [R, L, k], contiguous, float32 or float64: R output channels of L kernel slices of k elements, in
    units of the scale. low, high: the smallest and the largest code, a number or [R, 1, 1]; None where every step lies
    within them. Each element stays on the floor or the ceiling of its step, and an integer on itself.

    Per channel, d^2 sum e^2 + m^2 (sum e)^2 does not grow, with d^2, m^2 = moments.weights and e = steps - codes.
    """
    if not codes.flags.c_contiguous:
        raise ValueError("codes must be contiguous, since they are changed in place")
    rows, slices, width = steps.shape
    if steps.size == 0 or (moments.weights[1] == 0 and (moments.correlation == 0 or width == 1)):
        return
    own, common = moments.weights
    alike = own * moments.correlation if width > 1 else 0.0
    errors = _columns(steps - codes)
    free = errors
    if low is not None and high is not None:
        free = np.where(_columns((steps > low) & (steps < high)), errors, 0).astype(errors.dtype)
    before = _row_sums(errors, rows)
    # What the flips of each channel add to sum e^2, and to the sum of its codes.
    spent, moved = np.zeros(rows), np.zeros(rows)
    flat = codes.reshape(-1)
    if width > 1:
        _even_slices(errors, free, flat, spent, moved, own - alike, alike + common)
    if common > 0:
        _even_channels(errors, free, flat, spent, moved, before - moved, own - alike, alike, common)
    after = before - moved
    gained = own * spent + common * (after**2 - before**2)
    # The type knows a step to EPS of it: what does not fall by more than that counts as lost.
    noise = _EPS[steps.dtype.itemsize] * _largest(codes) * slices * width
    lost = gained > -noise * (own + common * (np.abs(before) + np.abs(after) + noise))
    if lost.any():
        nearest = np.rint(steps[lost])
        codes[lost] = nearest if low is None else np.clip(nearest, _of(low, lost), _of(high, lost))


def _largest(codes: Floats) -> float:
    return max(float(codes.max()), -float(codes.min()), 1.0)


def _columns(values: Floats) -> Floats:
    """[R, L, k] as k rows of R * L columns: whatever is done per slice then runs along contiguous rows."""
    width = values.shape[-1]
    return np.ascontiguousarray(values.reshape(-1, width).T) if width > 1 else values.reshape(1, -1)


def _row_sums(errors: Floats, rows: int) -> Floats:
    total = errors.sum(axis=0) if len(errors) > 1 else errors[0]
    return np.asarray(total.reshape(rows, -1).sum(axis=1), np.float64)


def _of(limit: Any, rows: Floats) -> Any:
    return limit if np.ndim(limit) == 0 else limit[rows]


def _even_slices(
    errors: Floats, free: Floats, codes: Floats, spent: Floats, moved: Floats, single: float, together: float
) -> None:
    """Flips in each column of errors [k, n] while that lowers single * sum e^2 + together * (sum e)^2."""
    width, rows = len(errors), len(spent)
    slices = errors.shape[1] // rows
    number: Floats = np.arange(width, dtype=np.int8 if width < 128 else np.int32)[:, None]
    sums = errors.sum(axis=0)
    columns: Floats = np.arange(errors.shape[1])
    while columns.size:
        total = sums[columns]
        sign = np.sign(total)
        key = (free if columns.size == sums.size else free[:, columns]) * sign
        best = key.max(axis=0)
        gains = (best > 0) & (single * (1 - 2 * best) + together * (1 - 2 * np.abs(total)) < 0)
        where = ((key == best) * number).max(axis=0)
        columns, sign, best, where = columns[gains], sign[gains], best[gains], where[gains]
        _flip(errors, free, codes, where, columns, sign)
        sums[columns] -= sign
        spent += np.bincount(columns // slices, 1 - 2 * best, rows)
        moved += np.bincount(columns // slices, sign, rows)
        columns = columns[np.abs(sums[columns]) > 0.5]


def _even_channels(
    errors: Floats,
    free: Floats,
    codes: Floats,
    spent: Floats,
    moved: Floats,
    sums: Floats,
    single: float,
    alike: float,
    common: float,
) -> None:
    """Flips at most one element of each slice, while that lowers the three terms of its channel; sums: of e, [R]."""
    rows = len(sums)
    slices = errors.shape[1] // rows
    sign = np.sign(sums).astype(errors.dtype)
    if len(errors) == 1:
        best = free.reshape(rows, slices) * sign[:, None]
        cost = best * errors.dtype.type(-2 * single)
        cost += errors.dtype.type(single)
        best = best.reshape(-1)
    else:
        wide = np.repeat(sign, slices)
        key = free * wide
        best = key.max(axis=0)
        cost = single * (1 - 2 * best) + alike * (1 - 2 * wide * errors.sum(axis=0))
        cost[best <= 0] = np.inf
        cost = cost.reshape(rows, slices)
    chosen = _cheapest(cost, np.abs(sums), common)
    chosen = chosen[best[chosen] > 0]
    where = np.zeros_like(chosen)
    if len(errors) > 1:
        number: Floats = np.arange(len(errors))[:, None]
        where = ((key[:, chosen] == best[chosen]) * number).max(axis=0)
    row = chosen // slices
    _flip(errors, free, codes, where, chosen, sign[row])
    spent += np.bincount(row, 1 - 2 * best[chosen], rows)
    moved += np.bincount(row, sign[row], rows)


def _flip(errors: Floats, free: Floats, codes: Floats, where: Floats, columns: Floats, sign: Floats) -> None:
    """Moves element `where` of each of these columns one code in the direction of sign."""
    codes[columns * len(errors) + where] += sign
    errors[where, columns] -= sign
    if free is not errors:
        free[where, columns] -= sign


def _cheapest(cost: Floats, sums: Floats, common: float) -> Floats:
    """Flat indices into cost [R, L] of what to flip: in each row the cheapest first, while each pays.

    The n-th flip changes common * sum^2 by common * (1 - 2 (sum - n + 1)): it pays only for n <= round(sum). So a
    threshold from a sample of each row leaves a few candidates to sort; a row that runs out of them is done again in
    full.
    """
    slices = cost.shape[1]
    wanted = np.minimum(np.floor(sums + 0.5), slices)
    if not wanted.any():
        return np.zeros(0, np.intp)
    stride = max(1, slices // _SAMPLE)
    sample = cost[:, ::stride]
    depth = int(wanted.max()) if stride == 1 else int(1.5 * wanted.max() / stride) + 4
    depth = min(depth, sample.shape[1]) - 1
    threshold = np.partition(sample, depth, axis=1)[:, depth]
    most = np.finfo(cost.dtype).max
    threshold = np.where(wanted > 0, np.minimum(threshold, most), -np.inf).astype(cost.dtype)
    chosen, short = _pay(cost, threshold, sums, wanted, common)
    if short.any() and stride > 1:
        threshold[short] = most
        chosen, _ = _pay(cost, threshold, sums, wanted, common)
    return chosen


def _pay(
    cost: Floats, threshold: Floats, sums: Floats, wanted: Floats, common: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """The flips that pay among those not above the threshold, and the rows where all of too few did."""
    rows, slices = cost.shape
    picked = np.flatnonzero(cost <= threshold[:, None])
    row = picked // slices
    price = cost.reshape(-1)[picked].astype(np.float64)
    order = np.argsort(row * 8.0 + price, kind="stable")
    picked, row, price = picked[order], row[order], price[order]
    counts = np.bincount(row, minlength=rows)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    pays = price + common * (1 - 2 * (sums[row] - rank)) < 0
    flips = np.bincount(row[pays], minlength=rows)
    return picked[pays], (flips == counts) & (flips < wanted)
