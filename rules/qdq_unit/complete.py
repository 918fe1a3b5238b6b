"""The callbacks' work: from a matched unit to the tensors of its full QDQ form, or a reason to decline.

The arithmetic is `rules.quantization`'s; here it meets the model: which tensor is what, which axis, which shapes. What
cannot be quantized rightly is declined with the tensor's name; nothing is ever clipped or cast out of range silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from rewriter import Decline, Match, NoMatch, Unshared, Value
from rules import quantization as qm
from rules.backends import GENERIC, TENSOR, Backend, is_power_of_two
from rules.qdq_unit.input_moments import input_moments
from rules.qdq_unit.unit import (
    FLOAT32,
    input_scale,
    per_channel_possible,
    scalar,
    scale_repeats,
    type_name,
    weight_axis,
    zero_point,
)

Returned = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Factors:
    """Gemm's factors; 1 for the other ops."""

    alpha: float = 1.0
    beta: float = 1.0

    @staticmethod
    def of(m: Match) -> Factors:
        return Factors(float(m.attribute("alpha")), float(m.attribute("beta")))


NO_FACTORS = Factors()
PLAIN = qm.Scheme()


def named(tensor: str, work: Callable[[], T]) -> T:
    """Do the arithmetic; what it refuses is declined with the tensor's name."""
    try:
        return work()
    except qm.NotQuantizable as refusal:
        raise Decline(f"{tensor}: {refusal.reason}") from None


def float_tensor(value: Value, what: str) -> np.ndarray:
    """The elements of a constant float32 tensor, finite. Raises Decline."""
    if value.is_overridable:
        raise Decline(f"the {what} {value.name!r} is also a graph input, so the caller can override it")
    if not value.is_constant:
        raise Decline(f"the {what} {value.name!r} is computed at run time")
    if type_name(value) != FLOAT32:
        raise Decline(f"the {what} {value.name!r} is {type_name(value)}; only float32 is quantized")
    found = value.numpy()
    bad = qm.first_bad(found)
    if bad is not None:
        raise Decline(f"the {what} {value.name!r} holds {found[bad]} at {list(bad)}")
    return found


def bias_values(m: Match) -> qm.BiasValues | None:
    """The unit's bias, exactly, beta not yet folded; None without one. A run-time bias is another rule's."""
    if m["b_q"] is not None:
        return dequantized_bias(m)
    bias = m.maybe("b")
    if bias is None:
        return None
    if not bias.is_constant:
        raise NoMatch
    return qm.BiasValues.of_floats(float_tensor(bias, "bias"))


def dequantized_bias(m: Match) -> qm.BiasValues:
    """A quantized bias as its integers and their scale, so that it is requantized without rounding in between."""
    codes, scale = m.array("b_q"), m.value("b_scale")
    if not scale.is_constant:
        raise NoMatch
    zero = m.maybe("b_zp")
    if zero is not None and not zero.is_constant:
        raise NoMatch
    held = 0 if zero is None else zero.numpy()
    axis = bias_axis_of(m, codes)
    return named(f"bias {m.value('b_q').name!r}", lambda: qm.BiasValues.of_codes(codes, scale.numpy(), held, axis=axis))


def bias_axis_of(m: Match, codes: np.ndarray) -> int:
    """The axis of a quantized bias' scales. Raises Decline for a bias that is quantized in blocks."""
    dq = m.node("bias")
    if dq.attribute("block_size"):
        raise Decline(f"the bias {m.value('b_q').name!r} is quantized in blocks")
    stated = dq.attribute("axis")
    return normalized_axis(1 if stated is None else int(stated), codes.ndim)


def normalized_axis(axis: int, rank: int) -> int:
    """An axis from 0 on; 0 where the rank has no such axis (a scalar scale minds none)."""
    return axis % rank if -rank <= axis < rank else 0


