"""A weight seen as output channels, each a list of kernel slices: what is summed into one output, and in which parts.

Rounding that looks at sums has to know which elements meet in one output, and which of them meet neighbouring
inputs. The operators differ only in where these lie: Conv [M, C/g, k...] has its outputs along axis 0; ConvTranspose
[C, M/g, k...] along axis 1 and once more per group, along axis 0; Gemm and MatMul have no kernel, and every element
is its own slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 18
_LINE = 128

Block = tuple[slice, slice]


def channel_rows(w: NDArray[Any], axis: int, most: int) -> Iterator[tuple[slice, NDArray[Any]]]:
    """The channels of w along axis as rows [R, K], about `most` elements at a time, and which they are."""
    moved = np.moveaxis(w, axis, 0)
    size = max(1, most * len(moved) // max(1, w.size))
    for start in range(0, len(moved), size):
        part = moved[start : start + size]
        yield slice(start, start + len(part)), part.reshape(len(part), math.prod(part.shape[1:]))


def groups_of(shape: tuple[int, ...], axis: int, repeat: int) -> int:
    """How many groups of output channels share scales: those of a ConvTranspose, whose channels lie along axis 1."""
    return repeat if axis == 1 and shape[0] % max(repeat, 1) == 0 else 1


class Rows:
    """Output channels of a weight in blocks, each an array [d, c, i] of c whole channels.

    shape: of the weight. axis: that of the output channels. repeat: the groups of a ConvTranspose, which lie along
    axis 0. Channel c of the weight appears `repeat` times, in different blocks. width: the elements of a kernel slice.
    """

    def __init__(self, shape: tuple[int, ...], axis: int, repeat: int = 1) -> None:
        self.channels = shape[axis]
        self.outer, self.inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        self.groups = groups_of(shape, axis, repeat)
        kernel = [n for i, n in enumerate(shape) if i != axis] if len(shape) > 2 else []
        self.width = math.prod(kernel[1:]) if kernel else 1

    def blocks(self) -> list[Block]:
        """Ranges of the outer dimension, a group each, and of channels: as many as stay in the cache, but at least
        as many interleaved ones as fill a few cache lines."""
        deep = self.outer // self.groups
        least = 1 if deep == 1 else max(1, _LINE // self.inner)
        size = max(least, _BLOCK // max(1, deep * self.inner))
        return [
            (slice(o, o + deep), slice(c, min(c + size, self.channels)))
            for o in range(0, self.outer, deep)
            for c in range(0, self.channels, size)
        ]

    def part(self, w: NDArray[Any], block: Block) -> NDArray[Any]:
        """These channels as [d, c, i], i a multiple of the width: a view, but [1, c, d * i] where slices would have
        other channels between them."""
        view = w.reshape(self.outer, self.channels, self.inner)[block]
        if self.width == 1 or len(view) == 1:
            return view
        return np.ascontiguousarray(view.transpose(1, 0, 2)).reshape(1, view.shape[1], -1)

    def put(self, part: NDArray[Any], w: NDArray[Any], block: Block) -> None:
        """Writes such a part back into w, which is contiguous; integers are cast."""
        target = w.reshape(self.outer, self.channels, self.inner)[block]
        if len(part) != len(target):
            part = part.reshape(part.shape[1], len(target), -1).transpose(1, 0, 2)
        np.copyto(target, part, casting="unsafe")
