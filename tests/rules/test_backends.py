"""Every backend's rules, judged by a checker that was written from the reference and not from the rules.

Generated models of all ops go through `WeightBias(backend=...)`. What comes out breaks none of that backend's
rules, and a unit that stays float has a reason in the report. A backend that quantized nothing would pass
that, so each also has to complete the units that are made for it, at the granularity that its row grants.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import numpy_helper

import rewriter
import rules
from tests.backend_checker import ROWS, units_left_float, violations
from tests.backend_units import Linear, units
from tests.qdq_models import build
from tests.qdq_unit import OPTIONS, Op, Unit, draw, repair
from tests.qdq_unit import units as any_units

OPS: tuple[Op, ...] = tuple(OPTIONS["op"])
SIGNED = ("tensorrt", "vitis-ai", "xnnpack", "tflite")  # whose activations are int8

# Where the table says "per channel" for an op without leaving it open: the axis, at opset 13 and later.
PER_CHANNEL: dict[tuple[str, Op], int] = {
    **{(backend, "Conv"): 0 for backend in ROWS if backend != "vitis-ai"},
    ("generic", "ConvTranspose"): 1,
    ("qnn", "ConvTranspose"): 1,
    ("openvino", "ConvTranspose"): 1,
    ("generic", "Gemm"): 1,
    ("onnxruntime", "Gemm"): 1,
    ("generic", "MatMul"): 1,
    ("onnxruntime", "MatMul"): 1,
}
PER_TENSOR: list[tuple[str, Op]] = [
    *(("vitis-ai", op) for op in OPS),
    ("qnn", "MatMul"),
    ("nnapi", "MatMul"),
]
# A MatMul+Add of rank 3 becomes a Gemm and a Reshape, a QGemm of float output: other rules, and no rank in the file.
FIXED: dict[str, dict[str, Any]] = {"onnxruntime": {"rank": 2, "batched": False}}
NEVER: list[tuple[str, Op]] = [("onnxruntime", "ConvTranspose")]


def rule_set(backend: str) -> rules.WeightBias:
    try:
        return rules.WeightBias(backend=backend)
    except ValueError as error:
        pytest.skip(f"rules.backends does not know {backend!r} yet: {error}")


def suited(unit: Unit, backend: str) -> Unit:
    """The unit with activations of the backend's type."""
    return repair(Unit(**{**vars(unit), "x_type": "int8" if backend in SIGNED else "uint8", "y_type": ""}))


def model(unit: Unit, backend: str, rng: np.random.Generator) -> onnx.ModelProto:
    """The unit's model, with activations that the backend takes: tensorrt's and vitis-ai's are symmetric,
    and the scales of the latter powers of two."""
    made = build(unit, rng)
    tensors = {t.name: t for t in _tensors(made)}
    for name, tensor in tensors.items():
        if name.endswith("_zp") and not name.endswith("_w_zp") and backend in ("tensorrt", "vitis-ai"):
            scale = tensors[name.removesuffix("zp") + "scale"]
            zero, size = numpy_helper.to_array(tensor), numpy_helper.to_array(scale)
            if zero.dtype.kind == "i":  # as wide as before, to both sides
                info = np.iinfo(zero.dtype)
                span = np.maximum(info.max - zero.astype(np.int64), zero.astype(np.int64) - info.min)
                size = (size * span / info.max).astype(np.float32)
                _set(tensor, np.zeros_like(zero))
            if backend == "vitis-ai":
                size = np.exp2(np.ceil(np.log2(size))).astype(np.float32)
            _set(scale, size)
    return made


def _tensors(made: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All constants, by the name of the value."""
    bodies = [made.graph]
    while bodies:
        graph = bodies.pop()
        yield from graph.initializer
        yield from _constants(graph.node)
        bodies += [a.g for node in graph.node for a in node.attribute if a.g.node]
    for function in made.functions:
        yield from _constants(function.node)


def _constants(nodes: object) -> Iterator[onnx.TensorProto]:
    for node in nodes:  # type: ignore[attr-defined]
        if node.op_type == "Constant":
            node.attribute[0].t.name = node.output[0]
            yield node.attribute[0].t


def _set(tensor: onnx.TensorProto, value: npt.NDArray[np.generic]) -> None:
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def check(made: onnx.ModelProto, backend: str, what: object) -> int:
    """How many units were completed, after asking all that has to hold of them and of the others."""
    result = rewriter.run(made, rule_set(backend))
    onnx.checker.check_model(result.model, full_check=True)
    broken = violations(result.model, backend)
    assert not broken, (what, broken)
    declined = {decline.node: decline.reason for decline in result.report.declined}
    left = units_left_float(result.model)
    silent = [unit.name for unit in left if not unit.nodes & declined.keys()]
    assert not silent, (what, f"left float without a reason: {silent}", declined)
    assert all(declined.values())
    if backend == "generic":
        assert not left, (what, declined)
    return sum(unit.quantized for unit in units(result.model))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", ROWS)
def test_generated_units_break_no_rule(backend: str, op: Op) -> None:
    """Of every second model the activations are of the type that the backend takes."""
    rule_set(backend)
    rng = np.random.default_rng([OPS.index(op), *backend.encode()])
    completed = 0
    for i in range(80):
        unit = draw(rng, op=op, weight_form="float", **FIXED.get(backend, {}))
        unit = suited(unit, backend) if i % 2 else unit
        completed += check(model(unit, backend, rng), backend, unit)
    assert bool(completed) == ((backend, op) not in NEVER)


@pytest.mark.parametrize("backend", ROWS)
def test_any_unit_breaks_no_rule(backend: str) -> None:
    rule_set(backend)

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(any_units(weight_form="float", **FIXED.get(backend, {})))
    def ask(unit: Unit) -> None:
        check(model(unit, backend, np.random.default_rng(0)), backend, unit)

    ask()


@pytest.mark.parametrize("backend", ROWS)
def test_weights_that_are_quantized_already_get_no_worse(backend: str) -> None:
    """The form of their weight may be wrong for the backend, and so may their bias; nothing wrong is added."""
    rng = np.random.default_rng([99, *backend.encode()])
    forms = [form for form in OPTIONS["weight_form"] if form != "float"]
    for i in range(90):
        unit = draw(rng, weight_form=forms[i % len(forms)])
        made = model(suited(unit, backend), backend, rng)
        after = rewriter.apply(made, rule_set(backend))
        added = set(violations(after, backend)) - set(violations(made, backend))
        assert not added, (unit, added)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", ROWS)
def test_a_plain_unit_is_completed_as_the_row_grants(backend: str, op: Op) -> None:
    """The simplest unit of each op, in the backend's own types, at the finest granularity there is."""
    plain = suited(repair(Unit(op=op)), backend)
    made = model(plain, backend, np.random.default_rng(1))
    result = rewriter.run(made, rule_set(backend))
    (unit,) = units(result.model)
    if (backend, op) in NEVER:
        assert not unit.quantized
        return
    assert isinstance(unit.weight, Linear), result.report.declined
    assert unit.weight.codes is not None
    assert unit.weight.scale is not None
    axis = PER_CHANNEL.get((backend, op))
    if axis is not None:
        assert unit.weight.scale.shape == (unit.weight.codes.shape[axis],)
        assert unit.weight.axis == axis
    if (backend, op) in PER_TENSOR:
        assert unit.weight.scale.size == 1
