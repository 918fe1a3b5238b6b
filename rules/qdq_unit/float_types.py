"""Of which element type the floats of a unit are, and of which its new scales.

An operator takes x, weight and bias of one float type, and a DequantizeLinear gives the type of its scale or, from
opset 23 of ai.onnx on, the type that its `output_dtype` names. So a new DequantizeLinear is made like that of x: a
scale of the same type, and the same output type. A file that uses one type stays so, and is read by whoever reads it
now.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray

from rewriter import Decline, Match, Value

FLOATS = {"float": "float32", "float16": "float16", "bfloat16": "bfloat16"}
"""ONNX's names of the types that a DequantizeLinear gives, and numpy's."""

CODES = ("uint8", "int8", "uint16", "int16")
"""ONNX's and numpy's names of the types of activations' codes that kernels take."""


def type_name(value: Value | None) -> str | None:
    """ONNX's name of a value's element type, in lower case; None where it is unknown."""
    if value is None or value.dtype is None:
        return None
    return value.dtype.name.lower()


def x_type(m: Match) -> str:
    """ONNX's name of the type of the input's codes; without any statement uint8, as the standard has it."""
    return type_name(m.maybe("x_zp")) or type_name(m.value("x_q")) or "uint8"


def require_float(value: Value, what: str) -> None:
    """Decline what is of no type that a DequantizeLinear takes and gives."""
    kind = type_name(value)
    if kind not in FLOATS:
        raise Decline(f"the {what} {value.name!r} is {kind}; DequantizeLinear knows float32, float16 and bfloat16 only")


def float_type(m: Match) -> str | None:
    """The type of the unit's floats: what the DequantizeLinear of x gives."""
    code = m.node("x").attribute("output_dtype")
    return onnx.TensorProto.DataType.Name(int(code)).lower() if code else type_name(m.value("x_scale"))


def can_mix(m: Match) -> bool:
    """Whether the unit's DequantizeLinear may have a scale of another type than its output."""
    return not is_microsoft(m) and m.opset >= 23


def is_microsoft(m: Match) -> bool:
    return m.node("x").op_type.startswith("com.microsoft")


def output_dtype(m: Match, scale: NDArray[np.generic]) -> int | None:
    """The attribute of a new DequantizeLinear with this scale; None where its output has the scale's type anyway."""
    kind = float_type(m)
    if kind is None or FLOATS[kind] == scale.dtype.name:
        return None
    return int(onnx.TensorProto.DataType.Value(kind.upper()))


def scale_type(m: Match) -> str:
    """numpy's name of the type of new scales: that of the scale of x."""
    return FLOATS[str(type_name(m.value("x_scale")))]


def is_uniform(m: Match) -> bool:
    """Whether the floats of the unit have the type of x's scale."""
    return FLOATS.get(str(float_type(m))) == scale_type(m)


def times_alpha(w_scale: np.ndarray, alpha: float) -> np.ndarray:
    """The scales of a quantized weight with alpha folded in, rounded once to their own type.

    That moves a weight by no more than its own rounding. Raises Decline for an alpha below 0, and where a product is no
    normal number of the type or no code of 8 bits comes back finite.
    """
    if alpha < 0:
        raise Decline(f"alpha is {alpha}: a negative factor cannot be folded into the weight's scale")
    if alpha == 1:
        return w_scale
    exact = w_scale.astype(np.float64) * alpha
    with np.errstate(over="ignore"):
        held = exact.astype(w_scale.dtype)
        finite = np.isfinite((exact * 2.0**8).astype(w_scale.dtype).astype(np.float32)).all()
    if not finite or np.any(np.abs(held.astype(np.float64) - exact) > exact * 2.0**-8):
        raise Decline(f"alpha is {alpha}: times that, the weight's scale is no normal {w_scale.dtype.name}")
    return held
