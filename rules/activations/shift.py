"""The shift: from int8 codes to uint8 codes that stand for the same numbers.

Every code and every zero point becomes 128 larger, so that their difference, and with it each real value, is
the same: QuantizeLinear adds the zero point after rounding and clips at both ends of a range that moves along. At a
border the codes are converted by a DequantizeLinear and a QuantizeLinear right after each other, with the
parameters that the codes have anyway: q -> (q - zp) * s -> q + 128, exactly (error_bounds 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from rewriter import Decline, Match, Node, Value
from rules.activations.codes import Codes, codes_of
from rules.qdq_unit.float_types import type_name

Array = np.ndarray[Any, np.dtype[Any]]

RANGES = {"float": (2.0**-100, 2.0**100), "float16": (2.0**-14, 2.0**7)}
"""Per type of scale, where it and 255 times it are normal numbers; bfloat16 is too coarse to hold all 255."""


def shifted(codes: Array) -> Array:
    """int8 codes as uint8 codes, 128 larger: that is the topmost bit, turned over."""
    return np.asarray(codes.astype(np.int8).view(np.uint8) ^ np.uint8(128))


@dataclass
class Shift:
    """The edit of one match: it makes uint8 codes of all that hang together."""

    m: Match
    codes: Codes
    zero_points: dict[object, tuple[Any, Any]] = field(default_factory=dict)  # int8 and uint8

    def plan(self) -> None:
        """Build the edit. Raises Decline where a zero point or a border stands in the way."""
        m, edit, codes = self.m, self.m.edit, self.codes
        for node in codes.ends:
            edit.set_input(node, 2, self.zero_point(node)[1])
            if node in codes.quantizers and node.attribute("output_dtype"):
                edit.set_attribute(node, "output_dtype", ir.DataType.UINT8.value)
        for read, constant in codes.constants:
            edit.set_input(read.node, read.slot, edit.constant(shifted(constant.numpy()), f"{constant.name}_uint8"))
        for pad in codes.unpadded:
            edit.set_input(pad, 2, edit.constant(np.array(128, np.uint8), f"{pad.name}_padding"))
        for value in codes.entering:
            inside = self.pair(value, back=False)
            for read in codes.reads[value]:
                edit.set_input(read.node, read.slot, inside)
        for value in codes.made:
            if value in codes.leaving:  # the pair takes over its name, and those inside read what it had been
                for read in codes.reads[value]:
                    edit.set_input(read.node, read.slot, value)
                edit.replace(value, self.pair(value, back=True))
            else:
                edit.set_type(value, ir.DataType.UINT8)
        m.note(tensors=len(codes.made), conversions=len(codes.entering) + len(codes.leaving))

    def plan_constant(self, constant: Value) -> None:
        """Build the edit for constant codes of which the match's root is the DequantizeLinear."""
        edit, node = self.m.edit, self.m.root
        edit.set_input(node, 0, edit.constant(shifted(constant.numpy()), f"{constant.name}_uint8"))
        edit.set_input(node, 2, self.zero_point(node)[1])

    def zero_point(self, node: Node) -> tuple[Any, Any]:
        """The zero point of a Q or DQ as it is, and as uint8; made where it is absent."""
        scale, held = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        assert scale is not None
        key = held or (scale, "")
        if key not in self.zero_points:
            self.zero_points[key] = self.absent(scale) if held is None else self.stated(held)
        return self.zero_points[key]

    def stated(self, held: Value) -> tuple[Any, Any]:
        if not held.is_constant:
            how = "the caller can override it" if held.is_overridable else "it is computed at run time"
            raise Decline(f"the zero point {held.name!r} is no constant: {how}")
        return held, self.m.edit.constant(shifted(held.numpy()), f"{held.name}_uint8")

    def absent(self, scale: Value) -> tuple[Any, Any]:
        """Zero, of the scale's shape: as uint8 it has to be stated."""
        sizes = [size for size in scale.shape or () if isinstance(size, int)]
        if scale.shape is None or len(sizes) < len(scale.shape):
            raise Decline(f"there is no zero point, and the shape of the scale {scale.name!r} is unknown")
        zeros = np.zeros(sizes, np.int8)
        return zeros, self.m.edit.constant(shifted(zeros), f"{scale.name}_zero_point_uint8")

    def pair(self, value: Value, *, back: bool) -> Any:
        """The codes of a border as uint8, or `back` as int8."""
        node = next((end for end in self.codes.ends if codes_of(end) == value), self.m.root)
        scale = node.inputs[1]
        assert scale is not None
        check_scale(scale)
        int8, uint8 = self.zero_point(node)
        before, after, kind = (uint8, int8, "int8") if back else (int8, uint8, "uint8")
        edit, domain = self.m.edit, node.op_type.rpartition("::")[0]
        name = f"{value.name}_dequantized"
        real = edit.node("DequantizeLinear", [value, scale, before], domain=domain, name=name)
        return edit.node("QuantizeLinear", [real, scale, after], domain=domain, name=f"{value.name}_{kind}")


def check_scale(scale: Value) -> None:
    """Decline where dividing by the scale would not give back exactly what was multiplied by it."""
    border = f"its codes enter or leave the graph as int8, and their scale {scale.name!r}"
    if not scale.is_constant:
        raise Decline(f"{border} is no constant")
    if scale.shape not in ((), (1,)):
        raise Decline(f"{border} is per axis, so that no unit would gain from a conversion")
    kind = type_name(scale) or ""
    if kind not in RANGES:
        raise Decline(f"{border} is {kind}; float32 or float16 is expected")
    smallest, largest = RANGES[kind]
    if not smallest <= float(scale.numpy().reshape(-1)[0]) <= largest:
        raise Decline(f"{border} is so small or large that x / scale * scale may not be x")
