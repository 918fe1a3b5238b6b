"""How far two arrays are apart: the figures of a comparison, summed up sample by sample.

Everything is float64. An element that is not finite counts as equal to the very same one (NaN to NaN, infinity to the
infinity of its sign) and then takes no part; against anything else its difference is infinite, and with it the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rules.quantization import decibels


@dataclass(frozen=True)
class Figures:
    """How far one value of B is from that of A, over all samples.

    snr: 10 log10(sum a^2 / sum (a - b)^2) in dB: infinite without any difference, -infinite where all of A is zero or B
    is not finite. cosine: of A and B as one vector each; None where one of them is zero or not finite. max_difference:
    the largest |a - b|. max_steps: the same in steps of the quantizer of this value, None where it has none. top1: the
    share of rows whose largest element stands at the same place, None unless [N, C] with C > 1. note: what is wrong
    with the values; where their shapes differ, snr is None and nothing else is known.
    """

    snr: float | None
    cosine: float | None = None
    max_difference: float | None = None
    max_steps: float | None = None
    top1: float | None = None
    note: str = ""


BLOCK = 1 << 14
"""Elements at a time: what fits a cache is summed several times as fast."""


class Tally:
    """What `Figures` are made of."""

    def __init__(self, step: float | None = None, *, scores: bool = False) -> None:
        """step: of the value's quantizer. scores: whether rows are class scores where the shape is that of some."""
        self.step, self.scores = step, scores
        self.signal = self.noise = self.dot = self.other = self.largest = 0.0
        self.rows = self.agreed = 0
        self.strange = {"A": 0, "B": 0}
        self.shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def add(self, reference: np.ndarray, other: np.ndarray) -> None:
        if reference.shape != other.shape:
            self.shapes = (reference.shape, other.shape)
            return
        if self.scores and reference.ndim == 2 and reference.shape[1] > 1:
            self.rows += len(reference)
            self.agreed += int((reference.argmax(1) == other.argmax(1)).sum())
        flat, other_flat = reference.reshape(-1), other.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            self.add_block(flat[start : start + BLOCK], other_flat[start : start + BLOCK])

    def add_block(self, reference: np.ndarray, other: np.ndarray) -> None:
        a, b = np.asarray(reference, np.float64), np.asarray(other, np.float64)
        with np.errstate(invalid="ignore"):  # infinity - infinity
            error = a - b
        noise = inner(error, error)
        if not np.isfinite(noise):
            fine = np.isfinite(a) & np.isfinite(b)
            self.strange["A"] += int((~np.isfinite(a)).sum())
            self.strange["B"] += int((~np.isfinite(b)).sum())
            if not ((a == b) | (np.isnan(a) & np.isnan(b)) | fine).all():
                self.noise = self.largest = np.inf
            a, b, error = a[fine], b[fine], error[fine]
            noise = inner(error, error)
        self.signal += inner(a, a)
        self.other += inner(b, b)
        self.noise += noise
        self.dot += inner(a, b)
        self.largest = max(self.largest, float(np.abs(error).max(initial=0.0)))

    def figures(self) -> Figures:
        if self.shapes is not None:
            return Figures(None, note=f"shape {list(self.shapes[0])} in A, {list(self.shapes[1])} in B")
        length = math.sqrt(self.signal) * math.sqrt(self.other)
        cosine = None
        if length and not math.isinf(self.noise):
            cosine = 1.0 if self.noise == 0 else max(-1.0, min(1.0, self.dot / length))
        strange = [f"{count} elements of {name} are not finite" for name, count in self.strange.items() if count]
        return Figures(
            snr=-math.inf if math.isinf(self.noise) else float(decibels(self.signal, self.noise)),
            cosine=cosine,
            max_difference=self.largest,
            max_steps=None if self.step is None else self.largest / self.step,
            top1=self.agreed / self.rows if self.rows else None,
            note=", ".join(strange),
        )


def inner(x: np.ndarray, y: np.ndarray) -> float:
    """sum x y, on this thread alone: what BLAS wins by others on so few elements it loses by waiting for them."""
    return float(np.einsum("i,i", x, y))
