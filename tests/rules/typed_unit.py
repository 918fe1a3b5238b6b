"""Units of any float type, and what must hold of each once it is completed.

What a unit means is computed by onnx's own evaluator, or by ONNX Runtime where that has no DequantizeLinear (before
opset 19, and com.microsoft): the weight and the bias that the operator gets, each to be within its bound in the
arithmetic of that type, and the codes of the output within bound 9 of `error_bounds.md` and a step. float64 judges.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401, numpy knows bfloat16 by it
import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

import rewriter
import rules
from tests import sessions
from tests.backend_units import Linear, Unit, units
from tests.rules.one_unit import ROWS, Coded, One, feeds, matrix, rows, steps
from tests.rules.one_unit import model as model_of

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
TYPES = ("float32", "float16", "bfloat16")
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # half the distance of two numbers about 1
HALF_OF_SMALLEST = {"float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}
SHAPES = {"Conv": (4, 3, 3, 3), "ConvTranspose": (5, 4, 3, 3), "Gemm": (6, 4), "MatMul": (6, 4), "MatMulAdd": (6, 4)}


def array(value: Any, dtype: str) -> Array:
    return np.asarray(value).astype(np.dtype(dtype))


def one_unit(op: str, kind: str, opset: int, rng: np.random.Generator, size: float = 0.3, **more: Any) -> One:
    """A unit whose floats are of this type, with an output scale that its values ask for."""
    shape = SHAPES[op][::-1] if more.get("attributes", {}).get("transB") else SHAPES[op]
    w = more.pop("w", None)
    w = array(rng.normal(size=shape) * size, kind) if w is None else w
    b = more.pop("b", array(rng.normal(size=4) * size, kind))
    one = One(op, w, None if op == "MatMul" else b, float_type=kind, opset=opset, ir=11, **more)
    if not one.y_scale:
        found = run(model_of(replace(one, y_scale=1.0)), one)["y_float"].astype(np.float64)
        one = replace(one, y_scale=max(float(np.abs(found).max()), 1e-4) / 100)
    return one


def run(model: onnx.ModelProto, one: One) -> Mapping[str, Array]:
    """All values of a model."""
    if one.opset >= 19 and not one.domain:
        return dict(ReferenceEvaluator(model).run(None, feeds(one), intermediate=True))
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = [o for node in model.graph.node for o in node.output]
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    given = dict(zip(names, sessions.run(shown, feeds(one)), strict=True))
    return given | {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def completed(one: One, options: rules.WeightBias = rules.weight_bias) -> tuple[onnx.ModelProto, onnx.ModelProto, Unit]:
    """The model before and after, which is checked in full; the unit is quantized, and stays as it is then."""
    before = model_of(one)
    result = rewriter.run(before, options)
    onnx.checker.check_model(result.model, full_check=True)
    (unit,) = units(result.model)
    assert unit.quantized, result.report.declined
    assert unit.bias is None or isinstance(unit.bias, Linear) or not options.bias or options.granularity == "block"
    again = rewriter.run(result.model, options)
    assert not again.changed
    assert not again.report.declined
    return before, result.model, unit


def check(one: One, options: rules.WeightBias = rules.weight_bias) -> onnx.ModelProto:
    """All that holds of a unit that is completed."""
    before, after, unit = completed(one, options)
    (old_unit,) = units(before)
    old, new = run(before, one), run(after, one)
    assert new["y_float"].dtype == old["y_float"].dtype == np.dtype(one.float_type)
    (w, b), (w_new, b_new) = operands(before, old), operands(after, new)
    assert isinstance(unit.weight, Linear)
    half = 0.5 if options.rounding == "nearest" else 1.0
    w, b, w_new, b_new = w * old_unit.alpha, b * old_unit.beta, w_new * unit.alpha, b_new * unit.beta
    if isinstance(one.w, Coded):
        error = np.abs(w) * UNIT[one.float_type] * 3  # alpha goes into the scale, which is rounded once more
    else:
        error = bound(unit.weight, one.float_type, half) + UNIT["float32"] * np.abs(w)
    assert (np.abs(w - w_new) <= error).all()
    b_error = bound(unit.bias, one.float_type, 0.5) if isinstance(unit.bias, Linear) else np.zeros(1)
    assert (np.abs(b - b_new) <= b_error + UNIT["float32"] * np.abs(b)).all()
    x = np.abs(old["a"].astype(np.float64)).reshape(ROWS, -1)
    sums = x @ np.abs(matrix(unit, w)).T + np.abs(rows(unit, np.broadcast_to(b, b_new.shape)))
    rounding = 2 * UNIT[one.float_type] * (x.shape[1] + 4) * sums + 4 * UNIT[one.float_type] * np.abs(one.y_scale) * 256
    allowed = x @ matrix(unit, error).T + rows(unit, np.broadcast_to(b_error, b_new.shape)) + rounding
    assert (steps([old["y"]], [new["y"]]) <= allowed / float(np.float16(one.y_scale)) * 1.01 + 1).all()
    return after


def operands(model: onnx.ModelProto, values: Mapping[str, Array]) -> tuple[Doubles, Doubles]:
    """The weight and the bias (0 without one) that the operator gets."""
    core = next(n for n in model.graph.node if n.op_type in SHAPES)
    last = next((n for n in model.graph.node if n.op_type == "Add"), core)
    names = [*last.input, ""]
    b = names[1] if last is not core else names[2]
    return values[core.input[1]].astype(np.float64), values[b].astype(np.float64) if b else np.zeros(4)


def bound(linear: Linear, kind: str, half: float) -> Doubles:
    """How far an element is from what comes back: a part of its step, and the rounding of code and product."""
    assert linear.codes is not None
    assert linear.scale is not None
    scale = linear.scale.astype(np.float64)
    codes = linear.codes.astype(np.float64)
    zero = np.zeros(scale.shape) if linear.zero_point is None else linear.zero_point.astype(np.float64)
    if linear.block_size:
        scale, zero = (
            np.repeat(v, linear.block_size, linear.axis).take(range(codes.shape[linear.axis or 0]), linear.axis)
            for v in (scale, zero)
        )
    elif scale.ndim:
        along = [-1 if i == linear.axis else 1 for i in range(codes.ndim)]
        scale, zero = scale.reshape(along), zero.reshape(along)
    product = np.abs(codes - zero) * scale
    return np.asarray(half * scale + (UNIT[kind] + 3 * UNIT["float32"]) * product + HALF_OF_SMALLEST[kind])


def scales(model: onnx.ModelProto) -> set[str]:
    """The types of the scales of the weight and the bias."""
    (unit,) = units(model)
    held = [each.scale for each in (unit.weight, unit.bias) if isinstance(each, Linear)]
    return {scale.dtype.name for scale in held if scale is not None}


def declined(one: One, options: rules.WeightBias = rules.weight_bias) -> str:
    before = model_of(one)
    result = rewriter.run(before, options)
    assert result.model == before
    (reason,) = [each.reason for each in result.report.declined]
    return reason
