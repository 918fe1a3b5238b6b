"""How a bias lies over the scales of the weight.

A bias comes as [M], [N], [1, N], a scalar, [1], [M, 1], [M, N], or with the leading dimensions of a MatMul;
the weight has one scale, one per channel, or one per channel of a group. DequantizeLinear takes scales along
one axis only, and the channels are always last in a bias: so one rule about its last dimension covers every
operator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import NotQuantizable


def lay_out(b: NDArray[Any], scale_shape: tuple[int, ...], repeat: int = 1) -> tuple[NDArray[Any], int | None]:
    """The bias, its last dimension expanded to the channels if need be, and the axis of its scales.

    scale_shape: of the weight's scale, [] or [C]. The channels are C * repeat: output channel g * C + c has
    scale c. With one scale for all ([], or [1] under a wider bias) the bias stays as it is and the axis is
    None.

    Raises NotQuantizable if the last dimension is neither 1 nor the channels.
    """
    if not scale_shape:
        return b, None
    channels = scale_shape[0] * repeat
    width = b.shape[-1] if b.ndim else 1
    if width == channels and b.ndim:
        return b, b.ndim - 1
    if width == 1:
        expanded = np.broadcast_to(b, (*b.shape[:-1], channels))
        return expanded, expanded.ndim - 1
    if channels == 1:
        return b, None
    raise NotQuantizable(f"a bias of shape {list(b.shape)} does not fit {channels} output channels")


def spread(w_scale: NDArray[np.float32], axis: int | None, repeat: int = 1) -> NDArray[np.float32]:
    """The weight's scales as the bias with that axis needs them: shape [], or [C * repeat]."""
    return w_scale.reshape(()) if axis is None else np.tile(w_scale, repeat)


def abs_max_per_scale(b: NDArray[Any], scale_shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The largest |b| (laid out) that meets each weight scale: shape of the scale; 0 where there is none."""
    magnitude = np.abs(np.asarray(b, np.float64))
    if scale_shape in ((), (1,)):
        return np.asarray(magnitude.max(initial=0.0)).reshape(scale_shape)
    (channels,) = scale_shape
    rows = b.size // channels if channels else 0
    return np.asarray(magnitude.reshape(rows, channels).max(axis=0, initial=0.0))
