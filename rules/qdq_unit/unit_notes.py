"""From a match to the `UnitReport` that it notes: which tensors are held, and what is read at once because it is cheap.

A weight that the model stores is held by its tensor and not by its elements: those of a file stay in the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rewriter import Match, Node, Value
from rules import quantization as qm
from rules.qdq_unit.float_types import FLOATS, float_type, type_name
from rules.qdq_unit.unit import scale_repeats, weight_axis
from rules.qdq_unit.unit_report import Activation, Bias, Stored, UnitReport, Weight


@dataclass(frozen=True, eq=False)
class Computed:
    """A weight that the model computes from constants."""

    array: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def numpy(self) -> np.ndarray:
        return self.array


def stored(value: Value, array: np.ndarray) -> Stored:
    """A constant whose elements were just read, without keeping them where the model does."""
    return value.tensor if value.producer_type in (None, "Constant", "Identity") else Computed(array)


def note_unit(
    m: Match,
    core: Node,
    output: Value,
    weight: Weight | None,
    bias: Bias | None,
    *,
    backend: str = "generic",
    reason: str | None = None,
    folded: float = 0.0,
) -> None:
    """Notes what becomes of the matched unit."""
    dtype = back_type(m)
    x, y = activation(m, "x", dtype), activation(m, "y", dtype) if "y_scale" in m.names else None
    m.note(unit=UnitReport(core.name, core.op_type, output.name, weight, bias, x, y, backend, reason, folded))


def activation(m: Match, name: str, dtype: str) -> Activation | None:
    """How the unit's x or y is quantized; dtype: of its floats."""
    scale, zero = m.value(f"{name}_scale"), m.maybe(f"{name}_zp")
    if not scale.is_constant or not (zero is None or zero.is_constant):
        return None
    if zero is not None:
        return Activation(scale.tensor, zero.tensor, dtype)
    return Activation(scale.tensor, None, dtype, type_name(m.value("x_q")) if name == "x" else None)


def weight_of(
    m: Match,
    core: Node,
    array: np.ndarray,
    q: qm.QuantizedTensor,
    scheme: qm.Scheme,
    moments: qm.InputMoments | None,
    *,
    alpha: float = 1.0,
    on_grid: int = 0,
    raised: int = 0,
) -> Weight:
    """The matched unit's float weight, whose elements were just read, and its codes."""
    axis = weight_axis(core, array.ndim)
    groups = 1 if axis is None else scale_repeats(core)
    value = m.value("w")
    return Weight(
        name=value.name,
        before=stored(value, array),
        after=q,
        axis=axis,
        groups=groups if array.shape[0] % groups == 0 else 1,
        dtype=back_type(m),
        search=scheme.search,
        rounding="nearest" if moments is None or (axis is None and not q.block_size) else scheme.rounding,
        code_range=scheme.code_range,
        alpha=alpha,
        on_grid=on_grid,
        raised=raised,
    )


def bias_of(m: Match, b: qm.BiasValues | None, q: qm.QuantizedTensor | None) -> Bias | None:
    """The matched unit's bias, with beta folded in, and its codes; None where it has or keeps its own."""
    if b is None or q is None:
        return None
    coded = "b_q" in m.names and m["b_q"] is not None
    held = [m.maybe(name) for name in ("b_q", "b_scale", "b_zp")] if coded else [m.value("b")]
    return Bias(m.value("b_q" if coded else "b").name, b, q, sum(size(v) for v in held if v is not None), coded)


def folding_error(m: Match, scale: np.ndarray) -> float:
    """Bounds what the weights of a channel move in all where a Gemm's alpha goes into the scale of their codes.

    That is three roundings of each: of the scale, and of both products.
    """
    codes = m.value("w_q")
    bits = 8 if codes.dtype is None else codes.dtype.bitwidth
    unit = {"float32": 2.0**-24, "float16": 2.0**-11}.get(scale.dtype.name, 2.0**-8)
    depth = max((int(d or 0) for d in codes.shape or ()), default=0)
    return 4 * unit * depth * 2.0**bits * float(scale.max(initial=0))


def size(value: Value) -> int:
    """The bytes of a constant."""
    bits = 0 if value.dtype is None else value.dtype.bitwidth
    return -(-math.prod(int(d or 0) for d in value.shape or ()) * bits // 8)


def back_type(m: Match) -> str:
    """numpy's name of the type in which the unit's floats come back."""
    return FLOATS.get(str(float_type(m)), "float32")
