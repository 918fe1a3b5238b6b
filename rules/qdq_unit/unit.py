"""What a match tells of its unit: the facts that callbacks and backends ask for, read once and in one place.

Here end the engine's words (values, nodes) and begin the field's: input and output type, scales, channel axis,
activations that the output's quantization makes redundant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from rewriter import Decline, Match, Node, Value
from rules.qdq_unit.float_types import float_type, is_microsoft, require_float, type_name, x_type
from rules.qdq_unit.redundant import redundant

FLOAT32 = "float"

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Unit:
    """A unit as a backend sees it. Types are ONNX names in lower case ("int8"), None where unknown.

    Scales and zero points are None where they are no constant scalars (an absent zero point is 0).

    qdq_version is that of the domain of its Q and DQ: of ai.onnx, or 1 for com.microsoft. float_type is the type of
    what the operator takes; scale_types are those of the scales of x, y and a quantized weight.

    The shapes of x and the weight are told for a MatMul and Add only.

    x or y is paired if a QuantizeLinear and a DequantizeLinear with one consumer each stand on it and nothing else, and
    the zero point is a constant of the unit's own graph.
    """

    op: str
    qdq_version: int
    float_type: str | None
    scale_types: tuple[str | None, ...]
    x_type: str | None
    w_type: str | None
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
    x_shape: Shape | None
    w_shape: Shape | None
    has_add: bool
    activations: tuple[str, ...]
    redundant: tuple[bool, ...]

    @property
    def has_float_bias(self) -> bool:
        return self.bias_shape is not None and not self.bias_is_quantized

    @property
    def runs_as_gemm(self) -> bool:
        """A Gemm, or a MatMul and constant Add that ONNX Runtime makes one of, where it knows the shapes.

        (onnxruntime/core/optimizer/matmul_add_fusion.cc, and measured with 1.32.)
        """
        if self.op == "Gemm" or not self.has_add:
            return self.op == "Gemm"
        if self.x_shape is None or self.w_shape is None or len(self.w_shape) != 2:
            return False
        rows, columns = self.x_shape[0], self.w_shape[1]
        matrices = ((1, columns), (rows, 1), (rows, columns)) if len(self.x_shape) == 2 else ()
        return self.bias_shape in ((columns,), *matrices)

    @property
    def is_reshaped(self) -> bool:
        """A MatMul and Add whose x is no matrix, which ONNX Runtime makes a Gemm between two Reshapes."""
        return self.op != "Gemm" and self.runs_as_gemm and len(self.x_shape or ()) != 2

    @property
    def adds_float(self) -> bool:
        """A MatMul and Add that stay apart, whatever is added: integers are multiplied, and the Add is in float."""
        return self.has_add and not self.runs_as_gemm

    @property
    def output_stays_float(self) -> bool:
        """A MatMul and Add with no Q right behind the product: ONNX Runtime multiplies integers to a float output."""
        return self.adds_float or (self.is_reshaped and bool(self.activations))

    @property
    def stays_int8(self) -> bool:
        """int8 on both sides, neither of which ONNX Runtime turns into uint8 on x86."""
        return (self.x_type, self.y_type) == ("int8", "int8") and not (self.x_is_paired or self.y_is_paired)


def input_scale(m: Match) -> np.floating[Any]:
    """The scale of the unit's input, one positive finite number of its type. Raises Decline naming what is wrong."""
    scale = m.value("x_scale")
    if not scale.is_constant:
        how = "the caller can override it" if scale.is_overridable else "it is computed at run time"
        raise Decline(f"the input's scale {scale.name!r} is no constant: {how}")
    if scale.shape not in ((), (1,)):
        raise Decline(f"the input is quantized per axis: its scale {scale.name!r} has shape {list(scale.shape or ())}")
    require_float(scale, "input's scale")
    found: np.floating[Any] = scale.numpy().reshape(-1)[0]
    if not (np.isfinite(found) and found > 0):
        raise Decline(f"the input's scale {scale.name!r} is {found}; it must be positive and finite")
    return found


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
    return is_microsoft(m) or m.opset >= 13


def quantized_type(m: Match, zero_point: str, node: Node | None) -> str | None:
    """The element type of Q's output: that of the zero point, else `output_dtype`, else uint8."""
    held = m.maybe(zero_point)
    if held is not None:
        return type_name(held)
    code = node.attribute("output_dtype") if node is not None else None
    return onnx.TensorProto.DataType.Name(int(code)).lower() if code else "uint8"


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


