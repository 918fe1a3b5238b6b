"""The nodes that ONNX Runtime's WeightBiasQuantization takes, and its numbers (scheme="onnxruntime").

The conditions are those of onnxruntime/core/optimizer/qdq_transformer/weight_bias_quantization.cc, in its order: the
scale of the input has shape [] or [1]; the output has exactly one consumer and reaches a QuantizeLinear through any
number of Relu and Clip (graph outputs are not looked at); the weight is behind a DequantizeLinear or a float32
initializer of the same graph; the bias, if any, is a rank-1 initializer, or the whole node is left alone.

There is one difference. ONNX Runtime also takes an initializer that the caller can override: it leaves a
QuantizeLinear that runs at run time, with a scale from the values of today. A file cannot hold codes of a value that is
not known yet, so such a node is declined.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rewriter import Decline, Match, NoMatch, Value
from rules import quantization as qm
from rules.qdq_unit.float_types import type_name
from rules.qdq_unit.unit import FLOAT32, weight_axis
from rules.qdq_unit.unit_notes import bias_of, note_unit, weight_of

Returned = dict[str, Any]
SCHEME = qm.Scheme(symmetric=False, granularity="tensor", search="minmax", rounding="nearest")


def ort_weight_and_bias(m: Match) -> Returned:
    """Weight and bias of a node whose weight is a float32 initializer."""
    x_scale = input_scale(m)
    require_reaches_q(m)
    weight = m.value("w")
    if not (m.is_local(weight) and is_folded(m, weight)) or type_name(weight) != FLOAT32:
        raise NoMatch
    bias = rank_1_bias(m)
    elements = weight.numpy()
    w = qm.ort_weight(elements)
    returned: Returned = {"w_quantized": w.codes, "w_scale": w.scale, "w_zero_point": w.zero_point}
    b = None if bias is None else qm.ort_bias(bias, x_scale, w.scale)
    note_unit(m, m.root, output(m), weight_of(m, m.root, elements, w, SCHEME, None), bias_of(m, values(bias), b))
    if b is None:
        return returned | {"b_quantized": None, "b_scale": None}
    return returned | {"b_quantized": b.codes, "b_scale": b.scale.reshape(product_shape(x_scale, w.scale))}


def ort_bias_only(m: Match) -> Returned:
    """The float bias of a node whose weight is quantized."""
    x_scale = input_scale(m)
    require_reaches_q(m)
    bias = rank_1_bias(m)
    scale = m.value("w_scale")
    if bias is None or not scale.is_constant:
        raise NoMatch
    w_scale = scale.numpy()
    if w_scale.size != 1:
        dq = m.node("w")
        shape = m.value("w_q").shape or ()
        stated = dq.attribute("axis")
        axis = (1 if stated is None else int(stated)) % max(len(shape), 1)
        if (
            w_scale.ndim != 1
            or w_scale.shape != bias.shape
            or dq.attribute("block_size")
            or axis != weight_axis(m.root, len(shape))
        ):
            raise NoMatch
    b = qm.ort_bias(bias, x_scale, w_scale)
    note_unit(m, m.root, output(m), None, bias_of(m, values(bias), b))
    return {"b_quantized": b.codes, "b_new_scale": b.scale.reshape(product_shape(x_scale, w_scale)), "axis": b.axis}


def output(m: Match) -> Value:
    found = m.root.outputs[0]
    assert found is not None
    return found


def values(bias: np.ndarray | None) -> qm.BiasValues | None:
    """For the report, which states what is off: with a NaN, too, and without beta, which this optimizer leaves out."""
    return None if bias is None else qm.BiasValues(np.asarray(bias, np.float64), np.asarray(1.0))


def input_scale(m: Match) -> np.ndarray:
    scale = m.value("x_scale")
    if scale.shape not in ((), (1,)):
        raise NoMatch
    refuse_overridable(scale)
    if not scale.is_constant:
        raise NoMatch
    return scale.numpy()


def refuse_overridable(value: Value) -> None:
    if value.is_overridable:
        raise Decline(f"{value.name!r} is also a graph input, so the caller can override it")


def is_folded(m: Match, value: Value) -> bool:
    """Whether the value is an initializer when the optimizer looks: constant folding comes first, but for Q/DQ."""
    refuse_overridable(value)
    producer = m.reads(value).producer
    if producer is None or producer.op_type == "Constant":
        return value.is_constant
    if producer.op_type.endswith(("QuantizeLinear", "DequantizeLinear")):
        return False
    return value.is_constant and all(is_folded(m, v) for v in producer.inputs if v is not None)


def rank_1_bias(m: Match) -> np.ndarray | None:
    bias = m.maybe("b")
    if bias is None:
        return None
    if not is_folded(m, bias) or len(bias.shape or ()) != 1 or type_name(bias) != FLOAT32:
        raise NoMatch
    return bias.numpy()


def product_shape(x_scale: np.ndarray, w_scale: np.ndarray) -> tuple[int, ...]:
    """The shape in which ONNX Runtime's Mul leaves the bias' scale: [1] if either factor has it."""
    return np.broadcast_shapes(x_scale.shape, w_scale.shape)


def require_reaches_q(m: Match) -> None:
    """One consumer at each step, through Relu and Clip, to a QuantizeLinear."""
    value = m.root.outputs[0]
    while value is not None:
        users = m.reads(value).users
        if len(users) != 1:
            break
        if users[0].op_type.endswith("QuantizeLinear"):
            return
        if users[0].op_type not in ("Relu", "Clip"):
            break
        value = users[0].outputs[0]
    raise NoMatch
