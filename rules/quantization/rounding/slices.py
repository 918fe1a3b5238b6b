"""The kernel slices of a weight, and the flips that even out their sums: the stage of balanced rounding that is busy.

In a 3x3 kernel more than half of all slices take a flip, so what counts is what each element costs. The errors are
transposed once, so that an operation per slice runs along contiguous rows, and held as integers that carry the
element's place in their low bits: then one maximum over a slice gives both the error and where it stands. Errors are
cut off toward 0 there, so that what a flip adds to the squares, 1 - 2|e|, is never reckoned too small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NEVER = 1e30
"""The price of what may not be flipped."""

Array = NDArray[Any]


class Slices:
    """Slices of R rows, and what was flipped in them.

    errors: [R, L, k] contiguous floats. free: like errors, but 0 where an element may not move; None where all may.
    codes: of the same shape, changed by flips.
    """

    def __init__(self, errors: Array, free: Array | None, codes: Array) -> None:
        self.rows, self.count, self.width = errors.shape
        self.codes = codes.reshape(-1)
        self.place_bits = (self.width - 1).bit_length()
        self.kind, value_bits = _fitting(self.place_bits)
        self.unit = 2**value_bits - 1
        self.floats = errors.dtype.type
        scaled = np.empty(errors.shape, self.kind)
        np.multiply(errors if free is None else free, self.floats(self.unit), out=scaled, casting="unsafe")
        packed = np.ascontiguousarray(scaled.reshape(-1, self.width).T)
        if free is None:
            self.total = packed.sum(axis=0, dtype=self.kind)
        else:
            self.total = np.rint(errors.sum(axis=2, dtype=np.float64).reshape(-1) * self.unit)
        packed <<= self.place_bits
        packed |= np.arange(self.width, dtype=self.kind)[:, None]
        self.packed = packed
        self.largest, self.smallest = packed.max(axis=0), packed.min(axis=0)
        self.moved = np.zeros(len(self.total), self.kind)
        self.spent = np.zeros(self.rows)

    def even(self, single: float, together: float) -> None:
        """Flips in each slice while that lowers single * sum e^2 + together * (sum e)^2."""
        sign = (self.total > 0) * self.kind(2) - self.kind(1)
        best = self._toward(sign, self.largest, self.smallest)
        size = self._size(best, sign)
        gains = self._gains(size, self.total * sign, single, together)
        self.moved = sign * gains
        self.total -= self.moved * self.total.dtype.type(self.unit)
        self.spent += self._row_sums((self.kind(self.unit) - 2 * size) * gains) / self.unit
        slices = np.flatnonzero(gains)
        self._move(slices, best.take(slices), sign.take(slices))
        again = np.flatnonzero(self.total * self.moved > self.unit // 2)  # less does not gain
        self._even_again(again, best.take(again), sign.take(again), single, together)

    def _even_again(self, slices: Array, best: Array, sign: Array, single: float, together: float) -> None:
        """Further flips in these slices, where they gain; best: what was flipped before."""
        held, number = self.packed.take(slices, axis=1), np.arange(len(slices))
        while slices.size:
            place = best & self._mask
            held[place, number[: len(slices)]] = place  # no error is left to take there
            best = self._toward(sign, held.max(axis=0), held.min(axis=0))
            size = self._size(best, sign)
            gains = np.flatnonzero(self._gains(size, self.total.take(slices) * sign, single, together))
            slices, best, sign, size = (v.take(gains) for v in (slices, best, sign, size))
            held = held.take(gains, axis=1)
            self._flip(slices, best, sign, size)

    def prices(self, sign: Array, single: float, alike: float) -> Array:
        """What one more flip in the direction of its row's sign, [R], would cost each slice: [R, L].

        NEVER where it has none to flip. A slice that was flipped in that direction takes no other: its next best
        element is not looked for.
        """
        wide = np.repeat(sign.astype(self.kind), self.count)
        best = self._toward(wide, self.largest, self.smallest)
        size = self._size(best, wide)
        price = size.astype(self.floats)
        price *= self.floats(-2 * single / self.unit)
        if alike:
            total = (self.total * wide).astype(self.floats)
            total *= self.floats(2 * alike / self.unit)
            price -= total
        price += self.floats(single + alike)
        price += ((size <= 0) | (self.moved * wide > 0)).astype(self.floats) * self.floats(NEVER)
        self._found = best, wide, size
        return np.asarray(price.reshape(self.rows, self.count))

    def flip(self, slices: Array) -> None:
        """Flips the element that `prices` found for each of these slices."""
        self._flip(slices, *(v.take(slices) for v in self._found))

    def moved_per_row(self) -> NDArray[np.float64]:
        """By how much the flips lowered the sum of each row's errors, [R]."""
        return self._row_sums(self.moved)

    @property
    def _mask(self) -> int:
        return int((1 << self.place_bits) - 1)

    def _size(self, best: Array, sign: Array) -> Array:
        """The error that packed values hold, in units, positive in the direction of sign."""
        return np.asarray((best >> self.place_bits) * sign)

    def _toward(self, sign: Array, largest: Array, smallest: Array) -> Array:
        """The largest where sign is 1, the smallest elsewhere; without a branch, and overflow cancels out."""
        return np.asarray(smallest + (largest - smallest) * (sign > 0))

    def _gains(self, size: Array, total: Array, single: float, together: float) -> Array:
        """Whether a slice gains by flipping an element of this size, where its total is this in the same direction."""
        gain = size.astype(self.floats)
        gain *= self.floats(2 * single)
        rest = total.astype(self.floats)
        rest *= self.floats(2 * together)
        gain += rest
        return np.asarray((gain > self.floats(self.unit * (single + together))) & (size > 0))

    def _flip(self, slices: Array, best: Array, sign: Array, size: Array) -> None:
        self._move(slices, best, sign)
        self.moved[slices] += sign
        self.total[slices] -= sign * self.total.dtype.type(self.unit)
        self.spent += np.bincount(slices // self.count, 1 - size * (2 / self.unit), self.rows)

    def _move(self, slices: Array, best: Array, sign: Array) -> None:
        at = slices * self.width
        at += best & self._mask
        self.codes[at] += sign

    def _row_sums(self, values: Array) -> NDArray[np.float64]:
        return np.asarray(values.reshape(self.rows, -1).sum(axis=1), np.float64)


def _fitting(place_bits: int) -> tuple[type[np.signedinteger[Any]], int]:
    """The smallest integer type for errors of up to half a step with a place in the low bits, and the bits that are
    left for an error: such that the sum over a slice does not overflow either."""
    if place_bits <= 4:
        return np.int16, 16 - place_bits
    if place_bits <= 8:
        return np.int32, 30 - 2 * place_bits
    return np.int64, 62 - 2 * place_bits
