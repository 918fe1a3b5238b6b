"""What must hold of the guards of integer hardware: they say no exactly where the vendors' rules do.

The rules are written out again, in fractions, from the reference; an implementation is an argument, as in `properties`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from rules.quantization import NotQuantizable, PowerOfTwoBias
from tests.rules.quantization.exact import Array, fractions

Refuses = Callable[..., str | None]


def refuses_exactly(
    refuses: Refuses, x_scale: np.float32, w_scale: Array, y_scale: float, y_zero: int, codes: Array | None
) -> None:
    """s = float32(x_scale * w_scale) is normal, s / y_scale > 2^-24, and the bias has at most 2^31 steps, with and
    without the output's zero point in it."""
    wanted = True
    held = [0] * w_scale.size if codes is None else [int(c) for c in codes]
    for s, code in zip(fractions(np.float32(x_scale) * w_scale), held, strict=True):
        folded = code - round(y_zero * Fraction(y_scale) / s) if s else 0
        wanted &= s >= Fraction(2) ** -126 and s / Fraction(y_scale) > Fraction(2) ** -24
        wanted &= abs(code) <= 2**31 and abs(folded) <= 2**31
    assert (refuses(x_scale, w_scale, y_scale, y_zero, codes) is None) == wanted


def shifts_exactly(
    quantize: Callable[..., PowerOfTwoBias], b: Array, position_x: int, position_w: int, position_y: int
) -> None:
    """The cut and the shift are those of the kernel, and in range; the scale is the smallest that they allow.

    Each code is the nearest one. What is refused has a cut or a shift out of range.
    """
    cut = position_w + position_x - position_y
    least, most = min(0, -(24 - (8 + cut))), 15
    largest = max(map(abs, fractions(b)), default=Fraction(0))
    step = Fraction(2) ** (most - position_w - position_x)
    args: list[Any] = [2.0**-p for p in (position_x, position_w, position_y)]
    try:
        made = quantize(b, *args)
    except NotQuantizable:
        assert not 0 <= cut <= 16 or largest > 127 * step
        return
    assert 0 <= cut <= 16
    assert made.shift_cut == cut
    assert least <= made.shift_bias <= most
    s = Fraction(float(made.bias.scale))
    assert s == Fraction(2) ** (made.shift_bias - position_w - position_x)
    assert 127 * s >= largest
    assert made.shift_bias == least or largest == 0 or 127 * s / 2 < largest
    assert made.bias.codes.dtype == np.int8
    for value, code in zip(fractions(b), made.bias.codes.reshape(-1), strict=True):
        assert int(code) == round(value / s)
