"""Which Relu and Clip before a QuantizeLinear change nothing, so that ONNX Runtime drops them.

It does so in two ways. First from the last one on, where the zero point is a constant of the same graph: a Relu whose
zero is the smallest code, and a Clip whose bounds do not lie inside of what the codes stand for. Then the one that
still stands right before the QuantizeLinear, where a Clip may lie inside by less than half a step, but needs an upper
bound below 2^31 steps. A Relu before a Clip is merged into it. (relu_quantizelinear.cc, clip_quantizelinear.cc and
qdq_util.cc in onnxruntime/core/optimizer/qdq_transformer; measured with 1.32, where a scale of shape [1] leaves the
Relu of the first way alone to be dropped.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rewriter import Match, Node
from rules.qdq_unit.float_types import CODES


@dataclass(frozen=True)
class Codes:
    """The codes that a QuantizeLinear gives. The step is None where the scale is no constant scalar."""

    lowest: int
    highest: int
    zero: int
    step: np.float32 | None

    def is_wide(self, node: Node) -> bool:
        """Whether a Relu or Clip leaves alone all that the codes stand for."""
        if node.op_type == "Relu":
            return self.zero == self.lowest
        floor, ceiling = clip_bounds(node)
        if self.step is None or floor is None or ceiling is None:
            return False
        low, high = (np.float32(code - self.zero) * self.step for code in (self.lowest, self.highest))
        return bool(floor <= low and high <= ceiling)

    def is_wide_once_rounded(self, node: Node) -> bool:
        """Whether it leaves alone all codes."""
        if node.op_type == "Relu":
            return self.zero == self.lowest and self.step is not None
        floor, ceiling = clip_bounds(node)
        if self.step is None or floor is None or ceiling is None or not ceiling / self.step < 2**31:
            return False
        low, high = (np.rint(bound / self.step) + self.zero for bound in (floor, ceiling))
        return bool(low <= self.lowest and self.highest <= high)


def redundant(m: Match, kind: str | None) -> tuple[bool, ...]:
    """For each Relu and Clip of a unit whose output has codes of this type, whether it is dropped."""
    acts = m.nodes("act")
    codes = output_codes(m, kind)
    if codes is None:
        return (False,) * len(acts)
    zero_point, left = m.maybe("y_zp"), list(acts)
    while left and zero_point is not None and m.is_local(zero_point) and codes.is_wide(left[-1]):
        left.pop()
    if left and codes.is_wide_once_rounded(left[-1]):
        merges = left.pop().op_type == "Clip"
        while merges and left and left[-1].op_type == "Relu" and codes.is_wide(left[-1]):
            left.pop()
    return tuple(k >= len(left) for k in range(len(acts)))


def output_codes(m: Match, kind: str | None) -> Codes | None:
    """The codes of a unit's output; None where they are not known, or of no type that has a kernel."""
    zero_point, scale = m.maybe("y_zp"), m.value("y_scale")
    if kind not in CODES or not scale.is_constant or (zero_point is not None and not zero_point.is_constant):
        return None
    info = np.iinfo(np.dtype(kind))
    held = np.zeros(1, int) if zero_point is None else zero_point.numpy().reshape(-1)
    if held.size == 0:
        return None
    zero = int(held[0])
    return Codes(int(info.min), int(info.max), zero, np.float32(scale.numpy()) if scale.shape == () else None)


def clip_bounds(node: Node) -> tuple[np.float32 | None, np.float32 | None]:
    """The bounds of a Clip, infinite where it states none; None where one is known only at run time, or no number."""
    return _bound(node, 1, "min", -np.inf), _bound(node, 2, "max", np.inf)


def _bound(node: Node, slot: int, attribute: str, absent: float) -> np.float32 | None:
    stated: Any = node.attribute(attribute)
    if stated is not None:
        return np.float32(stated)
    held = node.inputs[slot] if slot < len(node.inputs) else None
    if held is None:
        return np.float32(absent)
    stated = held.numpy().reshape(-1) if held.is_constant else None
    return np.float32(stated[0]) if stated is not None and stated.size else None
