"""The callbacks' work: from a matched unit to the tensors of its full QDQ form, or a reason to decline.

The arithmetic is `rules.quantization`'s; here it meets the model: which tensor is what, which axis, which shapes. What
cannot be quantized rightly is declined with the tensor's name; nothing is ever clipped or cast out of range silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from rewriter import Decline, Match, Node, NoMatch, Unshared, Value
from rules import quantization as qm
from rules.backends import GENERIC, TENSOR, Backend
from rules.qdq_unit.already_quantized import is_right, quantized_weight_scale, require_weight, stands_alone
from rules.qdq_unit.float_types import (
    float_type,
    is_microsoft,
    is_uniform,
    output_dtype,
    require_float,
    scale_type,
    times_alpha,
    type_name,
)
from rules.qdq_unit.input_moments import input_moments
from rules.qdq_unit.narrow_scales import bias_in_type, quantized_in_type, require_finite
from rules.qdq_unit.unit import (
    added_shape,
    input_scale,
    per_channel_possible,
    scalar,
    scale_repeats,
    weight_axis,
    zero_point,
)
from rules.qdq_unit.unit_notes import bias_of, folding_error, note_unit, weight_of

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


def float_tensor(m: Match, value: Value, what: str) -> np.ndarray:
    """The elements of a constant tensor of the unit's float type, finite. Raises Decline."""
    if value.is_overridable:
        raise Decline(f"the {what} {value.name!r} is also a graph input, so the caller can override it")
    if not value.is_constant:
        raise Decline(f"the {what} {value.name!r} is computed at run time")
    require_float(value, what)
    if type_name(value) != float_type(m):
        raise Decline(f"the {what} {value.name!r} is {type_name(value)} beside an input of {float_type(m)}")
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
    return qm.BiasValues.of_floats(float_tensor(m, bias, "bias"))


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
    zero_points: bool = False,
    reason: str | None = None,
) -> Returned:
    """Weight, and bias if there is one, of a unit whose weight is float, in the form that the backend takes.

    zero_points: whether a symmetric scheme gives way to zero points where these pay. reason: why the unit is no integer
    kernel, for the report.
    """
    node = m.node(core)
    x_scale = input_scale(m)
    weight = m.value("w")
    w = float_tensor(m, weight, "weight")
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
    if repeat > 1 and w.shape[0] % repeat:
        raise Decline(
            f"the weight {weight.name!r} has {w.shape[0]} input channels, which {repeat} groups do not divide"
        )
    if scheme.granularity == "block":
        return complete_blocks(m, core, w, factors.alpha, moments, scheme, backend, reason)
    skewed = backend.asymmetric(node.op_type, scheme)
    if not scheme.symmetric:
        if skewed is None:
            raise Decline(f"{backend.name} takes a weight of {node.op_type} with zero point 0 only")
        scheme = replace(skewed, search=scheme.search)
    in_int32 = b if backend.bias == "int32" else None
    # Only a bias has the product of the scales for its own, which has to be a number of the type.
    unit_scale = x_scale if in_int32 is not None or scale_type(m) == "float32" else x_scale.dtype.type(1)

    def work(kind: str) -> qm.QuantizedUnit:
        return qm.quantize_unit(
            w,
            in_int32,
            unit_scale,
            axis=axis,
            scheme=replace(scheme, scale_type=kind),
            allowed=(replace(skewed, scale_type=kind),) if zero_points and skewed is not None else (),
            inputs=moments,
            alpha=factors.alpha,
            beta=factors.beta,
            repeat=repeat,
        )

    depth = w.size if axis is None else w.size // max(1, w.shape[axis])
    unit = named(weight_or_bias(weight, m, b), lambda: quantized_in_type(m, weight.name, depth, unit_scale, work))
    require_finite(m, weight.name, unit.weight)
    held, folded = unit.bias, None if b is None else b.times(factors.beta)
    if backend.bias == "int8":
        held = shifted_bias(m, folded, x_scale, unit.weight.scale)
    guard(m, backend, x_scale, unit.weight.scale, held)
    note_unit(
        m,
        node,
        unit_output(m, core),
        weight_of(
            m, node, w, unit.weight, unit.scheme, moments,
            alpha=factors.alpha, on_grid=unit.on_grid, raised=unit.raised,
        ),
        bias_of(m, folded, held),
        backend=backend.name,
        reason=reason,
    )  # fmt: skip
    returned = weight_tensors(m, unit.weight)
    if bias:
        returned |= bias_tensors(m, held, "b_scale", backend)
    return returned


def shifted_bias(
    m: Match, b: qm.BiasValues | None, x_scale: np.floating[Any], w_scale: np.ndarray
) -> qm.QuantizedTensor | None:
    """An int8 bias at a power-of-two scale of its own, after checking that the unit's shifts are in range.

    The scale has the type of the weight's. Raises Decline where that cannot hold it.
    """
    y_scale = scalar(m.value("y_scale"))
    if y_scale is None:
        raise Decline("the output's scale is no constant")
    values = np.zeros(1) if b is None else b.number * b.unit
    found = named("the unit", lambda: qm.power_of_two_bias(values, float(x_scale), float(w_scale.max()), y_scale)).bias
    held = found.scale.astype(w_scale.dtype)
    if held.astype(np.float64) != found.scale:
        raise Decline(f"the scale of the bias, {found.scale:g}, is no {w_scale.dtype.name}")
    return None if b is None else replace(found, scale=held)


