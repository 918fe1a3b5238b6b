"""What a unit has quantized already: a weight, whose scale stays, and a bias that may stand at the wrong one.

Whoever completes such a unit, or judges a complete one, asks the same: along which axis the weight's scales lie,
whether the backend takes the weight as it is, and whether the bias stands at x_scale * w_scale, which kernels take for
granted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rewriter import Decline, Match, NoMatch
from rules import quantization as qm
from rules.backends import GENERIC, TENSOR, Backend, is_power_of_two
from rules.qdq_unit.float_types import require_float, times_alpha, type_name
from rules.qdq_unit.unit import scalar, weight_axis


def quantized_weight_scale(m: Match, core: str) -> np.ndarray:
    """The scale of a quantized weight, [] or [C] along the channel axis. Raises Decline where it has no such form."""
    scale = m.value("w_scale")
    dq = m.node("w")
    if not m.value("w_q").is_constant or not scale.is_constant:
        raise NoMatch
    require_float(scale, "weight's scale")
    found = scale.numpy()
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise Decline(f"the weight's scale {scale.name!r} is not positive and finite everywhere")
    if found.size == 1 and found.ndim <= 1:
        return np.asarray(found.reshape(()))
    if dq.attribute("block_size"):
        raise Decline(f"the weight {m.value('w_q').name!r} is quantized in blocks; its bias has no scale")
    shape = m.value("w_q").shape or ()
    stated = dq.attribute("axis")
    axis = (1 if stated is None else int(stated)) % max(len(shape), 1)
    wanted = weight_axis(m.node(core), len(shape))
    if wanted is None and m.node(core).op_type == "MatMul":
        wanted = len(shape) - 1  # ours is per tensor there, but along the last axis is right too
    if found.ndim != 1 or axis != wanted:
        raise Decline(
            f"the weight {m.value('w_q').name!r} is quantized along axis {axis}; "
            f"its output channels lie along axis {wanted}"
        )
    return found


def require_weight(m: Match, core: str, backend: Backend, w_scale: np.ndarray) -> None:
    """Decline a weight that is quantized already, in a form that the backend does not take."""
    if backend is GENERIC:
        return
    weight, zero = m.value("w_q"), m.maybe("w_zp")
    axis = weight_axis(m.node(core), len(weight.shape or ()))
    if w_scale.size > 1 and backend.granularity_of(m.node(core).op_type, axis) == TENSOR:
        raise Decline(
            f"{backend.name} takes one scale for the weight of this {m.node(core).op_type}; it has one per channel"
        )
    if backend.power_of_two and not all(is_power_of_two(float(s)) for s in w_scale.reshape(-1)):
        raise Decline(f"{backend.name} takes power-of-two scales only; that of the weight is none")
    if backend.weight_types is not None:
        if type_name(weight) not in backend.weight_types:
            raise Decline(
                f"{backend.name} takes {' or '.join(backend.weight_types)} weights, this one is {type_name(weight)}"
            )
        if not backend.zero_points and zero is not None and not (zero.is_constant and not zero.numpy().any()):
            raise Decline(f"{backend.name} takes weights with zero point 0 only")


def folded_scale(m: Match) -> np.ndarray:
    """The scale of a Gemm's quantized weight with alpha folded in."""
    return times_alpha(m.array("w_scale"), float(m.attribute("alpha")))


def is_right(m: Match, x_scale: np.floating[Any], w_scale: np.ndarray, repeat: int) -> bool:
    """Whether an existing bias stands at the product of the scales, with zero point 0.

    A scale of 16 bits is right if it is the product rounded to its type, either way.
    """
    held = m.value("b_scale")
    zero = m.maybe("b_zp")
    if not held.is_constant or type_name(m.value("b_q")) != "int32":
        return not held.is_constant
    if zero is not None and not (zero.is_constant and not zero.numpy().any()):
        return False
    expected = np.tile(w_scale, repeat) if w_scale.ndim and repeat > 1 else w_scale
    found = held.numpy().reshape(-1)
    if found.dtype.itemsize == 2:
        exact = (expected.astype(np.float64) * float(x_scale)).reshape(-1)
        return bool(found.size and np.all(np.abs(found.astype(np.float64) - exact) <= np.spacing(found)))
    return qm.bias_is_right(found, x_scale, expected.reshape(-1).astype(np.float32))


def stands_alone(m: Match) -> bool:
    """Whether an existing bias is int8 at a power-of-two scale."""
    scale = scalar(m.value("b_scale"))
    return type_name(m.value("b_q")) == "int8" and is_power_of_two(scale)
