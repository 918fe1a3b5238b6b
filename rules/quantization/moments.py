"""What is known of a unit's input without data: mean, deviation, and whether neighbours are alike.

A unit's output error is sum x_k e_k over its weights' errors e. For inputs of mean m and deviation d, of which those
under one kernel slice have correlation r, its expected square is

    d^2 (1 - r) sum e^2  +  d^2 r sum over slices (sum e)^2  +  m^2 (sum e)^2

so that the moments say how much the sums count beside the single errors. The scale and the zero point of the input
state the range that it was calibrated to, and that is all it takes: after a Relu the range starts at 0, the mean is
as large as the range is wide, and the last term rules; for a symmetric range it vanishes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from .errors import NotQuantizable

_DEVIATIONS = math.sqrt(10)
_CORRELATION = 0.7
_COMMON = 0.6


@dataclass(frozen=True)
class InputMoments:
    """mean and deviation in units of the input (only their ratio counts); correlation within a kernel slice, in [0, 1].

    Raises ValueError where one is not finite, a deviation is negative, both are 0, or the correlation is out of range.
    """

    mean: float
    deviation: float
    correlation: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.deviation)):
            raise ValueError(f"moments must be finite, not {self.mean} and {self.deviation}")
        if self.deviation < 0 or (self.mean == 0 and self.deviation == 0):
            raise ValueError("the deviation must not be negative, nor 0 beside a mean of 0")
        if not 0 <= self.correlation <= 1:
            raise ValueError(f"the correlation must lie in [0, 1], not at {self.correlation}")

    @property
    def weights(self) -> tuple[float, float]:
        """d^2 and m^2, scaled so that they sum to 1: what one error and what the sum of errors count."""
        largest = max(abs(self.mean), self.deviation)
        own, common = (self.deviation / largest) ** 2, (self.mean / largest) ** 2
        return own / (own + common), common / (own + common)

    @staticmethod
    def of_range(
        x_scale: ArrayLike, x_zero_point: int, x_min: int, x_max: int, *, spatial: bool = False
    ) -> InputMoments:
        """Estimated from the input's quantization: x_min and x_max are its type's smallest and largest code.

        The middle of the range counts as the mean, and the range as 2 * sqrt(10) deviations: calibration takes the
        extremes, and what matters is not the mean of single inputs alone but what they have in common. Under a
        kernel with several positions (`spatial`) neighbours are alike whatever the range, so there they have a
        correlation, and a common part besides the mean. (The three constants are from `benchmarks/unit_snr.py`,
        which moves by 0.1 dB when they are halved or doubled.)
        """
        scale = float(x_scale)  # type: ignore[arg-type]
        if not (math.isfinite(scale) and scale > 0 and x_min < x_max):
            raise NotQuantizable("the input's range is empty or not finite")
        middle, half = scale * ((x_min + x_max) / 2 - x_zero_point), scale * (x_max - x_min) / 2
        half = max(half, math.ulp(0.0))
        deviation = half / _DEVIATIONS
        if not spatial:
            return InputMoments(middle, deviation)
        return InputMoments(math.hypot(middle, deviation * math.sqrt(_COMMON)), deviation, _CORRELATION)
