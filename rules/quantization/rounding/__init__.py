"""Rounding: quotients exactly (`exact`), and codes so that the errors of a channel cancel (`balanced`, `slices`).

Rounding to the nearest code needs no file of its own: it is `np.rint` of a true division, in `codes`.
"""

from .balanced import balance, balance_elements
from .exact import rint_ratio

__all__ = ["balance", "balance_elements", "rint_ratio"]