def complete_unit(
    m: Match,
    core: str,
    factors: Factors = NO_FACTORS,
    bias: bool = True,
    scheme: qm.Scheme = PLAIN,
    backend: Backend = GENERIC,
) -> Returned:
    """Weight, and bias if there is one, of a unit whose weight is float, in the form that the backend takes."""
    node = m.node(core)
    x_scale = input_scale(m)
    weight = m.value("w")
    w = float_tensor(weight, "weight")
    b = bias_values(m) if bias else None
    require_opset(m, scheme)
    axis = weight_axis(node, w.ndim)
    whole = not per_channel_possible(m) or backend.granularity_of(node.op_type, axis) == TENSOR
    if whole and scheme.granularity == "channel":
        scheme = replace(scheme, granularity="tensor")
    if backend.power_of_two:
        scheme = replace(scheme, power_of_two=True)
    moments = input_moments(m, x_scale, w.shape)
    repeat = 1 if axis is None else scale_repeats(node)
    if scheme.granularity == "block":
        return complete_blocks(m, core, w, factors.alpha, moments, scheme)
    unit = named(
        weight_or_bias(weight, m, b),
        lambda: qm.quantize_unit(
            w,
            b if backend.bias == "int32" else None,
            x_scale,
            axis=axis,
            scheme=scheme,
            inputs=moments,
            alpha=factors.alpha,
            beta=factors.beta,
            repeat=repeat,
        ),
    )
    held = unit.bias
    if backend.bias == "int8":
        held = shifted_bias(m, None if b is None else b.times(factors.beta), x_scale, unit.weight.scale)
    guard(m, backend, x_scale, unit.weight.scale, held)
    note_unit(m, node.op_type, weight.name, unit.weight, held, unit.raised)
    m.note(on_grid=unit.on_grid)
    returned = weight_tensors(unit.weight)
    if bias:
        returned |= bias_tensors(held, "b_scale", backend)
    return returned


def shifted_bias(
    m: Match, b: qm.BiasValues | None, x_scale: np.float32, w_scale: np.ndarray
) -> qm.QuantizedTensor | None:
    """An int8 bias at a power-of-two scale of its own, after checking that the unit's shifts are in range."""
    y_scale = scalar(m.value("y_scale"))
    if y_scale is None:
        raise Decline("the output's scale is no constant")
    values = np.zeros(1) if b is None else b.number * b.unit
    found = named("the unit", lambda: qm.power_of_two_bias(values, float(x_scale), float(w_scale.max()), y_scale))
    return None if b is None else found.bias


