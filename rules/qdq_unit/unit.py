"""What a match tells of its unit: the facts that callbacks and backends ask for, read once and in one place.

Here end the engine's words (values, nodes) and begin the field's: input and output type, scales, channel axis,
activations that the output's quantization makes redundant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rewriter import Decline, Match, Node, Value

FLOAT32 = "float"


@dataclass(frozen=True)
class Unit:
    """A unit as a backend sees it. Types are ONNX names in lower case ("int8"), None where unknown.

    Scales and zero points are None where they are no constant scalars (an absent zero point is 0).

    x or y is paired if a QuantizeLinear and a DequantizeLinear with one consumer each stand on it and nothing else.
    """

    op: str
    x_type: str | None
    y_type: str | None
    x_has_zero_point: bool
    x_scale: float | None
    y_scale: float | None
    x_zero_point: int | None
    y_zero_point: int | None
    x_is_paired: bool
    y_is_paired: bool
    bias_is_constant: bool
    bias_is_quantized: bool
    bias_shape: tuple[int, ...] | None
    x_rank: int | None
    has_add: bool
    activations: tuple[str, ...]
    redundant: tuple[bool, ...]

    @property
    def runs_as_gemm(self) -> bool:
        """A Gemm, or what ONNX Runtime makes one of: a MatMul of rank 2 with a constant Add."""
        return self.op == "Gemm" or (self.has_add and self.x_rank == 2)

    @property
    def output_stays_float(self) -> bool:
        """A MatMul and Add of rank 3 with no Q right behind: ONNX Runtime multiplies integers to a float output."""
        return self.has_add and self.x_rank == 3 and (bool(self.activations) or len(self.bias_shape or ()) > 1)

    @property
    def stays_int8(self) -> bool:
        """int8 on both sides, neither of which ONNX Runtime turns into uint8 on x86."""
        return (self.x_type, self.y_type) == ("int8", "int8") and not (self.x_is_paired or self.y_is_paired)


def type_name(value: Value | None) -> str | None:
    if value is None or value.dtype is None:
        return None
    return value.dtype.name.lower()


def input_scale(m: Match) -> np.float32:
    """The scale of the unit's input, one positive finite float32. Raises Decline naming what is wrong."""
    scale = m.value("x_scale")
    if not scale.is_constant:
        how = "the caller can override it" if scale.is_overridable else "it is computed at run time"
        raise Decline(f"the input's scale {scale.name!r} is no constant: {how}")
    if scale.shape not in ((), (1,)):
        raise Decline(f"the input is quantized per axis: its scale {scale.name!r} has shape {list(scale.shape or ())}")
    if type_name(scale) != FLOAT32:
        raise Decline(f"the input's scale {scale.name!r} is {type_name(scale)}; float32 is expected")
    found = scale.numpy().reshape(())[()]
    if not (np.isfinite(found) and found > 0):
        raise Decline(f"the input's scale {scale.name!r} is {found}; it must be positive and finite")
    return np.float32(found)


def weight_axis(core: Node, rank: int) -> int | None:
    """The axis of the output channels in a weight of this rank; None where a scale per channel has no place."""
    if core.op_type == "Conv":
        return 0
    if core.op_type == "ConvTranspose":
        return 1
    if core.op_type == "Gemm":
        return 0 if core.attribute("transB") else 1
    return 1 if rank == 2 else None


def scale_repeats(core: Node) -> int:
    """How many output channels share one entry of a per-channel weight scale: the groups of a ConvTranspose."""
    return int(core.attribute("group") or 1) if core.op_type == "ConvTranspose" else 1


def per_channel_possible(m: Match) -> bool:
    """Whether the unit's DequantizeLinear takes an axis: ai.onnx's does from opset 13 on, com.microsoft's always."""
    return m.node("x").op_type.startswith("com.microsoft") or m.opset >= 13