def describe(m: Match, core: str, *, complete: bool = False, weight_type: str | None = None) -> Unit:
    """The unit as a backend sees it: as the rules complete it, or as it is if it is `complete`.

    It makes a difference for what is added to a MatMul, which is written with a number for each output channel.
    weight_type: of the codes that a float weight will have.
    """
    x = m.output("x")
    x_q = m.value("x_q")
    y_type = quantized_type(m, "y_zp", m.root)
    held = [m[name] for name in ("b", "b_q") if name in m.names]
    bias = next((v for v in held if v is not None), None)
    has_add = "add" in m.names
    bias_shape = None
    if bias is not None and bias.shape is not None:
        bias_shape = tuple(d if isinstance(d, int) else 0 for d in bias.shape)
        bias_shape = bias_shape if complete else added_shape(m, bias_shape)
    return Unit(
        op=m.node(core).op_type,
        qdq_version=1 if is_microsoft(m) else m.opset,
        float_type=float_type(m),
        scale_types=tuple(type_name(m.value(s)) for s in ("x_scale", "y_scale", "w_scale") if s in m.names and m[s]),
        x_type=x_type(m),
        w_type=type_name(m.value("w_q")) if "w_q" in m.names else weight_type,
        y_type=y_type,
        x_has_zero_point=m.maybe("x_zp") is not None,
        x_scale=scalar(m.value("x_scale")),
        y_scale=scalar(m.value("y_scale")),
        x_zero_point=zero_point(m.maybe("x_zp")),
        y_zero_point=zero_point(m.maybe("y_zp")),
        x_is_paired=is_paired(m, x_q) and sole_user(m, x) is not None and is_own(m, m.maybe("x_zp")),
        y_is_paired=y_is_paired(m) and is_own(m, m.maybe("y_zp")),
        bias_is_constant=bias is None or bias.is_constant,
        bias_is_quantized=("b_q" in m.names and m["b_q"] is not None) or is_dequantized(bias),
        bias_shape=bias_shape,
        x_shape=x.shape if has_add else None,
        w_shape=weight_value(m).shape if has_add else None,
        has_add=has_add,
        activations=tuple(n.op_type for n in m.nodes("act")),
        redundant=redundant(m, y_type),
    )


def require_output_scale(m: Match) -> None:
    """Decline a unit whose output has a constant scale that is no positive finite number."""
    found = scalar(m.value("y_scale"))
    if found is not None and not (np.isfinite(found) and found > 0):
        raise Decline(f"the output's scale {m.value('y_scale').name!r} is {found}; it must be positive and finite")


def weight_value(m: Match) -> Value:
    """The weight: its codes where it is quantized."""
    return m.value("w_q" if "w_q" in m.names else "w")


def added_shape(m: Match, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a bias as it is written. What is added to a MatMul gets a number for each output channel:

    ONNX Runtime makes no Gemm of a MatMul and an Add of fewer. A DequantizeLinear with one scale for all would not ask
    for it.
    """
    w_shape = weight_value(m).shape
    if "add" not in m.names or not w_shape or not isinstance(w_shape[-1], int) or shape[-1:] not in ((), (1,)):
        return shape
    return (*shape[:-1], w_shape[-1])


def sole_user(m: Match, value: Value) -> Node | None:
    """The one node that reads a value, if it is no graph output."""
    users = m.reads(value).users
    return users[0] if len(users) == 1 and not value.is_graph_output else None


def is_paired(m: Match, x_q: Value) -> bool:
    producer = m.reads(x_q).producer
    return producer is not None and producer.op_type.endswith("QuantizeLinear") and sole_user(m, x_q) is not None


def is_own(m: Match, zero_point: Value | None) -> bool:
    return zero_point is not None and zero_point.is_constant and m.is_local(zero_point)


def y_is_paired(m: Match) -> bool:
    y = m.root.outputs[0]
    assert y is not None
    user = sole_user(m, y)
    if user is None or not user.op_type.endswith("DequantizeLinear") or user.outputs[0] is None:
        return False
    return len(m.reads(user.outputs[0]).users) + user.outputs[0].is_graph_output == 1
