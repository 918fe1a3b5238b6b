"""A quantized tensor: integer codes and what turns them back into numbers.

The three inputs of a DequantizeLinear and its axis belong together, because a scale of the wrong length or a
zero point of the wrong type is what backends reject or, worse, accept. The class checks that they agree,
once, so that nothing which receives one has to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """`value = (codes - zero_point) * scale`, as ONNX DequantizeLinear has it.

    codes: integers (int8 weights, int32 biases) of any shape. scale: float32, of shape [] (one for the
    tensor, axis None) or [C] (one for each entry of `axis`, C = its size). zero_point: of the codes' dtype
    and the scale's shape. axis: the channel axis, not negative, or None.

    Raises ValueError where these do not agree.
    """

    codes: NDArray[Any]
    scale: NDArray[np.float32]
    zero_point: NDArray[Any]
    axis: int | None

    def __post_init__(self) -> None:
        if self.codes.dtype.kind not in "iu" or self.zero_point.dtype != self.codes.dtype:
            raise ValueError("codes and zero point must be of one integer type")
        shape = () if self.axis is None else (self.codes.shape[self.axis],)
        if self.scale.dtype != np.float32 or self.scale.shape != shape or self.zero_point.shape != shape:
            raise ValueError(f"scale and zero point must have shape {list(shape)}, the scale being float32")


def along(values: NDArray[Any], rank: int, axis: int | None) -> NDArray[Any]:
    """`values` (shape [] or [C]) as a view that broadcasts along `axis` of a tensor of the given rank."""
    if axis is None:
        return values.reshape(())
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def dequantize(q: QuantizedTensor, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """The values of `q`, of its shape.

    In float32, the default, it is ONNX DequantizeLinear bit for bit: the integer difference is rounded to
    float32 (only codes beyond 2^24 notice) and multiplied by the scale. In float64 it has a relative error of
    at most 2^-53.
    """
    zero_point = along(q.zero_point, q.codes.ndim, q.axis)
    if zero_point.any():
        steps = (q.codes.astype(np.int64) - zero_point).astype(dtype)
    else:
        steps = q.codes.astype(dtype)
    return np.asarray(steps * along(q.scale, q.codes.ndim, q.axis).astype(dtype))