def guard(
    m: Match, backend: Backend, x_scale: np.floating[Any], w_scale: np.ndarray, bias: qm.QuantizedTensor | None
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
    m: Match,
    core: str,
    w: np.ndarray,
    alpha: float,
    moments: qm.InputMoments | None,
    scheme: qm.Scheme,
    backend: Backend,
    reason: str | None,
) -> Returned:
    """The weight of a unit, in blocks along the axis that is summed over."""
    node, weight = m.node(core), m.value("w")
    axis = weight_axis(node, w.ndim)
    summed = w.ndim - 2 if axis is None else 1 - axis
    held = w if alpha == 1 else w.astype(np.float64) * alpha
    # Beside an output of another type there is a choice, and float32 is never too narrow.
    scheme = replace(scheme, scale_type=scale_type(m) if is_uniform(m) else "float32")
    quantized = named(
        f"weight {weight.name!r}",
        lambda: qm.quantize_weight(held, axis, scheme, block_axis=summed, moments=moments),
    )
    require_finite(m, weight.name, quantized)
    change = weight_of(m, node, w, quantized, scheme, moments, alpha=alpha)
    note_unit(m, node, unit_output(m, core), change, None, backend=backend.name, reason=reason)
    return weight_tensors(m, quantized)


def require_opset(m: Match, scheme: qm.Scheme) -> None:
    """What DequantizeLinear takes only from opset 21 on, in ai.onnx; com.microsoft's has no blocks."""
    new = scheme.weight_type in ("int4", "uint4", "int16") or scheme.granularity == "block"
    if new and m.opset < 21 and not is_microsoft(m):
        what = "blocks" if scheme.granularity == "block" else f"{scheme.weight_type} weights"
        raise Decline(f"{what} need opset 21 or later; the model is at {m.opset}")
    if scheme.granularity == "block" and is_microsoft(m):
        raise Decline("com.microsoft's DequantizeLinear takes no blocks; that of ai.onnx does from opset 21 on")


def weight_tensors(m: Match, weight: qm.QuantizedTensor) -> Returned:
    codes, zero_point = weight.stored()
    returned = {"w_quantized": codes, "w_scale": weight.scale, "w_zero_point": zero_point, "axis": weight.axis}
    return returned | {"dtype": output_dtype(m, weight.scale)}


def weight_or_bias(weight: Value, m: Match, b: qm.BiasValues | None) -> str:
    return f"weight {weight.name!r}" if b is None else f"weight {weight.name!r} and its bias"


def bias_tensors(m: Match, bias: qm.QuantizedTensor | None, scale: str, backend: Backend) -> Returned:
    if bias is None:
        return {"b_quantized": None, scale: None, "bias_axis": None}
    written = np.broadcast_to(bias.codes, added_shape(m, bias.codes.shape))
    codes = written if backend.shares_constants else Unshared(written)
    returned = {"b_quantized": codes, scale: bias.scale, "bias_axis": bias.axis}
    return returned | {"dtype": output_dtype(m, bias.scale)}


def complete_bias(
    m: Match,
    core: str,
    factors: Factors = NO_FACTORS,
    backend: Backend = GENERIC,
    judge: Callable[[], str | None] = lambda: None,
) -> Returned:
    """The bias of a unit whose weight is quantized already: float, or quantized at another scale.

    judge: why the unit is no integer kernel, for the report; asked if there is anything to do.
    """
    node = m.node(core)
    x_scale = input_scale(m)
    w_scale = quantized_weight_scale(m, core)
    require_weight(m, core, backend, w_scale)
    scale = times_alpha(w_scale, factors.alpha)
    if m["b_q"] is not None:
        right = stands_alone(m) if backend.bias == "int8" else is_right(m, x_scale, scale, scale_repeats(node))
        if factors == Factors() and right:
            raise NoMatch
        name = m.value("b_q").name
    else:
        name = m.value("b").name
    b = bias_values(m)
    assert b is not None
    reason, repeat, folded = judge(), scale_repeats(node), b.times(factors.beta)
    bias: qm.QuantizedTensor | None
    if backend.bias == "int8":
        bias = shifted_bias(m, folded, x_scale, scale)
    else:
        products = weight_steps(m, node)

        def work(held: np.ndarray) -> qm.QuantizedTensor:
            return qm.quantize_bias_for(b, x_scale, held, beta=factors.beta, repeat=repeat, **products)

        bias = named(f"bias {name!r}", lambda: bias_in_type(m, name, x_scale, scale, work))
    assert bias is not None
    guard(m, backend, x_scale, scale, bias)
    note_unit(
        m, node, unit_output(m, core), None, bias_of(m, folded, bias),
        backend=backend.name, reason=reason, folded=0.0 if factors.alpha == 1 else folding_error(m, scale),
    )  # fmt: skip
    return bias_tensors(m, bias, "b_new_scale", backend)


def weight_steps(m: Match, node: Node) -> dict[str, Any]:
    """What the products of an 8-bit weight, quantized already, add to the accumulator: for `quantize_bias_for`."""
    codes, zero = m.array("w_q"), m.maybe("w_zp")
    if codes.dtype not in (np.int8, np.uint8) or (zero is not None and not zero.is_constant):
        return {}
    held = np.zeros(1, codes.dtype) if zero is None else zero.numpy()
    axis = weight_axis(node, codes.ndim)
    along = codes.ndim - 1 if axis is None else axis
    shape = [-1 if i == along else 1 for i in range(codes.ndim)] if held.size > 1 else ()
    return {"codes": codes, "zero_point": held.reshape(shape), "axis": axis}


def unit_output(m: Match, core: str) -> Value:
    """What the unit gives before any Relu, Clip and Q."""
    return m.output("add" if "add" in m.names else core)
