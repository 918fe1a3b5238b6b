"""What an edit stores as a constant: the array as it came, or a tensor of onnx_ir.

An onnx_ir tensor costs more to make than all else about a small constant, and asking one what it is costs as much again
(its classes are runtime protocols). So plain arrays stay arrays, from the callback to the file, until somebody asks for
a tensor. Types that numpy does not have (4 bits, bfloat16, text) are tensors from the start.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx_ir as ir

Held = np.ndarray | ir.TensorProtocol


def hold(value: np.ndarray | np.generic | float) -> Held:
    """An array or a number, as it is held."""
    array = np.asarray(value)
    if array.dtype.isbuiltin == 1 and array.dtype.isnative and array.dtype.kind in "biufc":
        return array
    return ir.Tensor(array)


def tensor_of(held: Held) -> ir.TensorProtocol:
    return ir.Tensor(held) if isinstance(held, np.ndarray) else held


def array_of(held: Held) -> np.ndarray:
    return held if isinstance(held, np.ndarray) else held.numpy()


def dtype_of(held: Held) -> ir.DataType:
    return data_type(held.dtype) if isinstance(held, np.ndarray) else held.dtype


def shape_of(held: Held) -> tuple[int, ...]:
    return held.shape if isinstance(held, np.ndarray) else tuple(held.shape.numpy())


@cache
def data_type(dtype: np.dtype) -> ir.DataType:
    return ir.DataType.from_numpy(dtype)
