"""A weight seen as output channels, each a list of kernel slices: what is summed into one output, and in which parts.

Rounding that looks at sums has to know which elements meet in one output, and which of them meet neighbouring
inputs. The operators differ only in where these lie: Conv [M, C/g, k...] has its outputs along axis 0; ConvTranspose
[C, M/g, k...] along axis 1 and once more per group, along axis 0; Gemm and MatMul have no kernel, and every element
is its own slice.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import BLOCK


class Rows:
    """Output channels of a weight, and blocks of them as [R, L, k] arrays.

    shape: of the weight. axis: that of the output channels. repeat: the groups of a ConvTranspose, which lie along
    axis 0. Channel c of the weight appears as `repeat` rows.
    """

    def __init__(self, shape: tuple[int, ...], axis: int, repeat: int = 1) -> None:
        self.shape, self.axis = shape, axis
        self.groups = repeat if axis == 1 and shape[0] % max(repeat, 1) == 0 else 1
        self.channels = shape[axis]
        kernel = [n for i, n in enumerate(shape) if i != axis] if len(shape) > 2 else []
        self.width = math.prod(kernel[1:]) if kernel else 1
        self.depth = math.prod(shape) // max(1, self.channels)

    @property
    def is_spatial(self) -> bool:
        return self.width > 1

    def blocks(self) -> list[slice]:
        """Ranges of channels; at least 16 at a time where they are interleaved, for the cache lines' sake."""
        least = 1 if self.axis == 0 else 16
        size = max(least, BLOCK // max(1, self.depth))
        return [slice(c, min(c + size, self.channels)) for c in range(0, self.channels, size)]

    def part(self, w: NDArray[Any], block: slice) -> NDArray[Any]:
        """The rows [R, L, k] of these channels: contiguous, a view where axis is 0. Channel by channel, then groups."""
        picked = np.ascontiguousarray(np.moveaxis(w, self.axis, 0)[block])
        return picked.reshape(len(picked) * self.groups, -1, self.width)

    def put(self, rows: NDArray[Any], w: NDArray[Any], block: slice) -> None:
        """Writes such rows back into w."""
        target = np.moveaxis(w, self.axis, 0)[block]
        target[...] = rows.reshape(target.shape)