def quantized_type(m: Match, zero_point: str, node: Node | None) -> str | None:
    """The element type of Q's output: that of the zero point, else `output_dtype`, else uint8."""
    held = m.maybe(zero_point)
    if held is not None:
        return type_name(held)
    code = int(node.attribute("output_dtype") or 0) if node is not None else 0
    return {0: "uint8", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16"}.get(code)


def scalar(value: Value) -> float | None:
    """The one element of a constant; None where it is none."""
    if not value.is_constant:
        return None
    held = value.numpy()
    return float(held.reshape(-1)[0]) if held.size == 1 else None


def is_dequantized(value: Value | None) -> bool:
    return value is not None and (value.producer_type or "").endswith("DequantizeLinear")


def zero_point(value: Value | None) -> int | None:
    """A zero point; 0 where it is absent, None where it is no constant scalar."""
    found = 0.0 if value is None else scalar(value)
    return None if found is None else int(found)


def describe(m: Match, core: str) -> Unit:
    """The unit as a backend sees it."""
    x = m.output("x")
    x_q = m.value("x_q")
    activations = m.nodes("act")
    held = [m[name] for name in ("b", "b_q") if name in m.names]
    bias = next((v for v in held if v is not None), None)
    return Unit(
        op=m.node(core).op_type,
        x_type=type_name(m.maybe("x_zp")) or type_name(x_q) or "uint8",
        y_type=quantized_type(m, "y_zp", m.root),
        x_has_zero_point=m.maybe("x_zp") is not None,
        x_scale=scalar(m.value("x_scale")),
        y_scale=scalar(m.value("y_scale")),
        x_zero_point=zero_point(m.maybe("x_zp")),
        y_zero_point=zero_point(m.maybe("y_zp")),
        x_is_paired=is_paired(m, x_q) and sole_user(m, x) is not None,
        y_is_paired=y_is_paired(m),
        bias_is_constant=bias is None or bias.is_constant,
        bias_is_quantized=("b_q" in m.names and m["b_q"] is not None) or is_dequantized(bias),
        bias_shape=None
        if bias is None or bias.shape is None
        else tuple(d if isinstance(d, int) else 0 for d in bias.shape),
        x_rank=len(x.shape) if "add" in m.names and x.shape is not None else None,
        has_add="add" in m.names,
        activations=tuple(n.op_type for n in activations),
        redundant=tuple(is_redundant(n, m) for n in activations),
    )


def sole_user(m: Match, value: Value) -> Node | None:
    """The one node that reads a value, if it is no graph output."""
    users = m.reads(value).users
    return users[0] if len(users) == 1 and not value.is_graph_output else None


def is_paired(m: Match, x_q: Value) -> bool:
    producer = m.reads(x_q).producer
    return producer is not None and producer.op_type.endswith("QuantizeLinear") and sole_user(m, x_q) is not None


def y_is_paired(m: Match) -> bool:
    y = m.root.outputs[0]
    assert y is not None
    user = sole_user(m, y)
    if user is None or not user.op_type.endswith("DequantizeLinear") or user.outputs[0] is None:
        return False
    return len(m.reads(user.outputs[0]).users) + user.outputs[0].is_graph_output == 1


def is_redundant(node: Node, m: Match) -> bool:
    """Whether the output's quantization clips all that a Relu or Clip would, as ONNX Runtime sees it.

    A Relu is redundant where the zero point is the smallest code; a Clip where its bounds quantize to the smallest and
    the largest code. (onnxruntime/core/optimizer/qdq_transformer/relu_quantizelinear.cc and clip_quantizelinear.cc;
    measured with 1.32: a Clip stays where the scale has shape [1], and so does the first of two.)
    """
    zero_point, scale = m.maybe("y_zp"), m.value("y_scale")
    kind = quantized_type(m, "y_zp", m.root)
    if kind not in ("uint8", "int8", "uint16", "int16") or not scale.is_constant:
        return False
    if zero_point is not None and not zero_point.is_constant:
        return False
    info = np.iinfo(np.dtype(kind))
    zero = 0 if zero_point is None else int(zero_point.numpy().reshape(-1)[0])
    if node.op_type == "Relu":
        return zero == info.min
    floor, ceiling = clip_bound(node, 1, "min"), clip_bound(node, 2, "max")
    clips = [n for n in m.nodes("act") if n.op_type == "Clip"]
    if floor is None or ceiling is None or scale.shape != () or len(clips) > 1:
        return False
    step = np.float32(scale.numpy())
    return bool(
        np.rint(np.float32(floor) / step) + zero <= info.min and np.rint(np.float32(ceiling) / step) + zero >= info.max
    )


def clip_bound(node: Node, slot: int, attribute: str) -> float | None:
    """A bound of a Clip, infinite where it states none; None where it is known only at run time."""
    stated: Any = node.attribute(attribute)
    if stated is not None:
        return float(stated)
    inputs = node.inputs
    held = inputs[slot] if slot < len(inputs) else None
    if held is None:
        return -np.inf if slot == 1 else np.inf
    return float(held.numpy().reshape(-1)[0]) if held.is_constant else None