def guard(
    m: Match, backend: Backend, x_scale: np.float32, w_scale: np.ndarray, bias: qm.QuantizedTensor | None
) -> None:
    """Decline where the backend would not requantize rightly."""
    if not backend.htp_guards:
        return
    y_scale, y_zero = scalar(m.value("y_scale")), zero_point(m.maybe("y_zp"))
    if y_scale is None or y_zero is None:
        raise Decline("the output's scale and zero point are no constants")
    grouped = bias is not None and bias.scale.shape != w_scale.shape
    scales = w_scale if bias is None or not grouped else np.tile(w_scale, bias.scale.size // max(1, w_scale.size))
    codes = None if bias is None else bias.codes
    reason = qm.htp_refuses(x_scale, scales, y_scale, y_zero, codes)
    if reason is not None:
        raise Decline(f"{backend.name}: {reason}")


def complete_blocks(
    m: Match, core: str, w: np.ndarray, alpha: float, moments: qm.InputMoments | None, scheme: qm.Scheme
) -> Returned:
    """The weight of a unit, in blocks along the axis that is summed over."""
    node, weight = m.node(core), m.value("w")
    axis = weight_axis(node, w.ndim)
    summed = w.ndim - 2 if axis is None else 1 - axis
    held = w if alpha == 1 else w.astype(np.float64) * alpha
    quantized = named(
        f"weight {weight.name!r}",
        lambda: qm.quantize_weight(held, axis, scheme, block_axis=summed, moments=moments),
    )
    note_unit(m, node.op_type, weight.name, quantized, None, 0)
    return weight_tensors(quantized)


def require_opset(m: Match, scheme: qm.Scheme) -> None:
    """What DequantizeLinear takes only from opset 21 on, in ai.onnx."""
    new = scheme.weight_type in ("int4", "uint4", "int16") or scheme.granularity == "block"
    if new and m.opset < 21 and not m.node("x").op_type.startswith("com.microsoft"):
        what = "blocks" if scheme.granularity == "block" else f"{scheme.weight_type} weights"
        raise Decline(f"{what} need opset 21 or later; the model is at {m.opset}")


def weight_tensors(weight: qm.QuantizedTensor) -> Returned:
    codes, zero_point = weight.stored()
    return {"w_quantized": codes, "w_scale": weight.scale, "w_zero_point": zero_point, "axis": weight.axis}


def weight_or_bias(weight: Value, m: Match, b: qm.BiasValues | None) -> str:
    return f"weight {weight.name!r}" if b is None else f"weight {weight.name!r} and its bias"


def bias_tensors(bias: qm.QuantizedTensor | None, scale: str, backend: Backend) -> Returned:
    if bias is None:
        return {"b_quantized": None, scale: None, "bias_axis": None}
    codes = bias.codes if backend.shares_constants else Unshared(bias.codes)
    return {"b_quantized": codes, scale: bias.scale, "bias_axis": bias.axis}


def complete_bias(m: Match, core: str, factors: Factors = NO_FACTORS, backend: Backend = GENERIC) -> Returned:
    """The bias of a unit whose weight is quantized already: float, or quantized at another scale."""
    node = m.node(core)
    x_scale = input_scale(m)
    w_scale = quantized_weight_scale(m, core)
    require_weight(m, core, backend, w_scale)
    if factors.alpha < 0:
        raise Decline(f"alpha is {factors.alpha}: a negative factor cannot be folded into the weight's scale")
    scale = np.asarray(w_scale.astype(np.float64) * factors.alpha, np.float32)
    if m["b_q"] is not None:
        right = stands_alone(m) if backend.bias == "int8" else is_right(m, x_scale, scale, scale_repeats(node))
        if factors == Factors() and right:
            raise NoMatch
        name = m.value("b_q").name
    else:
        name = m.value("b").name
    b = bias_values(m)
    assert b is not None
    repeat = scale_repeats(node) if scale.ndim else 1
    bias: qm.QuantizedTensor | None
    if backend.bias == "int8":
        bias = shifted_bias(m, b.times(factors.beta), x_scale, scale)
    else:
        bias = named(
            f"bias {name!r}", lambda: qm.quantize_bias_for(b, x_scale, scale, beta=factors.beta, repeat=repeat)
        )
    assert bias is not None
    guard(m, backend, x_scale, scale, bias)
    m.note(op=node.op_type, bias=name, bias_shape=list(bias.codes.shape))
    return bias_tensors(bias, "b_new_scale", backend)


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
        if zero is not None and not (zero.is_constant and not zero.numpy().any()):
            raise Decline(f"{backend.name} takes weights with zero point 0 only")


def folded_scale(m: Match) -> np.ndarray:
    """The scale of a Gemm's quantized weight with alpha folded in, rounded once to float32."""
    return np.asarray(m.array("w_scale").astype(np.float64) * m.attribute("alpha"), np.float32)


def stands_alone(m: Match) -> bool:
    """Whether an existing bias is int8 at a power-of-two scale."""
    scale = scalar(m.value("b_scale"))
    return type_name(m.value("b_q")) == "int8" and is_power_of_two(scale)


def is_right(m: Match, x_scale: np.float32, w_scale: np.ndarray, repeat: int) -> bool:
    """Whether an existing bias stands at the product of the scales, with zero point 0."""
    held = m.value("b_scale")
    zero = m.maybe("b_zp")
    if not held.is_constant or type_name(m.value("b_q")) != "int32":
        return not held.is_constant
    if zero is not None and not (zero.is_constant and not zero.numpy().any()):
        return False
    expected = np.tile(w_scale, repeat) if w_scale.ndim and repeat > 1 else w_scale
    return qm.bias_is_right(held.numpy().reshape(-1), x_scale, expected.reshape(-1))


def quantized_weight_scale(m: Match, core: str) -> np.ndarray:
    """The scale of a quantized weight, [] or [C] along the channel axis. Raises Decline where it has no such form."""
    scale = m.value("w_scale")
    dq = m.node("w")
    if not m.value("w_q").is_constant or not scale.is_constant:
        raise NoMatch
    if type_name(scale) != FLOAT32:
        raise Decline(f"the weight's scale {scale.name!r} is {type_name(scale)}; float32 is expected")
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


def note_unit(
    m: Match, op: str, name: str, weight: qm.QuantizedTensor, bias: qm.QuantizedTensor | None, raised: int
) -> None:
    m.note(
        op=op,
        weight=name,
        shape=list(weight.codes.shape),
        granularity=granularity(weight),
        scale=[float(weight.scale.min()), float(weight.scale.max())] if weight.scale.size else [],
        bias=None if bias is None else list(bias.codes.shape),
        raised=raised,
    )


def granularity(weight: qm.QuantizedTensor) -> str:
    if weight.axis is None:
        return "per tensor"
    if weight.block_size:
        return f"per block of {weight.block_size}, axis {weight.axis}"
    return f"per channel, axis {weight.axis}"
