"""A quantized tensor: integer codes and what turns them back into numbers.

The three inputs of a DequantizeLinear and its axis belong together, because a scale of the wrong length or a
zero point of the wrong type is what backends reject or, worse, accept. The class checks that they agree,
once, so that nothing which receives one has to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

FOUR_BITS = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """`value = (codes - zero_point) * scale`, as ONNX DequantizeLinear has it.

    codes: integers (int8 weights, int32 biases) of any shape. scale: float32, float16 or bfloat16, of shape [] (one for
    the tensor, axis None) or [C] (one for each entry of `axis`, C = its size); with a block_size, one for each block
    of so many elements along axis: the shape of the codes, but ceil(C / block_size) along axis. zero_point: of the
    codes' dtype and the scale's shape. axis: not negative, or None. four_bit: "int4" or "uint4" if the codes, held
    in 8 bits, are such.

    Raises ValueError where these do not agree.
    """

    codes: NDArray[Any]
    scale: NDArray[Any]
    zero_point: NDArray[Any]
    axis: int | None
    block_size: int = 0
    four_bit: str | None = None

    def __post_init__(self) -> None:
        if self.codes.dtype.kind not in "iu" or self.zero_point.dtype != self.codes.dtype:
            raise ValueError("codes and zero point must be of one integer type")
        shape: tuple[int, ...] = ()
        if self.axis is not None and self.block_size:
            shape = tuple(-(-n // self.block_size) if i == self.axis else n for i, n in enumerate(self.codes.shape))
        elif self.axis is not None:
            shape = (self.codes.shape[self.axis],)
        kinds = (np.float32, np.float16, ml_dtypes.bfloat16)
        if self.scale.dtype not in kinds or self.scale.shape != shape or self.zero_point.shape != shape:
            raise ValueError(f"scale and zero point must have shape {list(shape)}, the scale being float32, or 16 bits")

    def stored(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Codes and zero point in the type that they are stored in: that of `four_bit` (ml_dtypes), or their own."""
        if self.four_bit is None:
            return self.codes, self.zero_point
        kind = FOUR_BITS[self.four_bit]
        return self.codes.astype(kind), self.zero_point.astype(kind)

    @property
    def nbytes(self) -> int:
        """Of codes, scale and zero point as they are stored: two 4-bit codes lie in a byte."""
        codes, zero_point = self.codes.size, self.zero_point.size
        if self.four_bit is not None:
            return -(-codes // 2) + -(-zero_point // 2) + self.scale.nbytes
        return self.codes.nbytes + self.zero_point.nbytes + self.scale.nbytes

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """values, of the scale's shape, so that they broadcast with the codes."""
        if self.block_size and self.axis is not None:
            return expand_blocks(values, self.codes.shape, self.axis, self.block_size)
        return along(values, self.codes.ndim, self.axis)


def along(values: NDArray[Any], rank: int, axis: int | None) -> NDArray[Any]:
    """`values` (shape [] or [C]) as a view that broadcasts along `axis` of a tensor of the given rank."""
    if axis is None:
        return values.reshape(())
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def expand_blocks(values: NDArray[Any], shape: tuple[int, ...], axis: int, block_size: int) -> NDArray[Any]:
    """Each entry repeated block_size times along axis, the last block cut to the shape."""
    return np.repeat(values, block_size, axis=axis).take(np.arange(shape[axis]), axis=axis)


def dequantize(q: QuantizedTensor, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """The values of `q`, of its shape, in its scale's type unless another is given.

    In the scale's type it is ONNX DequantizeLinear bit for bit: the integer difference is rounded to that type (only
    codes beyond 2^24 notice in float32) and multiplied by the scale. In float64 it has a relative error of
    at most 2^-53.
    """
    dtype = q.scale.dtype if dtype is None else dtype
    zero_point = q.spread(q.zero_point)
    if zero_point.any():
        steps = (q.codes.astype(np.int64) - zero_point).astype(dtype)
    else:
        steps = q.codes.astype(dtype)
    return np.asarray(steps * q.spread(q.scale).astype(dtype))
