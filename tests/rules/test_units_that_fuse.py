"""On ONNX Runtime, "this unit fuses" is what it really does: unit by unit, in both directions.

Over 2,000 generated units of every form, over 500 with int8 activations that become uint8 first, and all real files. A
session over what the rules made shows which units it runs as integer kernels, another over the same units completed
regardless shows which ones were missed.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fusion import Judged, judge, loads_optimized, merged, named
from tests.qdq_models import Body, build
from tests.qdq_unit import OPSETS, OPTIONS, Unit, draw
from tests.real_models import Row, table

EACH = 50  # units in one model, at least
UNITS = {"onnxruntime": 2000, "onnxruntime-x86": 500}
MODELS = [(backend, seed) for backend, units in UNITS.items() for seed in range(units // EACH)]


def drawn(rng: np.random.Generator, **fixed: Any) -> list[Unit]:
    """Units of one opset and IR version."""
    fixed |= {"opset": int(rng.choice(OPSETS)), "ir": int(rng.choice([ir for ir in OPTIONS["ir"] if ir >= 4]))}
    units: list[Unit] = []
    while sum(unit.count for unit in units) < EACH + 15:  # some of which are none for any backend
        unit = draw(rng, **fixed)
        if loads_optimized(unit):
            units.append(unit)
    return units


@pytest.mark.parametrize(("backend", "seed"), MODELS)
def test_generated_units(backend: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(backend)])
    units = drawn(rng, **({"x_type": "int8"} if backend == "onnxruntime-x86" else {}))
    judged = judge(merged([build(unit, rng) for unit in units]), backend)
    assert len(judged) >= EACH
    assert {one.fuses for one in judged} == {True, False}
    wrong = [(one, units[place(one)]) for one in judged if not one.is_right]
    assert not wrong, "\n".join(map(str, wrong))


def place(judged: Judged) -> int:
    """Which of the merged models a unit belongs to."""
    return int(next(iter(judged.nodes)).split("_")[0].removeprefix("p"))


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
@pytest.mark.parametrize("backend", UNITS)
def test_real_files(row: Row, backend: str) -> None:
    judged = judge(named(onnx.load(row.path)), backend)
    assert len(judged) >= row.fused
    assert not [one for one in judged if not one.is_right]


# -- where the drawn units are too plain ---------------------------------------------------------------


def matmul(
    x_shape: Sequence[int],
    bias: Sequence[int] | None = None,
    acts: Sequence[tuple[str, float | None, float | None]] = (),
    *,
    zero: int | None = 100,
    dtype: str = "uint8",
    weight_is_quantized: bool = False,
    scale_shape: Sequence[int] = (),
) -> onnx.ModelProto:
    """x codes -> DQ -> MatMul [-> Add] -> acts -> Q. zero: how far y's zero point is from the smallest code."""
    body, rng, smallest = Body(), np.random.default_rng(0), int(np.iinfo(dtype).min)

    def parameters(
        name: str, scale: float, zero: int | None, shape: Sequence[int] = (), dtype: str = dtype
    ) -> list[str]:
        names = [body.constant(f"{name}_scale", np.full(shape, scale, np.float32))]
        return names if zero is None else [*names, body.constant(f"{name}_zp", np.full(shape, zero, dtype))]

    body.node("DequantizeLinear", ["x", *parameters("x", 0.02, zero and smallest + 100)], "a")
    w = rng.normal(size=(x_shape[-1], 4)).astype(np.float32)
    if weight_is_quantized:
        codes = body.constant("w_codes", np.rint(w * 40).astype(np.int8))
        body.node("DequantizeLinear", [codes, *parameters("w", 0.025, 0, dtype="int8")], "w")
    else:
        body.constant("w", w)
    y = body.node("MatMul", ["a", "w"], "product")
    if bias is not None:
        y = body.node("Add", [y, body.constant("b", np.asarray(rng.normal(size=bias), np.float32))], "sum")
    for k, (op, *bounds) in enumerate(acts):
        held = [None if v is None else body.constant(f"bound{k}_{v}", np.array(v, np.float32)) for v in bounds]
        y = body.node(op, [y, *(name or "" for name in held if op == "Clip")], f"act{k}")
    body.node(
        "QuantizeLinear", [y, *parameters("y", 0.05, None if zero is None else smallest + zero, scale_shape)], "y"
    )
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x_info, y_info = (helper.make_tensor_value_info(n, elem, s) for n, s in (("x", x_shape), ("y", None)))
    graph = helper.make_graph(body.nodes, "matmul", [x_info], [y_info], body.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def all_right(models: Sequence[onnx.ModelProto], described: Sequence[object]) -> None:
    judged = judge(merged(models), "onnxruntime")
    assert len(judged) == len(models)
    assert {one.fuses for one in judged} == {True, False}
    wrong = [(one, described[place(one)]) for one in judged if not one.is_right]
    assert not wrong, "\n".join(map(str, wrong))


def test_a_constant_of_any_shape_added_to_a_matmul() -> None:
    """Of some ONNX Runtime makes a Gemm, which can do less than a MatMul with an Add in float behind it."""
    x_shapes = [(5,), (3, 5), (1, 5), (2, 3, 5)]
    biases = [None, (), (4,), (1,), (1, 1), (3, 1), (1, 4), (3, 4), (1, 1, 4)]
    relus = [(), [("Relu", None, None)]]
    kinds = [{}, {"weight_is_quantized": True}, {"dtype": "int8"}, {"zero": None}]
    forms = list(itertools.product(x_shapes, biases, relus, kinds))
    all_right([matmul(x, b, relu, **kind) for x, b, relu, kind in forms], forms)  # type: ignore[arg-type]


def test_a_clip_around_the_range_of_the_codes() -> None:
    """Bounds on both sides of what the codes stand for, and of half a step inside of it; also without any."""
    forms: list[tuple[Any, ...]] = []
    for zero, scale_shape in ((0, ()), (100, ()), (None, ()), (100, (1,))):
        bottom, top = -0.05 * (zero or 0), 0.05 * (255 - (zero or 0))
        lows = (None, bottom - 1, bottom + 0.02, bottom + 0.03)
        highs = (None, top + 1, top - 0.02, top - 0.03, 1e8, 1.2e8)
        for low, high in itertools.product(lows, highs):
            clip, relu = ("Clip", low, high), ("Relu", None, None)
            forms += [(acts, zero, scale_shape) for acts in ([clip], [relu, clip], [clip, relu], [clip, clip])]
    all_right([matmul((3, 5), None, acts, zero=zero, scale_shape=shape) for acts, zero, shape in forms], forms)
